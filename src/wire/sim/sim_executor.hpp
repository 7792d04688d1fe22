// Workers in virtual time: a job takes as long as its bytes do at a stated rate, and the least busy worker takes it.
#pragma once

#include <algorithm>
#include <queue>
#include <vector>

#include "base/executor.hpp"
#include "base/loop.hpp"

namespace farhaul::wire {

class SimExecutor final : public Executor {
 public:
    /// bytes_per_second: of one worker, above 0; workers: at least 1. Jobs must be done, or their owners gone with the
    /// loop, before it is destroyed.
    SimExecutor(Loop& loop, double bytes_per_second, std::uint32_t workers)
        : loop_(loop),
          bytes_per_second_(bytes_per_second),
          free_at_(workers),
          timer_(loop.timers(), [](void* self) { static_cast<SimExecutor*>(self)->finish(); }, this) {}
    ~SimExecutor() override {
        while (!running_.empty()) end_first();
    }

    void submit(const Job& job) override {
        job.work(job.context);  // its result is not looked at before `done`
        auto& free_at = *std::min_element(free_at_.begin(), free_at_.end());
        const auto cost = Duration::from_seconds(static_cast<double>(job.bytes) / bytes_per_second_);
        free_at = std::max(free_at, loop_.now()) + cost;
        running_.push({free_at, next_number_++, job});
        timer_.arm_no_later_than(free_at);
    }

 private:
    struct Running {
        TimePoint ends;
        std::uint64_t number;  // jobs that end together end in the order in which they came, so that runs replay
        Job job;
        bool operator<(const Running& other) const {
            return ends != other.ends ? ends > other.ends : number > other.number;
        }
    };
    void end_first() {
        const Job job = running_.top().job;
        running_.pop();
        job.done(job.context);
    }
    void finish() {
        while (!running_.empty() && running_.top().ends <= loop_.now()) end_first();
        if (!running_.empty()) timer_.arm_no_later_than(running_.top().ends);
    }

    Loop& loop_;
    double bytes_per_second_;
    std::vector<TimePoint> free_at_;
    std::priority_queue<Running> running_;
    std::uint64_t next_number_ = 0;
    Timer timer_;
};

}  // namespace farhaul::wire
