#include "reliable/loss_estimate.hpp"

#include <algorithm>
#include <cmath>

namespace farhaul::reliable {
namespace {

constexpr double kFailure = 1e-4;  // of a message that is planned for
// Least loss that is planned for: nothing counted so far proves less.
constexpr double kLeastLoss = 1e-7;
constexpr double kUnknownLoss = 0.05;
constexpr double kStepsPerOctave = 8;
constexpr std::size_t kMostPlans = 4096;

// What a sender who knows nothing spends on a tail of so many packets.
std::uint32_t cautious_packets(std::uint32_t coded) {
    if (coded <= 32) return std::max(2u, (coded * 12 + 31) / 32);
    if (coded < 256) return 12 + (coded - 32) * 13 / 224;
    return static_cast<std::uint32_t>(coded * 0.0985);
}

}  // namespace

void LossEstimate::add_sent(std::uint64_t packets) {
    const double count = static_cast<double>(packets);
    for (Memory* memory : {&quick_, &slow_}) {
        const double kept = memory->packets / (memory->packets + count);
        memory->sent = memory->sent * kept + count;
        memory->lost *= kept;
        memory->bursts *= kept;
    }
}

void LossEstimate::add_lost(std::uint64_t packets, std::uint64_t bursts) {
    for (Memory* memory : {&quick_, &slow_}) {
        memory->lost += static_cast<double>(packets);
        memory->bursts += static_cast<double>(bursts);
    }
}

void LossEstimate::take_back_lost(std::uint64_t packets) {
    for (Memory* memory : {&quick_, &slow_}) {
        const double left = std::max(0.0, memory->lost - static_cast<double>(packets));
        if (memory->lost > 0) memory->bursts *= left / memory->lost;
        memory->lost = left;
    }
}

double LossEstimate::Memory::upper(double burst, double deviations) const {
    const double events = lost / burst;
    return (events + deviations * std::sqrt(events) + 3) * burst / std::max(sent, 1.0);
}

double LossEstimate::burst() const {
    if (slow_.bursts < 1) return 1;
    // Independent losses have neighbours too: one in 1 / (1 - p) of them.
    const double length = slow_.lost / slow_.bursts * (1 - std::min(0.5, slow_.lost / std::max(slow_.sent, 1.0)));
    return length < 1.15 ? 1 : length;
}

double LossEstimate::mean() const {
    return std::min(0.95, std::max(quick_.lost / std::max(quick_.sent, 1.0), slow_.lost / std::max(slow_.sent, 1.0)));
}

double LossEstimate::upper() const {
    if (slow_.sent < 1) return kUnknownLoss;
    const double length = burst();
    return std::min(0.95, std::max(quick_.upper(length, 2), slow_.upper(length, 3)));
}

TailPlan TailPlanner::cautious(const TailLayout& layout) {
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

TailPlan TailPlanner::informed(const TailLayout& layout, const plan::PacketLoss& loss) {
    TailPlan plan;
    const double blocks = layout.blocks;
    const std::uint32_t k = layout.largest();
    // Bursts are dealt out over the blocks; what one block gets of them is less bursty by their number.
    const plan::PacketLoss of_block{loss.probability, std::max(1.0, loss.mean_burst_packets / blocks)};
    auto rows = plan::parity_needed(k, of_block, kFailure / blocks, layout.most_rows);
    if (rows && loss.mean_burst_packets > 1) {
        // All losses of the message together, dealt out evenly, are a lower bound.
        const auto losses = static_cast<double>(plan::losses_exceeded_with(loss, layout.coded * 1.1, kFailure));
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

TailPlan TailPlanner::plan(const TailLayout& layout, const LossEstimate& estimate) {
    if (layout.blocks == 0) return {};
    const plan::PacketLoss loss{estimate.known() ? estimate.upper() : estimate.mean(), estimate.burst()};
    const int loss_step =
        static_cast<int>(std::ceil(std::log2(std::max(loss.probability, kLeastLoss)) * kStepsPerOctave));
    const int burst_step = static_cast<int>(std::ceil(std::log2(loss.mean_burst_packets) * kStepsPerOctave));
    if (loss_step != loss_step_ || burst_step != burst_step_ || plans_.size() >= kMostPlans) {
        plans_.clear();
        loss_step_ = loss_step;
        burst_step_ = burst_step;
    }
    auto [entry, fresh] = plans_.try_emplace({layout.coded, layout.most_rows});
    if (fresh)
        entry->second = informed(
            layout, {std::min(0.95, std::exp2(loss_step / kStepsPerOctave)), std::exp2(burst_step / kStepsPerOctave)});
    TailPlan chosen = entry->second;
    if (!estimate.known()) {
        const TailPlan least = cautious(layout);
        if (least.packets(layout) > chosen.packets(layout)) chosen = least;
    }
    return chosen;
}

std::uint32_t TailPlanner::copies(double packets, const LossEstimate& estimate) {
    const double loss = std::max(estimate.upper(), kLeastLoss);
    const double needed = std::log(kFailure / std::max(packets, 1.0)) / std::log(loss);
    return static_cast<std::uint32_t>(std::clamp(std::ceil(needed), 1.0, 4.0));
}

}  // namespace farhaul::reliable
