// Time since forwarding began, and waiting for descriptors with nanosecond timeouts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <span>

#include <poll.h>
#include <sys/prctl.h>

#include "base/time.hpp"

namespace farhaul::link {

class RealClock {
 public:
    RealClock() : origin_(read(CLOCK_MONOTONIC)), cpu_origin_(read(CLOCK_PROCESS_CPUTIME_ID)) {
        ::prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0,
                0);  // 1 us: the default of 50 us would make every packet late by as much
    }
    TimePoint now() const { return TimePoint::from_nanoseconds(read(CLOCK_MONOTONIC) - origin_); }
    Duration cpu() const { return Duration::from_nanoseconds(read(CLOCK_PROCESS_CPUTIME_ID) - cpu_origin_); }

 private:
    static std::int64_t read(clockid_t id) {
        timespec t{};
        ::clock_gettime(id, &t);
        return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
    }
    std::int64_t origin_, cpu_origin_;
};

/// Waits until a descriptor is ready, `longest` has passed or a signal comes. False when a descriptor is ready.
inline bool wait_for(std::span<pollfd> descriptors, Duration longest) {
    const std::int64_t ns = longest > Duration() ? longest.nanoseconds() : 0;
    const timespec timeout{static_cast<std::time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    return ::ppoll(descriptors.data(), descriptors.size(), &timeout, nullptr) <= 0;
}

/// How long this program was away at most: it woke late, or served one batch for long. Packets that came in meanwhile
/// entered the model late by as much.
class Stalls {
 public:
    /// Waits, on time if all goes well, and takes the difference.
    void wait(const RealClock& clock, std::span<pollfd> descriptors, Duration longest) {
        const TimePoint before = clock.now();
        if (started_) longest_ = std::max(longest_, before - resumed_);
        started_ = true;
        const bool nothing_came = wait_for(descriptors, longest);
        resumed_ = clock.now();
        if (nothing_came) longest_ = std::max(longest_, resumed_ - before - std::max(longest, Duration()));
    }
    Duration longest() const { return longest_; }

 private:
    bool started_ = false;
    TimePoint resumed_;
    Duration longest_;
};

/// How long to sleep until the next packet is due. While packets flow, the forwarder sleeps in steps of at least kNap
/// and serves what came in meanwhile as one batch: waking for every packet would cost more than a core.
inline constexpr Duration kNap = Duration::from_microseconds(40);

}  // namespace farhaul::link
