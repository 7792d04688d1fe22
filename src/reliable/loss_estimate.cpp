#include "reliable/loss_estimate.hpp"

#include <algorithm>
#include <cmath>

namespace farhaul::reliable {
namespace {

// Least loss that is planned for: nothing counted so far proves less.
constexpr double kLeastLoss = 1e-7;
constexpr double kUnknownLoss = 0.05;
constexpr double kStepsPerOctave = 8;
constexpr std::size_t kMostPlans = 4096;

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
        entry->second = plan::informed_tail(
            layout, {std::min(0.95, std::exp2(loss_step / kStepsPerOctave)), std::exp2(burst_step / kStepsPerOctave)});
    TailPlan chosen = entry->second;
    if (!estimate.known()) {
        const TailPlan least = plan::cautious_tail(layout);
        if (least.packets(layout) > chosen.packets(layout)) chosen = least;
    }
    return chosen;
}

std::uint32_t TailPlanner::copies(double packets, const LossEstimate& estimate) {
    const double loss = std::max(estimate.upper(), kLeastLoss);
    const double needed = std::log(plan::kTailFailure / std::max(packets, 1.0)) / std::log(loss);
    return static_cast<std::uint32_t>(std::clamp(std::ceil(needed), 1.0, 4.0));
}

}  // namespace farhaul::reliable
