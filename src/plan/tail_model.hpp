// Completion times of `auto` (the protocol is told in reliable/writer.hpp): data, then rows of parity until every block
// has as many as it lost, then a round trip.
#pragma once

#include <cstdint>

#include "plan/loss.hpp"
#include "plan/tail_plan.hpp"

namespace farhaul::plan {

struct TailModel {
    std::uint64_t packets = 1;  ///< of the message
    double injection = 0;       ///< of one packet, seconds
    double rtt = 0;             ///< seconds
    PacketLoss loss = {};

    struct Result {
        double mean = 0, p999 = 0;  ///< seconds
        double parity_packets = 0;  ///< sent in any case
        double resent_packets = 0;  ///< expected
        double failure = 0;         ///< of parity: probability that a repair takes another round trip
        std::uint32_t rows = 0;
        bool columns = false;
    };
    /// As an established connection that knows `loss` sends it. Independent losses are summed exactly but for the
    /// columns, which count as enough; bursts are drawn with `seed`.
    Result predict(std::uint64_t seed) const;
};

}  // namespace farhaul::plan
