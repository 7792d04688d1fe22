// Completion times by drawing the losses of packets: what the closed forms cannot do, bursts, and a check of what they
// can. The same timing as in completion.hpp; packets are lost one after the other in the order in which they are sent,
// retransmissions of one round in a row.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.hpp"
#include "plan/loss.hpp"

namespace farhaul::plan {

struct SimulatedTransfer {
    std::uint64_t chunks = 1;  ///< M
    std::uint64_t packets_per_chunk = 1;
    double injection = 0;  ///< of one chunk, seconds
    double timeout = 0;    ///< RTO, seconds
    double rtt = 0;        ///< seconds
    PacketLoss loss = {};
    // Coding; m = 0: none.
    unsigned k = 0, m = 0;
    bool exclusive_or = false;
    bool interleaved = true;  ///< consecutive chunks belong to different blocks, so that a burst hits many blocks once
    double fallback = 0;      ///< beta * rtt, seconds
};

struct Sample {
    double seconds;
    double resent_chunks;
};

/// One transfer. Costs time in proportion to the losses, not to the packets.
Sample simulate(const SimulatedTransfer& transfer, Random& random);

/// Where losses fall in a run of packets: the next one, drawn ahead.
class LossSequence {
 public:
    LossSequence(const PacketLoss& loss, Random& random);
    /// The first lost packet with number >= from; calls must not go back. Far beyond any message when there is none.
    std::uint64_t next(std::uint64_t from);

 private:
    void draw_gap(std::uint64_t from);

    Random& random_;
    double continue_;                    // probability that a burst goes on
    double enter_;                       // probability that a burst begins at a packet after one that passed
    std::uint64_t begin_ = 0, end_ = 0;  // of the current burst, which is ahead or reaches behind what was asked for
};

}  // namespace farhaul::plan
