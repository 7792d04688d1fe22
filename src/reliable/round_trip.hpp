// Round-trip time of a connection: smoothed and varying part as in RFC 6298, and the least ever seen.
#pragma once

#include <algorithm>

#include "base/time.hpp"

namespace farhaul::reliable {

class RoundTrip {
 public:
    /// `fixed`: samples are ignored, `initial` holds throughout.
    RoundTrip(Duration initial, bool fixed) : smoothed_(initial), least_(initial), fixed_(fixed) {}

    void add_sample(Duration sample) {
        if (fixed_) return;
        // A loop's time stands still within a batch: an answer may seem to take none.
        sample = std::max(sample, Duration::from_microseconds(1));
        if (!measured_) {
            measured_ = true;
            smoothed_ = least_ = sample;
            variation_ = sample / 2;
            return;
        }
        const Duration error = sample < smoothed_ ? smoothed_ - sample : sample - smoothed_;
        variation_ = variation_ + (error - variation_) / 4;
        smoothed_ = smoothed_ + (sample - smoothed_) / 8;
        least_ = std::min(least_, sample);
    }
    bool measured() const { return measured_; }
    Duration smoothed() const { return smoothed_; }
    Duration least() const { return least_; }
    /// The timeout for a factor in round trips, never below what the variation asks for (RFC 6298: srtt + 4 rttvar).
    Duration timeout(double round_trips, Duration at_least) const {
        return std::max({smoothed_.scaled(round_trips), smoothed_ + variation_ * 4, at_least});
    }

 private:
    Duration smoothed_, least_, variation_;
    bool fixed_ = false;
    bool measured_ = false;
};

}  // namespace farhaul::reliable
