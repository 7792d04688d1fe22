// What a path does to packets, one direction: rate, queue, propagation delay, loss, jitter, reordering, duplication, corruption.
//
// A pure function of (configuration, seed, the packets and their times): the simulated wire asks it in virtual time, link/realtime in real
// time, so that both see the very same link.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/random.hpp"
#include "base/result.hpp"
#include "base/serializer.hpp"
#include "base/units.hpp"

namespace farhaul::link {

/// Loss of packets. With mean_burst_packets <= 1: independent with probability `probability`. Otherwise Gilbert-Elliott: a bad state in which
/// every packet is lost, of geometric length with that mean, entered so that the average loss is `probability`.
struct Loss {
    double probability = 0;
    double mean_burst_packets = 1;
};

struct LinkConfig {
    BitRate rate;                       ///< 0 = infinite
    Duration delay;                     ///< propagation, one way
    std::uint64_t queue_bytes = 0;      ///< drop-tail queue before the line; 0 = unlimited
    Loss loss;
    /// Loss is decided per group of this many consecutive packets of a message (a chunk), not per packet: `sdr sim --loss-unit chunk`.
    bool loss_per_group = false;
    Duration jitter;                    ///< added delay, uniform in [0, jitter]; order is kept
    double reorder_probability = 0;     ///< share of packets that are delayed by up to reorder_delay, overtaken by later ones
    Duration reorder_delay;             ///< uniform in (0, reorder_delay]
    double duplicate_probability = 0;   ///< the copy arrives right behind
    double corrupt_probability = 0;     ///< a bit of the packet is flipped on the way
    std::uint32_t overhead_bytes = 0;   ///< added to each packet's size on the line
};

/// At `at` after the start, these fields of the configuration change.
struct LinkChange {
    Duration at;
    std::optional<Loss> loss;
    std::optional<BitRate> rate;
    std::optional<Duration> delay;
    std::optional<bool> up;             ///< false: everything is lost
};

enum class DropReason : std::uint8_t { kNone, kQueueFull, kLoss, kLinkDown };

/// The fate of one packet.
struct Fate {
    DropReason dropped = DropReason::kNone;
    bool duplicated = false;
    bool corrupted = false;
    bool in_order = true;     ///< false when its delay lets later packets overtake it
    TimePoint departs;        ///< last bit on the line (also of lost packets: they use the line; not of those dropped by the queue)
    TimePoint arrives;        ///< when not dropped
    TimePoint copy_arrives;   ///< when duplicated
};

struct LinkCounters {
    std::uint64_t offered_packets = 0, offered_bytes = 0;
    std::uint64_t delivered_packets = 0, delivered_bytes = 0;  ///< without copies
    std::uint64_t dropped_queue = 0, dropped_loss = 0, dropped_down = 0;
    std::uint64_t duplicated = 0, corrupted = 0, reordered = 0;
};

class LinkModel {
   public:
    static Result<LinkModel> create(const LinkConfig& config, std::vector<LinkChange> schedule, std::uint64_t seed);

    /// The fate of a packet of `bytes` offered at `now` (never before an earlier call's). `group` names its chunk when loss_per_group is
    /// set: a packet with the same group as the one before shares its fate of loss.
    Fate offer(TimePoint now, std::uint32_t bytes, std::uint64_t group = 0);
    /// Time until a packet offered now would start on the line: the queue ahead of it.
    Duration backlog(TimePoint now) const;
    const LinkConfig& config() const { return config_; }
    const LinkCounters& counters() const { return counters_; }

   private:
    LinkModel(const LinkConfig& config, std::vector<LinkChange> schedule, std::uint64_t seed);
    void apply_schedule(TimePoint now);
    bool draw_loss();

    LinkConfig config_;
    std::vector<LinkChange> schedule_;
    std::size_t next_change_ = 0;
    Serializer line_;
    Random loss_random_, delay_random_, fault_random_;
    std::uint64_t packets_until_loss_ = 0;  // drawn ahead: one draw per loss, not per packet
    std::uint64_t burst_left_ = 0;
    std::uint64_t last_group_ = ~0ull;
    bool last_group_lost_ = false;
    bool up_ = true;
    TimePoint last_in_order_arrival_;
    LinkCounters counters_;
};

/// `loss=1e-2@3s,rate=500M@5s,down@7s,up@8s`: changes over time, as `sdr link --schedule` takes them.
Result<std::vector<LinkChange>> parse_schedule(std::string_view text);

}  // namespace farhaul::link
