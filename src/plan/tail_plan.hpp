// How much parity a tail gets: what a sender does who knows nothing of the path's losses, and what follows from them.
#pragma once

#include <cstdint>

#include "plan/loss.hpp"
#include "plan/tail_layout.hpp"

namespace farhaul::plan {

/// A message that is planned for stays unrepaired with this probability.
inline constexpr double kTailFailure = 1e-4;

/// Parity to send for a tail.
struct TailPlan {
    std::uint32_t rows = 0;
    bool columns = false;
    std::uint32_t packets(const TailLayout& layout) const {
        return rows * layout.blocks + (columns ? layout.column_packets() : 0);
    }
    bool operator==(const TailPlan&) const = default;
};

/// What a cautious sender spends: 9.8% of a large tail, 12 packets for one of 32, two at least.
TailPlan cautious_tail(const TailLayout& layout);
/// The least parity by which a tail stays unrepaired with at most kTailFailure, or all there is room for.
TailPlan informed_tail(const TailLayout& layout, const PacketLoss& loss);

}  // namespace farhaul::plan
