// Virtual time: the clock jumps from one timer to the next. Everything that happens is a Timer, and equal deadlines
// fire in the order in which they were armed, so that a run depends on nothing but its seeds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/loop.hpp"
#include "base/result.hpp"

namespace farhaul::wire {

class SimLoop final : public Loop {
 public:
    SimLoop();
    ~SimLoop() override;

    TimePoint now() const override { return now_; }

    /// Fires timers in order until none is armed. Errors: kTimeout when the event budget is used up, which means that
    /// something keeps arming timers for ever.
    Status run();
    /// Fires everything due up to and including `end`, then sets the clock to `end`.
    Status run_until(TimePoint end);
    Status run_for(Duration duration) { return run_until(now_ + duration); }
    /// Fires timers as long as `condition()` is true, which is asked before each. Errors: as run(), and kTimeout when
    /// no timer is left or the next one is later than `deadline` although the condition still holds.
    template <typename Condition>
    Status run_while(Condition&& condition, TimePoint deadline = TimePoint::never()) {
        while (condition()) {
            if (timers_.next_deadline() > deadline || timers_.empty()) return stalled(deadline);
            if (Status status = step(); !status) return status;
        }
        return {};
    }

    /// Calls `action` once at `when` (now, if that is past). For tests and tools: allocates.
    void call_at(TimePoint when, std::function<void()> action);
    void call_after(Duration delay, std::function<void()> action) { call_at(now_ + delay, std::move(action)); }

    /// Timers fired so far.
    std::uint64_t events() const { return events_; }
    /// Most timers that may fire in the life of this loop, and at one instant.
    void set_event_budget(std::uint64_t total, std::uint64_t per_instant = kDefaultPerInstant) {
        budget_ = total;
        budget_per_instant_ = per_instant;
    }

    static constexpr std::uint64_t kDefaultBudget = 1ull << 40;
    static constexpr std::uint64_t kDefaultPerInstant = 10'000'000;

 private:
    struct OneShot;
    Status step();
    std::unexpected<Error> stalled(TimePoint deadline) const;

    TimePoint now_;
    std::uint64_t events_ = 0;
    std::uint64_t events_at_instant_ = 0;
    std::uint64_t budget_ = kDefaultBudget;
    std::uint64_t budget_per_instant_ = kDefaultPerInstant;
    std::vector<std::unique_ptr<OneShot>> one_shots_;
};

}  // namespace farhaul::wire
