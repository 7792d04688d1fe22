// The exact time at which bytes leave a line of a given rate. At 400 Gbit/s a 4 KiB packet takes 81.92 ns: rounding
// each packet to whole nanoseconds would cost 1% of the rate, so the remainder is carried.
#pragma once

#include <cstdint>

#include "base/uint128.hpp"
#include "base/units.hpp"

namespace farhaul {

class Serializer {
 public:
    explicit Serializer(BitRate rate) : rate_(rate) {}

    BitRate rate() const { return rate_; }
    /// Takes effect for bytes that start after those already accepted.
    void set_rate(BitRate rate) { rate_ = rate, remainder_ = 0; }
    /// When the line becomes idle.
    TimePoint idle_at() const { return idle_at_; }
    /// Puts `bytes` on the line at `now` or as soon as it is idle; returns when the last bit has left. A rate of 0
    /// takes no time.
    TimePoint send(TimePoint now, std::uint64_t bytes) {
        if (idle_at_ < now) idle_at_ = now, remainder_ = 0;
        if (rate_.unlimited()) return idle_at_;
        const Uint128 work = static_cast<Uint128>(bytes) * 8'000'000'000ull + remainder_;
        const std::uint64_t bps = rate_.bits_per_second();
        if (work >> 64) {
            idle_at_ = idle_at_ + Duration::from_nanoseconds(static_cast<std::int64_t>(work / bps));
            remainder_ = static_cast<std::uint64_t>(work % bps);
        } else {
            const std::uint64_t small = static_cast<std::uint64_t>(work);
            idle_at_ = idle_at_ + Duration::from_nanoseconds(static_cast<std::int64_t>(small / bps));
            remainder_ = small % bps;
        }
        return idle_at_;
    }

 private:
    BitRate rate_;
    TimePoint idle_at_;
    std::uint64_t remainder_ = 0;  // of the division by the rate, in (bit * 1e9)
};

}  // namespace farhaul
