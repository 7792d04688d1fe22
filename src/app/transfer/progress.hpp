// The line that shows how a transfer is going: on a terminal only, redrawn a few times per second.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "base/units.hpp"

namespace farhaul::app::transfer {

/// Rate over the last seconds and time to go; pure, for the test.
class ProgressMeter {
 public:
    /// `done` bytes at `now`; never going back.
    void update(TimePoint now, std::uint64_t done);
    /// Bits per second over the last 3 s; 0 before there are two samples.
    double rate() const;
    /// `label  45%  1.20 GiB / 2.60 GiB  940 Mbit/s  ETA 0:12`, cut to `columns`. A total of 0 is unknown.
    std::string line(const std::string& label, std::uint64_t total, std::size_t columns) const;

 private:
    struct Sample {
        TimePoint at;
        std::uint64_t done;
    };
    std::deque<Sample> samples_;
};

/// `0:05`, `12:34`, `3:02:01`.
std::string format_clock(double seconds);

/// Draws on stderr.
class ProgressLine {
 public:
    /// Draws nothing unless `wanted` and stderr is a terminal.
    explicit ProgressLine(bool wanted);
    ~ProgressLine() { clear(); }
    bool active() const { return active_; }
    void draw(TimePoint now, const std::string& label, std::uint64_t done, std::uint64_t total);
    /// Removes the line, so that something else can be printed.
    void clear();
    /// For a new transfer.
    void reset() { meter_ = {}; }

 private:
    bool active_;
    bool shown_ = false;
    ProgressMeter meter_;
};

}  // namespace farhaul::app::transfer
