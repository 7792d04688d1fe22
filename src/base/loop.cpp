#include "base/loop.hpp"

#include <cassert>

namespace farhaul {

void Timer::arm(TimePoint deadline) {
    disarm();
    deadline_ = deadline;
    queue_.insert(this);
}

void Timer::arm_no_later_than(TimePoint deadline) {
    if (!armed() || deadline < deadline_) arm(deadline);
}

void Timer::disarm() {
    if (armed()) queue_.remove(this);
}

bool TimerQueue::fire_next(TimePoint now) {
    if (heap_.empty() || heap_.front()->deadline_ > now) return false;
    Timer* timer = heap_.front();
    remove(timer);
    timer->callback_(timer->context_);  // may destroy the timer
    return true;
}

void TimerQueue::insert(Timer* timer) {
    timer->sequence_ = next_sequence_++;
    heap_.push_back(timer);
    timer->heap_index_ = heap_.size() - 1;
    sift_up(heap_.size() - 1);
}

void TimerQueue::remove(Timer* timer) {
    const std::size_t index = timer->heap_index_;
    assert(index < heap_.size() && heap_[index] == timer);
    Timer* last = heap_.back();
    heap_.pop_back();
    timer->heap_index_ = Timer::kNotArmed;
    if (last == timer) return;
    place(index, last);
    sift_up(index);
    sift_down(last->heap_index_);
}

void TimerQueue::sift_up(std::size_t index) {
    Timer* timer = heap_[index];
    while (index > 0) {
        const std::size_t parent = (index - 1) / 2;
        if (!before(timer, heap_[parent])) break;
        place(index, heap_[parent]);
        index = parent;
    }
    place(index, timer);
}

void TimerQueue::sift_down(std::size_t index) {
    Timer* timer = heap_[index];
    for (;;) {
        std::size_t child = 2 * index + 1;
        if (child >= heap_.size()) break;
        if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
        if (!before(heap_[child], timer)) break;
        place(index, heap_[child]);
        index = child;
    }
    place(index, timer);
}

}  // namespace farhaul
