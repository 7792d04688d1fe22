#include "plan/tail_plan.hpp"

#include <algorithm>
#include <cmath>

namespace farhaul::plan {
namespace {

// What a sender who knows nothing spends on a tail of so many packets.
std::uint32_t cautious_packets(std::uint32_t coded) {
    if (coded <= 32) return std::max(2u, (coded * 12 + 31) / 32);
    if (coded < 256) return 12 + (coded - 32) * 13 / 224;
    return static_cast<std::uint32_t>(coded * 0.0985);
}

}  // namespace

TailPlan cautious_tail(const TailLayout& layout) {
    TailPlan plan;
    if (layout.blocks == 0) return plan;
    std::uint32_t packets = cautious_packets(layout.coded);
    if (layout.groups > 0 && layout.column_packets() + layout.blocks <= packets) {
        plan.columns = true;
        packets -= layout.column_packets();
    }
    plan.rows = std::min(layout.most_rows, packets / layout.blocks);
    return plan;
}

TailPlan informed_tail(const TailLayout& layout, const PacketLoss& loss) {
    TailPlan plan;
    const double blocks = layout.blocks;
    const std::uint32_t k = layout.largest();
    // Bursts are dealt out over the blocks; what one block gets of them is less bursty by their number.
    const PacketLoss of_block{loss.probability, std::max(1.0, loss.mean_burst_packets / blocks)};
    auto rows = parity_needed(k, of_block, kTailFailure / blocks, layout.most_rows);
    if (rows && loss.mean_burst_packets > 1) {
        // All losses of the message together, dealt out evenly, are a lower bound.
        const auto losses = static_cast<double>(losses_exceeded_with(loss, layout.coded * 1.1, kTailFailure));
        rows = std::max(*rows, static_cast<unsigned>(std::ceil(losses / blocks)));
    }
    plan.rows = std::min(rows.value_or(layout.most_rows), layout.most_rows);
    if (layout.groups == 0) return plan;
    // With columns a block needs about as many rows as half of what it loses on average, and at least a few.
    TailPlan product{.rows = 0, .columns = true};
    const double lost = loss.probability * (k + 8);
    product.rows = std::min(layout.most_rows, static_cast<std::uint32_t>(std::ceil(std::max(4.0, lost * 0.7))));
    return !rows || product.packets(layout) < plan.packets(layout) ? product : plan;
}

}  // namespace farhaul::plan
