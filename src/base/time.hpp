// Durations and points of time with nanosecond resolution. A TimePoint counts from its Loop's own origin: the start of
// the simulation, or CLOCK_MONOTONIC's; never the wall clock, which may jump.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace farhaul {

class Duration {
 public:
    constexpr Duration() = default;
    static constexpr Duration from_nanoseconds(std::int64_t ns) { return Duration(ns); }
    static constexpr Duration from_microseconds(std::int64_t us) { return Duration(us * 1'000); }
    static constexpr Duration from_milliseconds(std::int64_t ms) { return Duration(ms * 1'000'000); }
    static constexpr Duration from_seconds(double s) {
        return Duration(static_cast<std::int64_t>(s * 1e9 + (s < 0 ? -0.5 : 0.5)));
    }
    static constexpr Duration max() { return Duration(std::numeric_limits<std::int64_t>::max() / 4); }

    constexpr std::int64_t nanoseconds() const { return ns_; }
    constexpr double seconds() const { return static_cast<double>(ns_) * 1e-9; }

    constexpr auto operator<=>(const Duration&) const = default;
    constexpr Duration operator+(Duration o) const { return Duration(ns_ + o.ns_); }
    constexpr Duration operator-(Duration o) const { return Duration(ns_ - o.ns_); }
    constexpr Duration operator-() const { return Duration(-ns_); }
    constexpr Duration operator*(std::int64_t n) const { return Duration(ns_ * n); }
    constexpr Duration operator/(std::int64_t n) const { return Duration(ns_ / n); }
    constexpr Duration scaled(double factor) const { return from_seconds(seconds() * factor); }
    constexpr Duration& operator+=(Duration o) {
        ns_ += o.ns_;
        return *this;
    }
    constexpr Duration& operator-=(Duration o) {
        ns_ -= o.ns_;
        return *this;
    }

 private:
    constexpr explicit Duration(std::int64_t ns) : ns_(ns) {}
    std::int64_t ns_ = 0;
};

class TimePoint {
 public:
    constexpr TimePoint() = default;
    static constexpr TimePoint from_nanoseconds(std::int64_t ns) { return TimePoint(ns); }
    /// Later than anything that is ever scheduled.
    static constexpr TimePoint never() { return TimePoint(std::numeric_limits<std::int64_t>::max() / 2); }

    constexpr std::int64_t nanoseconds() const { return ns_; }
    constexpr double seconds() const { return static_cast<double>(ns_) * 1e-9; }

    constexpr auto operator<=>(const TimePoint&) const = default;
    constexpr TimePoint operator+(Duration d) const { return TimePoint(ns_ + d.nanoseconds()); }
    constexpr TimePoint operator-(Duration d) const { return TimePoint(ns_ - d.nanoseconds()); }
    constexpr Duration operator-(TimePoint o) const { return Duration::from_nanoseconds(ns_ - o.ns_); }

 private:
    constexpr explicit TimePoint(std::int64_t ns) : ns_(ns) {}
    std::int64_t ns_ = 0;
};

}  // namespace farhaul
