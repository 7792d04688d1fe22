#include "plan/simulate.hpp"

#include <algorithm>
#include <cmath>

namespace farhaul::plan {

namespace {

constexpr std::uint64_t kNone = std::uint64_t{1} << 61;

/// The chunks of a run of `chunks` that are lost, in order.
std::vector<std::uint64_t> lost_chunks(const SimulatedTransfer& transfer, std::uint64_t chunks, Random& random) {
    std::vector<std::uint64_t> lost;
    if (transfer.loss.probability <= 0) return lost;
    LossSequence losses(transfer.loss, random);
    const std::uint64_t packets = chunks * transfer.packets_per_chunk;
    for (std::uint64_t packet = losses.next(0); packet < packets;) {
        const std::uint64_t chunk = packet / transfer.packets_per_chunk;
        lost.push_back(chunk);
        packet = losses.next((chunk + 1) * transfer.packets_per_chunk);
    }
    return lost;
}

/// max X of selective repeat of `chunks` chunks; counts what is sent again.
double repeat(const SimulatedTransfer& transfer, std::uint64_t chunks, double& resent, Random& random) {
    double latest = static_cast<double>(chunks) * transfer.injection;
    std::vector<std::uint64_t> waiting = lost_chunks(transfer, chunks, random);
    // A loss of nearly everything would go on for ever: the time is then beyond any use.
    for (unsigned round = 1; !waiting.empty() && round < 10'000; ++round) {
        resent += static_cast<double>(waiting.size());
        // Chunk i goes out again at (i+1) * injection + round * (timeout + injection); the last of the round counts if
        // it arrives, and what does not is later in any case.
        const double last = static_cast<double>(waiting.back() + 1) * transfer.injection;
        latest = std::max(latest, last + round * (transfer.timeout + transfer.injection));
        std::vector<std::uint64_t> again;
        for (const std::uint64_t index : lost_chunks(transfer, waiting.size(), random)) again.push_back(waiting[index]);
        waiting = std::move(again);
    }
    return latest;
}

/// How many of the message's blocks fail.
std::uint64_t failed_blocks(const SimulatedTransfer& transfer, std::uint64_t blocks, Random& random) {
    const unsigned per_block = transfer.k + transfer.m;
    const std::vector<std::uint64_t> lost = lost_chunks(transfer, blocks * per_block, random);
    // Losses per (block, group), with MDS a block being one group; a block fails once, at the loss that is one too many
    // for a group.
    const unsigned groups = transfer.exclusive_or ? transfer.m : 1;
    const unsigned repairs = transfer.exclusive_or ? 1 : transfer.m;
    std::vector<std::uint8_t> losses(blocks * groups), has_failed(blocks);
    std::uint64_t failed = 0;
    for (const std::uint64_t chunk : lost) {
        const std::uint64_t block = transfer.interleaved ? chunk % blocks : chunk / per_block;
        const std::uint64_t index = transfer.interleaved ? chunk / blocks : chunk % per_block;
        std::uint64_t group = 0;
        if (transfer.exclusive_or) group = index < transfer.k ? index % transfer.m : index - transfer.k;
        if (++losses[block * groups + group] > repairs && !has_failed[block]) ++failed, has_failed[block] = 1;
    }
    return failed;
}

}  // namespace

LossSequence::LossSequence(const PacketLoss& loss, Random& random) : random_(random) {
    const double p = std::clamp(loss.probability, 0.0, 1.0);
    const double burst = std::max(loss.mean_burst_packets, 1.0);
    if (burst <= 1) {  // independent: the packet after a lost one is lost as easily as any
        continue_ = p;
        enter_ = p;
    } else {
        continue_ = 1 - 1 / burst;
        enter_ = p >= 1 ? 1 : std::min(p / (1 - p) / burst, 1.0);
    }
    // The run may begin within a burst.
    if (random_.chance(p)) {
        end_ = 1 + (continue_ >= 1 ? kNone : random_.geometric(1 - continue_));
    } else {
        draw_gap(1);
    }
}

// `from` is a packet after one that passed.
void LossSequence::draw_gap(std::uint64_t from) {
    begin_ = enter_ <= 0 ? kNone : std::min(kNone, from + random_.geometric(enter_));
    end_ = begin_ + 1 + (continue_ >= 1 ? kNone : random_.geometric(1 - continue_));
}

std::uint64_t LossSequence::next(std::uint64_t from) {
    while (end_ <= from && begin_ < kNone) draw_gap(end_ + 1);  // the packet at end_ passed
    return std::max(begin_, from);
}

Sample simulate(const SimulatedTransfer& transfer, Random& random) {
    double resent = 0;
    if (transfer.m == 0) {
        const double latest = repeat(transfer, transfer.chunks, resent, random);
        return {latest + transfer.rtt, resent};
    }
    const std::uint64_t blocks = (transfer.chunks + transfer.k - 1) / transfer.k;
    double seconds = static_cast<double>(transfer.chunks + blocks * transfer.m) * transfer.injection + transfer.rtt;
    if (const std::uint64_t failed = failed_blocks(transfer, blocks, random)) {
        const std::uint64_t chunks = std::min(failed * transfer.k, transfer.chunks);
        resent += static_cast<double>(chunks);
        seconds += transfer.fallback + repeat(transfer, chunks, resent, random) + transfer.rtt;
    }
    return {seconds, resent};
}

}  // namespace farhaul::plan
