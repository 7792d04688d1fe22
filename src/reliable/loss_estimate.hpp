// What a connection knows of its path's losses, and how much parity follows from that.
//
// Counted are packets sent for the first time: those known to have arrived or to have been rebuilt, and among them
// those lost (asked for again by the receiver, or rebuilt from parity). Two memories fade at different paces, a few ten
// thousand packets and a million: the quick one notices when a path turns bad, the slow one gives small rates. The rate
// used is the larger of their upper bounds (two and three standard deviations of a Poisson count of bursts).
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "plan/loss.hpp"
#include "plan/tail_plan.hpp"

namespace farhaul::reliable {

using plan::TailLayout;
using plan::TailPlan;

class LossEstimate {
 public:
    void add_sent(std::uint64_t packets);
    /// `packets` lost in `bursts` runs of neighbours.
    void add_lost(std::uint64_t packets, std::uint64_t bursts);
    /// A packet that counted as lost had only been late.
    void take_back_lost(std::uint64_t packets);

    /// Enough was sent to trust the estimate; before, be cautious.
    bool known() const { return slow_.sent >= kEnough; }
    /// Upper bound of the loss probability, 0 .. 1; before anything is known a pessimistic guess.
    double upper() const;
    /// The plain quotient, 0 before anything is known.
    double mean() const;
    /// Mean length of a burst, at least 1.
    double burst() const;

 private:
    struct Memory {
        double packets;  // after which it has faded to 1/e
        double sent = 0, lost = 0, bursts = 0;
        double upper(double burst, double deviations) const;
    };
    static constexpr double kEnough = 50'000;
    Memory quick_{32'768}, slow_{1'048'576};
};

/// Chooses the parity of tails. One per connection.
class TailPlanner {
 public:
    /// With little knowledge: what a cautious sender spends, 9.8% of a large message, 12 packets for one of 32, or more
    /// if losses so far ask for it. With knowledge: the least that leaves a message unrepaired with a probability of
    /// 1e-4.
    TailPlan plan(const TailLayout& layout, const LossEstimate& estimate);
    /// How often a repair is sent at once so that of `packets` repairs all arrive with probability 1 - 1e-4: 1 .. 4.
    static std::uint32_t copies(double packets, const LossEstimate& estimate);

 private:
    int loss_step_ = 0, burst_step_ = 0;                                 // the logarithmic steps for which plans_ holds
    std::map<std::pair<std::uint32_t, std::uint32_t>, TailPlan> plans_;  // by packets coded and most_rows
};

}  // namespace farhaul::reliable
