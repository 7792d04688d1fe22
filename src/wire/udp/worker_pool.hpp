// An Executor on real threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/executor.hpp"

namespace farhaul::udp {

class WorkerPool final : public Executor {
 public:
    /// `threads`: at least 1. `post` runs a function on the loop's thread, soon, and may be called from any thread.
    WorkerPool(unsigned threads, std::function<void(std::function<void()>)> post);
    /// On the loop's thread. Jobs under way end, those waiting are not begun; every job's `done` has been called when
    /// it returns. What was handed to `post` by then does nothing any more.
    ~WorkerPool() override;
    WorkerPool(const WorkerPool&) = delete;
    WorkerPool& operator=(const WorkerPool&) = delete;

    void submit(const Job& job) override;

    /// Threads worth having on this machine: all but one core, 1 to 8.
    static unsigned default_threads();

 private:
    // What a posted function may still hold when the pool is gone.
    struct Finished {
        std::mutex mutex;
        std::vector<Job> jobs;
        bool posted = false;
    };
    static void run_finished(Finished& finished);
    void work();

    std::function<void(std::function<void()>)> post_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Job> waiting_;
    bool stopping_ = false;
    std::shared_ptr<Finished> finished_ = std::make_shared<Finished>();
    std::vector<std::jthread> threads_;
};

}  // namespace farhaul::udp
