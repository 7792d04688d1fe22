// How often chunks, blocks and messages fail, given how often packets are lost. Sums are taken over the tail and in
// logarithms where the result is small: a block failure rate of 1e-39 has the same relative accuracy as one of 0.1.
//
// Say which loss is meant: `packet` loss is what links do; a chunk of N packets is lost when one of them is.
#pragma once

#include <cstdint>
#include <optional>

namespace farhaul::plan {

/// Loss of packets: independent when mean_burst_packets <= 1, else Gilbert-Elliott with a bad state that loses
/// everything and has a geometric length with this mean, entered so that the average loss is `probability`.
struct PacketLoss {
    double probability = 0;  ///< 0 .. 1
    double mean_burst_packets = 1;
};

/// Probability that one of `packets` is lost: 1 - (1-p)^packets. In bursts, fewer chunks are hit.
double chunk_loss(const PacketLoss& loss, std::uint64_t packets);

/// P(more than m of k+m independent chunks are lost, each with probability p): an MDS block fails.
double mds_failure(unsigned k, unsigned m, double p);
/// P(some group of an XOR block loses two of its chunks). Groups as in erasure::Code: data j belongs to parity j mod m.
double xor_failure(unsigned k, unsigned m, double p);
/// P(one of `blocks` independent blocks fails).
double any_failure(double block_failure, double blocks);

/// The smallest c with P(losses among `packets` packets > c) <= tail: bursts arrive at random (Poisson), each with a
/// geometric number of losses. `tail` in (0, 1). What a sender needs to know to choose how much parity covers a window
/// of packets.
std::uint64_t losses_exceeded_with(const PacketLoss& loss, double packets, double tail);

/// The fewest parity chunks by which an MDS block of k chunks fails with at most `tail`, the parity itself being lost
/// as well; nothing when that takes more than `most`. Losses as above, one packet per chunk, the whole block hit by the
/// same burst.
std::optional<unsigned> parity_needed(unsigned k, const PacketLoss& loss, double tail, unsigned most);

}  // namespace farhaul::plan
