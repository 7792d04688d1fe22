// The Loop tells protocols the time and calls them back. Protocol code never sees a clock, a thread or a sleep: the
// same code runs in virtual time (wire/sim) and in real time (wire/udp).
//
// Ownership: a Timer belongs to whoever embeds it and disarms itself when destroyed. One Loop is used by one thread (or
// under one lock).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.hpp"

namespace farhaul {

class TimerQueue;

/// One deadline and what to call when it is reached. Arming an armed timer moves it. Not copyable: the queue points at
/// it.
class Timer {
 public:
    using Callback = void (*)(void* context);
    Timer(TimerQueue& queue, Callback callback, void* context)
        : queue_(queue), callback_(callback), context_(context) {}
    ~Timer() { disarm(); }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

    void arm(TimePoint deadline);
    /// Arms only if it is not armed yet or armed for later.
    void arm_no_later_than(TimePoint deadline);
    void disarm();
    bool armed() const { return heap_index_ != kNotArmed; }
    TimePoint deadline() const { return deadline_; }

 private:
    friend class TimerQueue;
    static constexpr std::size_t kNotArmed = static_cast<std::size_t>(-1);
    TimerQueue& queue_;
    Callback callback_;
    void* context_;
    TimePoint deadline_;
    std::uint64_t sequence_ = 0;  // equal deadlines fire in the order in which they were armed, so that runs replay
    std::size_t heap_index_ = kNotArmed;
};

/// An addressable binary heap of armed timers.
class TimerQueue {
 public:
    TimerQueue() = default;
    TimerQueue(const TimerQueue&) = delete;
    TimerQueue& operator=(const TimerQueue&) = delete;

    bool empty() const { return heap_.empty(); }
    /// The earliest deadline, or TimePoint::never().
    TimePoint next_deadline() const { return heap_.empty() ? TimePoint::never() : heap_.front()->deadline_; }
    /// Disarms the earliest timer if it is due at `now` and calls it. Returns false when none is due.
    bool fire_next(TimePoint now);

 private:
    friend class Timer;
    static bool before(const Timer* a, const Timer* b) {
        return a->deadline_ != b->deadline_ ? a->deadline_ < b->deadline_ : a->sequence_ < b->sequence_;
    }
    void insert(Timer* timer);
    void remove(Timer* timer);
    void sift_up(std::size_t index);
    void sift_down(std::size_t index);
    void place(std::size_t index, Timer* timer) {
        heap_[index] = timer;
        timer->heap_index_ = index;
    }
    std::vector<Timer*> heap_;
    std::uint64_t next_sequence_ = 0;
};

class Loop {
 public:
    virtual ~Loop() = default;
    /// The time of the batch being handled: constant within one callback, never going back.
    virtual TimePoint now() const = 0;
    TimerQueue& timers() { return timers_; }

 protected:
    TimerQueue timers_;
};

}  // namespace farhaul
