#include "wire/udp/worker_pool.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace farhaul::udp {
namespace {

constexpr int kNice = 10;

}  // namespace

unsigned WorkerPool::default_threads() { return std::clamp(std::thread::hardware_concurrency(), 2u, 9u) - 1; }

WorkerPool::WorkerPool(unsigned threads, std::function<void(std::function<void()>)> post) : post_(std::move(post)) {
    for (unsigned i = 0; i < std::max(1u, threads); ++i) threads_.emplace_back([this] { work(); });
}

WorkerPool::~WorkerPool() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    threads_.clear();
    run_finished(*finished_);
    for (const Job& job : waiting_) job.done(job.context);
}

void WorkerPool::submit(const Job& job) {
    {
        const std::lock_guard lock(mutex_);
        waiting_.push_back(job);
    }
    wake_.notify_one();
}

void WorkerPool::run_finished(Finished& finished) {
    std::vector<Job> jobs;
    {
        const std::lock_guard lock(finished.mutex);
        jobs.swap(finished.jobs);
        finished.posted = false;
    }
    for (const Job& job : jobs) job.done(job.context);
}

void WorkerPool::work() {
    // Beside the loops, not in their way: where cores are few, injection goes first, and a repair that parity comes too
    // late for is asked for. Linux keeps this per thread.
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
    for (;;) {
        Job job;
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
            if (stopping_) return;
            job = waiting_.front();
            waiting_.pop_front();
        }
        job.work(job.context);
        bool post = false;
        {
            const std::lock_guard lock(finished_->mutex);
            finished_->jobs.push_back(job);
            post = !std::exchange(finished_->posted, true);  // one wake-up for all that end before it is heard
        }
        if (post) post_([finished = finished_] { run_finished(*finished); });
    }
}

}  // namespace farhaul::udp
