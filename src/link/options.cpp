#include "link/options.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace farhaul::link {

Result<Reorder> parse_reorder(std::string_view text) {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos)
        return fail(ErrorCode::kInvalidArgument, "'{}' is not SHARE:DELAY: write it like 0.01:5ms", text);
    auto share = parse_probability(text.substr(0, colon));
    if (!share) return propagate(share);
    auto delay = parse_duration(text.substr(colon + 1));
    if (!delay) return propagate(delay);
    if (*share > 0 && *delay == Duration())
        return fail(ErrorCode::kInvalidArgument,
                    "'{}' reorders by a delay of 0: give the longest delay, as in 0.01:5ms", text);
    return Reorder{*share, *delay};
}

Result<double> parse_burst(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || !(value >= 1 && value <= 1e12))
        return fail(ErrorCode::kInvalidArgument,
                    "'{}' is not a mean burst length: it is a number of packets, at least 1", text);
    return value;
}

std::uint64_t default_queue_bytes(BitRate rate, Duration round_trip) {
    if (rate.unlimited()) return 0;
    return std::max<std::uint64_t>(rate.bytes_in(round_trip), 1u << 20);
}

}  // namespace farhaul::link
