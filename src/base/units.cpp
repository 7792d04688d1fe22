#include "base/units.hpp"

#include <charconv>
#include <cmath>
#include <iterator>

namespace farhaul {
namespace {

struct Suffix {
    std::string_view text;
    double factor;
};

// Splits "25ms" into 25 and the factor of "ms". Suffixes are compared exactly; an empty suffix is one of the table's or
// an error.
Result<double> parse_with_suffix(std::string_view text, std::string_view kind, std::string_view example,
                                 const Suffix* begin, const Suffix* end) {
    double number = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || !std::isfinite(number))
        return fail(ErrorCode::kInvalidArgument, "'{}' is not a {}: expected something like {}", text, kind, example);
    std::string_view suffix(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
    while (!suffix.empty() && suffix.front() == ' ') suffix.remove_prefix(1);
    for (const Suffix* s = begin; s != end; ++s)
        if (s->text == suffix) {
            if (number < 0)
                return fail(ErrorCode::kInvalidArgument, "'{}' is negative: a {} is at least 0", text, kind);
            return number * s->factor;
        }
    if (number == 0 && suffix.empty()) return 0.0;
    return fail(ErrorCode::kInvalidArgument, "'{}' has no known unit: a {} is written like {}", text, kind, example);
}

constexpr Suffix kSizes[] = {
    {"", 1},
    {"B", 1},
    {"K", 1024.0},
    {"k", 1024.0},
    {"KiB", 1024.0},
    {"kB", 1e3},
    {"KB", 1e3},
    {"M", 1048576.0},
    {"m", 1048576.0},
    {"MiB", 1048576.0},
    {"MB", 1e6},
    {"G", 1073741824.0},
    {"g", 1073741824.0},
    {"GiB", 1073741824.0},
    {"GB", 1e9},
    {"T", 1099511627776.0},
    {"t", 1099511627776.0},
    {"TiB", 1099511627776.0},
    {"TB", 1e12},
};
constexpr Suffix kRates[] = {{"", 1}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}};
constexpr Suffix kDurations[] = {{"ns", 1},  {"us", 1e3}, {"\u00b5s", 1e3}, {"ms", 1e6},
                                 {"s", 1e9}, {"m", 60e9}, {"min", 60e9},    {"h", 3600e9}};
constexpr Suffix kProbabilities[] = {{"", 1}, {"%", 0.01}};

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
    auto value = parse_with_suffix(text, "size", "4096, 64KiB or 1GiB", std::begin(kSizes), std::end(kSizes));
    if (!value) return propagate(value);
    if (*value >= 9.2e18) return fail(ErrorCode::kInvalidArgument, "'{}' is too large a size", text);
    return static_cast<std::uint64_t>(std::llround(*value));
}

Result<BitRate> parse_rate(std::string_view text) {
    std::string_view number = text;
    for (std::string_view unit : {"bit/s", "bits/s", "bps", "b/s"})
        if (number.ends_with(unit)) {
            number.remove_suffix(unit.size());
            break;
        }
    auto value =
        parse_with_suffix(number, "rate", "400G, 1.5M or 10k (bits per second)", std::begin(kRates), std::end(kRates));
    if (!value) return propagate(value);
    if (*value > 1e16) return fail(ErrorCode::kInvalidArgument, "'{}' is too high a rate: at most 10000T", text);
    return BitRate::from_bits_per_second(static_cast<std::uint64_t>(std::llround(*value)));
}

Result<Duration> parse_duration(std::string_view text) {
    auto value = parse_with_suffix(text, "time", "25ms, 1.5s or 10us", std::begin(kDurations), std::end(kDurations));
    if (!value) return propagate(value);
    if (*value > 1e17) return fail(ErrorCode::kInvalidArgument, "'{}' is too long a time: at most 1e8 s", text);
    return Duration::from_nanoseconds(std::llround(*value));
}

Result<double> parse_probability(std::string_view text) {
    auto value = parse_with_suffix(text, "probability", "1e-4, 0.01 or 1%", std::begin(kProbabilities),
                                   std::end(kProbabilities));
    if (!value) return propagate(value);
    if (*value > 1)
        return fail(ErrorCode::kInvalidArgument, "'{}' is above 1: a probability lies between 0 and 1", text);
    return *value;
}

std::string format_size(std::uint64_t bytes) {
    static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
    if (unit == 0) return fmt::format("{} B", bytes);
    return fmt::format("{:.{}f} {}", value, value == std::floor(value) ? 0 : 2, kUnits[unit]);
}

std::string format_rate(double bits_per_second) {
    static constexpr const char* kUnits[] = {"bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"};
    std::size_t unit = 0;
    while (bits_per_second >= 1000 && unit + 1 < std::size(kUnits)) bits_per_second /= 1000, ++unit;
    return fmt::format("{:.4g} {}", bits_per_second, kUnits[unit]);
}

std::string format_duration(Duration d) {
    const double ns = static_cast<double>(d.nanoseconds());
    const double magnitude = std::fabs(ns);
    if (magnitude < 1e3) return fmt::format("{:.0f} ns", ns);
    if (magnitude < 1e6) return fmt::format("{:.4g} us", ns / 1e3);
    if (magnitude < 1e9) return fmt::format("{:.4g} ms", ns / 1e6);
    if (magnitude < 600e9) return fmt::format("{:.4g} s", ns / 1e9);
    if (magnitude < 36000e9) return fmt::format("{:.1f} min", ns / 60e9);
    return fmt::format("{:.1f} h", ns / 3600e9);
}

}  // namespace farhaul
