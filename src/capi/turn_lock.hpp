// The lock of a context: taken by its progress thread once per batch, and briefly by API calls.
//
// A plain mutex is not enough: callers of this API spin ("post again while SDR_RETRY"), and so does the progress thread
// while traffic flows. Whoever spins takes a mutex again before the other has woken up, and starves it. So the two
// sides take turns: a side that held the lock last lets the other go first when that is waiting.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace farhaul::capi {

class TurnLock {
 public:
    enum class Side { kProgress, kCaller };

    void lock(Side side) {
        auto& mine = waiting_[index(side)];
        auto& other = waiting_[1 - index(side)];
        mine.fetch_add(1);
        // Bounded: the other side counts as waiting only while it is about to take the mutex, which nobody holds for
        // long. Only one side can wait here, as last_ names one.
        while (last_.load() == side && other.load() > 0) std::this_thread::yield();
        mutex_.lock();
        mine.fetch_sub(1);
        last_.store(side);
    }
    void unlock() { mutex_.unlock(); }

 private:
    static constexpr std::size_t index(Side side) { return side == Side::kProgress ? 0 : 1; }
    std::mutex mutex_;
    std::atomic<int> waiting_[2]{};
    std::atomic<Side> last_{Side::kCaller};
};

}  // namespace farhaul::capi
