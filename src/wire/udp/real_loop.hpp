// The Loop over CLOCK_MONOTONIC: epoll, timers, and wake-ups from other threads.
//
// One iteration: read the clock, fire the timers that are due, poll the file descriptors, call back those that are
// ready, run what was posted. now() is read once before the timers and once before the descriptors, so that it is
// constant within a batch of callbacks.
//
// Sleeping costs a wake-up of about 25 us. So while traffic flows (note_activity() was called less than
// RealLoopOptions::busy_poll ago), and for the last RealLoopOptions::timer_spin before a deadline, the loop polls
// without sleeping.
//
// Threads: everything belongs to the thread that runs the loop, apart from wake(), stop() and post().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/loop.hpp"
#include "base/result.hpp"

namespace farhaul::udp {

struct RealLoopOptions {
    Duration busy_poll =
        Duration::from_microseconds(50);  ///< how long to poll without sleeping after traffic; 0 = never
    Duration timer_spin =
        Duration::from_microseconds(15);  ///< poll instead of sleeping when a deadline is nearer than this
};

class RealLoop final : public Loop {
 public:
    /// Bits of epoll: EPOLLIN, EPOLLOUT, EPOLLERR.
    using FdCallback = std::function<void(std::uint32_t events)>;

    /// Errors: kIo when epoll or eventfd cannot be made (too many open files).
    static Result<std::unique_ptr<RealLoop>> create(const RealLoopOptions& options = {});
    ~RealLoop() override;
    RealLoop(const RealLoop&) = delete;
    RealLoop& operator=(const RealLoop&) = delete;

    TimePoint now() const override { return now_; }
    /// Reads the clock outside a callback, e.g. before the first run_once().
    void update_now();
    static TimePoint clock();

    /// One iteration; sleeps at most `max_wait` (0 = not at all; Duration::max() = until something happens). Returns
    /// whether anything was called back.
    bool run_once(Duration max_wait);
    /// Iterates until `done()` is true, stop() was called, or `timeout` has passed. Returns the last value of done().
    bool run_until(const std::function<bool()>& done, Duration timeout = Duration::max());
    /// Iterates until stop().
    void run();

    /// Level-triggered. The callback may remove any descriptor, its own included. Errors: kIo (also when `fd` is there
    /// already).
    Status add_fd(int fd, std::uint32_t events, FdCallback callback);
    Status modify_fd(int fd, std::uint32_t events);
    /// Must come before close(fd). Unknown descriptors are ignored.
    void remove_fd(int fd);

    /// For an owner that sleeps outside run_once(), with its lock released: poll this descriptor for input, no longer
    /// than idle_time(), then call run_once(Duration{}).
    int poll_fd() const { return epoll_fd_; }
    /// How long run_once() would sleep: 0 while traffic flows or work waits.
    Duration idle_time(Duration max_wait) const { return sleep_time(max_wait); }

    /// Changes RealLoopOptions::busy_poll.
    void set_busy_poll(Duration busy_poll) { options_.busy_poll = busy_poll; }

    /// Traffic flowed: keep polling without sleeping for a while.
    void note_activity() { busy_until_ = now_ + options_.busy_poll; }

    // --- from any thread ---
    /// Ends a sleep of run_once().
    void wake();
    /// Ends run() and run_until(), now or as soon as they are entered; the next run starts afresh.
    void stop();
    /// Runs `task` on the loop's thread in its next iteration. Tasks not yet run when the loop is destroyed are
    /// dropped.
    void post(std::function<void()> task);

 private:
    struct Entry {
        FdCallback callback;
        std::uint32_t events = 0;
    };
    explicit RealLoop(const RealLoopOptions& options) : options_(options) {}
    bool fire_timers();
    bool run_posted();
    Duration sleep_time(Duration max_wait) const;

    RealLoopOptions options_;
    TimePoint now_;
    TimePoint busy_until_;
    int epoll_fd_ = -1;
    int wake_fd_ = -1;
    std::unordered_map<int, std::shared_ptr<Entry>> entries_;
    std::atomic<bool> stop_{false};
    std::atomic<bool> wake_pending_{false};
    std::mutex posted_mutex_;
    std::vector<std::function<void()>> posted_;
    std::atomic<bool> has_posted_{false};
};

}  // namespace farhaul::udp
