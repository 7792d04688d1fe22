#include "wire/udp/real_loop.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace farhaul::udp {

namespace {

constexpr int kMaxEvents = 64;
/// Most timers fired before the descriptors are looked at again, so that timers which arm themselves for now cannot
/// starve traffic.
constexpr int kMaxTimersPerIteration = 1024;

}  // namespace

Result<std::unique_ptr<RealLoop>> RealLoop::create(const RealLoopOptions& options) {
    std::unique_ptr<RealLoop> loop(new RealLoop(options));
    loop->epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd_ < 0) return fail_errno(errno, "cannot create an epoll descriptor");
    loop->wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->wake_fd_ < 0) return fail_errno(errno, "cannot create an eventfd");
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = loop->wake_fd_;
    if (epoll_ctl(loop->epoll_fd_, EPOLL_CTL_ADD, loop->wake_fd_, &event) != 0)
        return fail_errno(errno, "cannot watch an eventfd");
    loop->update_now();
    return loop;
}

RealLoop::~RealLoop() {
    if (wake_fd_ >= 0) close(wake_fd_);
    if (epoll_fd_ >= 0) close(epoll_fd_);
}

TimePoint RealLoop::clock() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return TimePoint::from_nanoseconds(now.tv_sec * 1'000'000'000 + now.tv_nsec);
}

void RealLoop::update_now() { now_ = std::max(now_, clock()); }

bool RealLoop::fire_timers() {
    bool fired = false;
    for (int count = 0; count < kMaxTimersPerIteration && timers_.fire_next(now_); ++count) fired = true;
    return fired;
}

bool RealLoop::run_posted() {
    if (!has_posted_.load(std::memory_order_acquire)) return false;
    std::vector<std::function<void()>> tasks;
    {
        const std::lock_guard lock(posted_mutex_);
        tasks.swap(posted_);
        has_posted_.store(false, std::memory_order_relaxed);
    }
    for (auto& task : tasks) task();
    return !tasks.empty();
}

Duration RealLoop::sleep_time(Duration max_wait) const {
    if (now_ < busy_until_ || has_posted_.load(std::memory_order_acquire)) return Duration{};
    Duration wait = max_wait;
    const TimePoint deadline = timers_.next_deadline();
    if (deadline < TimePoint::never()) wait = std::min(wait, deadline - now_ - options_.timer_spin);
    return std::max(wait, Duration{});
}

bool RealLoop::run_once(Duration max_wait) {
    update_now();
    bool worked = fire_timers();
    if (run_posted()) worked = true;

    const Duration wait = worked ? Duration{} : sleep_time(max_wait);
    std::array<epoll_event, kMaxEvents> events;
    const timespec timeout{.tv_sec = wait.nanoseconds() / 1'000'000'000, .tv_nsec = wait.nanoseconds() % 1'000'000'000};
    const bool for_ever = wait >= Duration::max();
    const int ready = epoll_pwait2(epoll_fd_, events.data(), kMaxEvents, for_ever ? nullptr : &timeout, nullptr);
    update_now();
    for (int i = 0; i < ready; ++i) {
        const int fd = events[static_cast<std::size_t>(i)].data.fd;
        if (fd == wake_fd_) {
            // Read, then clear: a wake() in between finds the flag set and writes nothing, but what it announces (a
            // task, stop) was written before and is looked at below.
            std::uint64_t value = 0;
            [[maybe_unused]] const ssize_t got = read(wake_fd_, &value, sizeof(value));
            wake_pending_.exchange(false, std::memory_order_acq_rel);
            continue;
        }
        const auto found = entries_.find(fd);
        if (found == entries_.end()) continue;              // removed by an earlier callback of this batch
        const std::shared_ptr<Entry> keep = found->second;  // the callback may remove itself
        keep->callback(events[static_cast<std::size_t>(i)].events);
        worked = true;
    }
    if (fire_timers()) worked = true;
    if (run_posted()) worked = true;
    return worked;
}

bool RealLoop::run_until(const std::function<bool()>& done, Duration timeout) {
    // The kernel would let timers be 50 us late; a call costs less than finding out whether this thread had one.
    prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
    update_now();
    const TimePoint end = timeout >= Duration::max() ? TimePoint::never() : now_ + timeout;
    bool result = done();
    while (!result && !stop_.load(std::memory_order_acquire) && now_ < end) {
        run_once(end >= TimePoint::never() ? Duration::max() : end - now_);
        update_now();
        result = done();
    }
    stop_.store(false, std::memory_order_release);
    return result;
}

void RealLoop::run() {
    run_until([] { return false; });
}

Status RealLoop::add_fd(int fd, std::uint32_t events, FdCallback callback) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0)
        return fail_errno(errno, fmt::format("cannot watch descriptor {}", fd));
    entries_[fd] = std::make_shared<Entry>(std::move(callback), events);
    return {};
}

Status RealLoop::modify_fd(int fd, std::uint32_t events) {
    const auto found = entries_.find(fd);
    if (found == entries_.end()) return fail(ErrorCode::kInvalidArgument, "descriptor {} is not watched", fd);
    if (found->second->events == events) return {};
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event) != 0)
        return fail_errno(errno, fmt::format("cannot change what descriptor {} is watched for", fd));
    found->second->events = events;
    return {};
}

void RealLoop::remove_fd(int fd) {
    if (entries_.erase(fd) > 0) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
}

void RealLoop::wake() {
    if (wake_pending_.exchange(true, std::memory_order_acq_rel)) return;  // one is on its way
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

void RealLoop::stop() {
    stop_.store(true, std::memory_order_release);
    wake();
}

void RealLoop::post(std::function<void()> task) {
    const std::lock_guard lock(posted_mutex_);
    posted_.push_back(std::move(task));
    has_posted_.store(true, std::memory_order_release);
    wake();  // under the lock: what was posted may end the loop, and must not run before this is done with it
}

}  // namespace farhaul::udp
