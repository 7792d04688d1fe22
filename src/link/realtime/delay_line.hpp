// What is on its way: items with a due time. Those in order wait in a queue, those that may be overtaken in a heap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "base/time.hpp"

namespace farhaul::link {

template <typename T>
class DelayLine {
 public:
    /// With `in_order`, `due` must not be before that of an earlier item in order.
    void push(TimePoint due, bool in_order, T item) {
        if (in_order) {
            queue_.push_back({due, next_sequence_++, std::move(item)});
        } else {
            heap_.push_back({due, next_sequence_++, std::move(item)});
            std::push_heap(heap_.begin(), heap_.end(), Later());
        }
    }
    bool empty() const { return queue_.empty() && heap_.empty(); }
    std::size_t size() const { return queue_.size() + heap_.size(); }
    TimePoint next_due() const {
        return empty() ? TimePoint::never() : from_heap() ? heap_.front().due : queue_.front().due;
    }
    /// Must not be empty.
    T& front() { return from_heap() ? heap_.front().item : queue_.front().item; }
    void pop() {
        if (from_heap()) {
            std::pop_heap(heap_.begin(), heap_.end(), Later());
            heap_.pop_back();
        } else {
            queue_.pop_front();
        }
    }
    /// Item n of those in order (0 = the front) if nothing in the heap comes before it, or null.
    T* nth_in_order(std::size_t n) {
        if (n >= queue_.size() || (!heap_.empty() && !before(queue_[n], heap_.front()))) return nullptr;
        return &queue_[n].item;
    }

 private:
    struct Entry {
        TimePoint due;
        std::uint64_t sequence;
        T item;
    };
    static bool before(const Entry& a, const Entry& b) {
        return a.due != b.due ? a.due < b.due : a.sequence < b.sequence;
    }
    struct Later {
        bool operator()(const Entry& a, const Entry& b) const { return before(b, a); }
    };
    bool from_heap() const { return !heap_.empty() && (queue_.empty() || before(heap_.front(), queue_.front())); }
    std::deque<Entry> queue_;
    std::vector<Entry> heap_;
    std::uint64_t next_sequence_ = 0;
};

}  // namespace farhaul::link
