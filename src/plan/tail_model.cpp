#include "plan/tail_model.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.hpp"
#include "plan/simulate.hpp"

namespace farhaul::plan {
namespace {

// Packets that a message of the default layout can have; longer Writes are several messages, whose tails add up.
constexpr std::uint32_t kMostPackets = 1u << 18;
// Reordering window and acknowledgement interval beyond the round trip, in round trips.
constexpr double kDetection = 1.0 / 16 + 1.0 / 64;
constexpr std::size_t kDraws = 4000;

// P(every block has all it needs after r rows), r = 0 .. rows.
std::vector<double> solved_after(const TailLayout& layout, std::uint32_t rows, double loss) {
    std::vector<double> solved(rows + 1);
    for (std::uint32_t r = 0; r <= rows; ++r)
        solved[r] = 1 - any_failure(mds_failure(layout.largest(), r, loss), layout.blocks);
    return solved;
}

std::vector<double> drawn_solved_after(const TailLayout& layout, std::uint32_t rows, const PacketLoss& loss,
                                       std::uint64_t seed) {
    Random random(seed);
    std::vector<double> solved(rows + 1, 0);
    std::vector<std::int32_t> lost(layout.blocks);
    for (std::size_t draw = 0; draw < kDraws; ++draw) {
        std::ranges::fill(lost, 0);
        LossSequence losses(loss, random);
        const std::uint64_t parity = std::uint64_t{rows} * layout.blocks;
        std::vector<std::uint64_t> lost_rows;
        for (std::uint64_t at = losses.next(0); at < layout.coded + parity; at = losses.next(at + 1)) {
            if (at < layout.coded)
                ++lost[at % layout.blocks];
            else
                lost_rows.push_back(at - layout.coded);
        }
        std::uint32_t r = 0;
        for (auto next = lost_rows.begin(); r < rows && std::ranges::any_of(lost, [](auto n) { return n > 0; }); ++r) {
            for (auto& n : lost) --n;
            for (; next != lost_rows.end() && *next < std::uint64_t{r + 1} * layout.blocks; ++next)
                ++lost[*next % layout.blocks];
        }
        if (std::ranges::none_of(lost, [](auto n) { return n > 0; }))
            for (; r <= rows; ++r) solved[r] += 1.0 / kDraws;
    }
    return solved;
}

}  // namespace

TailModel::Result TailModel::predict(std::uint64_t seed) const {
    const double p = loss.probability;
    const double in_flight = rtt * (1 + kDetection) / injection;
    const auto coded = static_cast<std::uint32_t>(
        std::min({static_cast<double>(packets), in_flight + 1, static_cast<double>(kMostPackets)}));
    const TailLayout layout = TailLayout::make(coded, coded, kMostPackets / 2);
    const TailPlan plan = informed_tail(layout, loss);
    const bool bursts = loss.mean_burst_packets > 1 && p > 0;
    const auto solved = bursts ? drawn_solved_after(layout, plan.rows, loss, seed) : solved_after(layout, plan.rows, p);

    Result result;
    result.rows = plan.rows;
    result.columns = plan.columns;
    result.parity_packets = plan.packets(layout);
    const double early = static_cast<double>(packets - coded);
    result.resent_packets = early * p / (1 - p);
    const double base = (static_cast<double>(packets) + result.resent_packets) * injection + rtt;
    const double row = layout.blocks * injection;
    const double all = base + result.parity_packets * injection;
    const double rest = 1 - solved.back();
    result.failure = plan.columns ? std::min(rest, kTailFailure) : rest;
    const double again = all + rtt * (1 + kDetection);
    double before = 0;
    bool found = false;
    const auto outcome = [&](double until, double time) {
        result.mean += (until - before) * time;
        if (!found && until >= 0.999) result.p999 = time, found = true;
        before = std::max(before, until);
    };
    for (std::uint32_t r = 0; r <= plan.rows; ++r) outcome(solved[r], base + r * row);
    if (plan.columns) outcome(1 - result.failure, all);
    outcome(1, again);
    result.resent_packets += result.failure * coded * p;
    return result;
}

}  // namespace farhaul::plan
