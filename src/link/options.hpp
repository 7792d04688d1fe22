// Options of a link that several commands take in the same form.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.hpp"
#include "base/units.hpp"

namespace farhaul::link {

struct Reorder {
    double probability = 0;
    Duration delay;
};

/// `P:D`: a share P of the packets is delayed by up to D, as in `0.01:5ms`. D must be above 0 unless P is 0.
Result<Reorder> parse_reorder(std::string_view text);
/// Mean length of a loss burst in packets: a number from 1 to 1e12; 1 means independent losses.
Result<double> parse_burst(std::string_view text);
/// The queue that a link has when none is given: one bandwidth-delay product, at least 1 MiB; 0 (unlimited) on an
/// infinitely fast line.
std::uint64_t default_queue_bytes(BitRate rate, Duration round_trip);

}  // namespace farhaul::link
