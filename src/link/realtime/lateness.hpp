// How late packets left, compared with what the model said: a histogram with 8 buckets per power of two (12% wide).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/time.hpp"

namespace farhaul::link {

class Lateness {
 public:
    void add(Duration late, std::uint64_t packets = 1) {
        const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(late.nanoseconds(), 0));
        max_ = std::max(max_, ns);
        count_ += packets;
        buckets_[bucket_of(ns)] += packets;
    }
    std::uint64_t count() const { return count_; }
    Duration max() const { return Duration::from_nanoseconds(static_cast<std::int64_t>(max_)); }
    /// The lateness that a share `q` of the packets did not exceed, rounded up to its bucket; 0 without packets.
    Duration quantile(double q) const {
        const auto wanted = static_cast<std::uint64_t>(q * static_cast<double>(count_));
        std::uint64_t seen = 0;
        for (std::size_t i = 0; i < buckets_.size(); ++i) {
            seen += buckets_[i];
            if (seen != 0 && seen >= wanted)
                return Duration::from_nanoseconds(static_cast<std::int64_t>(std::min(upper_bound_of(i), max_)));
        }
        return max();
    }

 private:
    static constexpr std::size_t bucket_of(std::uint64_t ns) {
        if (ns < 8) return static_cast<std::size_t>(ns);
        const auto exponent = static_cast<std::size_t>(std::bit_width(ns)) - 4;
        return 8 * (exponent + 1) + static_cast<std::size_t>((ns >> exponent) & 7);
    }
    static constexpr std::uint64_t upper_bound_of(std::size_t bucket) {
        if (bucket < 8) return bucket;
        const std::size_t exponent = bucket / 8 - 1;
        return ((std::uint64_t{8 + bucket % 8} + 1) << exponent) - 1;
    }
    std::array<std::uint64_t, 8 * 62> buckets_{};
    std::uint64_t count_ = 0, max_ = 0;
};

}  // namespace farhaul::link
