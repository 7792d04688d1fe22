#include "wire/sim/sim_loop.hpp"

#include <algorithm>

namespace farhaul::wire {

struct SimLoop::OneShot {
    OneShot(SimLoop& loop, std::function<void()> what)
        : owner(loop), action(std::move(what)), timer(loop.timers(), fire, this) {}
    static void fire(void* context) {
        auto* self = static_cast<OneShot*>(context);
        auto& all = self->owner.one_shots_;
        const auto it = std::find_if(all.begin(), all.end(), [self](const auto& each) { return each.get() == self; });
        const std::unique_ptr<OneShot> mine = std::move(*it);
        *it = std::move(all.back());
        all.pop_back();
        mine->action();
    }
    SimLoop& owner;
    std::function<void()> action;
    Timer timer;
};

SimLoop::SimLoop() = default;
SimLoop::~SimLoop() { one_shots_.clear(); }

void SimLoop::call_at(TimePoint when, std::function<void()> action) {
    one_shots_.push_back(std::make_unique<OneShot>(*this, std::move(action)));
    one_shots_.back()->timer.arm(std::max(when, now_));
}

Status SimLoop::step() {
    const TimePoint next = timers_.next_deadline();
    if (next > now_) {
        now_ = next;
        events_at_instant_ = 0;
    }
    if (++events_ > budget_)
        return fail(ErrorCode::kTimeout,
                    "the simulation used up its budget of {} events at {:.9f} s: something arms timers for ever",
                    budget_, now_.seconds());
    if (++events_at_instant_ > budget_per_instant_)
        return fail(ErrorCode::kTimeout,
                    "time stands still at {:.9f} s: {} events there; something arms timers without delay",
                    now_.seconds(), budget_per_instant_);
    timers_.fire_next(now_);
    return {};
}

Status SimLoop::run() {
    while (!timers_.empty())
        if (Status status = step(); !status) return status;
    return {};
}

Status SimLoop::run_until(TimePoint end) {
    while (!timers_.empty() && timers_.next_deadline() <= end)
        if (Status status = step(); !status) return status;
    if (now_ < end) {
        now_ = end;
        events_at_instant_ = 0;
    }
    return {};
}

std::unexpected<Error> SimLoop::stalled(TimePoint deadline) const {
    if (timers_.empty())
        return fail(ErrorCode::kTimeout,
                    "nothing is left to happen at {:.9f} s although the awaited condition has not come true",
                    now_.seconds());
    return fail(ErrorCode::kTimeout, "the awaited condition had not come true by {:.9f} s", deadline.seconds());
}

}  // namespace farhaul::wire
