// Sizes, rates, times and probabilities as users write and read them: `128MiB`, `400G`, `25ms`, `1e-4`.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/time.hpp"
#include "base/uint128.hpp"

namespace farhaul {

/// A rate in bits per second; zero means "no limit" where a limit is meant.
class BitRate {
 public:
    constexpr BitRate() = default;
    static constexpr BitRate from_bits_per_second(std::uint64_t bps) { return BitRate(bps); }
    static constexpr BitRate from_gigabits(double g) { return BitRate(static_cast<std::uint64_t>(g * 1e9 + 0.5)); }

    constexpr std::uint64_t bits_per_second() const { return bps_; }
    constexpr bool unlimited() const { return bps_ == 0; }
    /// Time that `bytes` occupy a line of this rate, rounded to the nearest nanosecond. Requires a non-zero rate.
    constexpr Duration time_for(std::uint64_t bytes) const {
        return Duration::from_nanoseconds(
            static_cast<std::int64_t>((static_cast<Uint128>(bytes) * 8'000'000'000ull + bps_ / 2) / bps_));
    }
    constexpr std::uint64_t bytes_in(Duration d) const {
        return static_cast<std::uint64_t>(static_cast<Uint128>(bps_) * static_cast<std::uint64_t>(d.nanoseconds()) /
                                          8'000'000'000ull);
    }
    constexpr auto operator<=>(const BitRate&) const = default;

 private:
    constexpr explicit BitRate(std::uint64_t bps) : bps_(bps) {}
    std::uint64_t bps_ = 0;
};

/// `4096`, `64KiB`, `128MiB`, `1GiB` (powers of 1024; `64K`, `64k`, `128M`, `1G` are read as such too), `64KB`, `1MB`,
/// `1GB` (powers of 1000).
Result<std::uint64_t> parse_size(std::string_view text);
/// `400G`, `1.5M`, `10k`, with or without `bit/s` or `bps` behind; bits per second, powers of 1000. `0` means no limit.
Result<BitRate> parse_rate(std::string_view text);
/// `25ms`, `1.5s`, `10us`, `100ns`, `2m`, `1h`; `0` alone needs no unit.
Result<Duration> parse_duration(std::string_view text);
/// `1e-4`, `0.01`, `1%`; from 0 to 1.
Result<double> parse_probability(std::string_view text);

std::string format_size(std::uint64_t bytes);     ///< `128 MiB`
std::string format_rate(double bits_per_second);  ///< `1.25 Gbit/s`
std::string format_duration(Duration d);          ///< `25.3 ms`

}  // namespace farhaul
