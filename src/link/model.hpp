// What a path does to packets, one direction: rate, queue, propagation delay, loss, jitter, reordering, duplication,
// corruption.
//
// A pure function of (configuration, seed, the packets and their times): the simulated wire asks it in virtual time,
// link/realtime in real time, so that both see the very same link. In this order, a packet
//   1. is dropped when the queue before the line has no room for it (an idle line takes any packet);
//   2. occupies the line for (bytes + overhead) / rate;
//   3. is lost when the link is down or the loss process says so;
//   4. arrives after the propagation delay, plus jitter that keeps order, plus, for some, a delay that does not.
// Every random decision has a stream of its own (loss, jitter, reordering, duplication, corruption): turning one on
// changes no other. Loss is drawn as the number of packets until the next one, so that a packet which is not lost costs
// no random number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "base/random.hpp"
#include "base/result.hpp"
#include "base/serializer.hpp"
#include "base/uint128.hpp"
#include "base/units.hpp"

namespace farhaul::link {

/// Loss of packets. With mean_burst_packets <= 1: independent with probability `probability`. Otherwise
/// Gilbert-Elliott: a bad state in which every packet is lost, of geometric length with that mean, entered so that the
/// average loss is `probability`. A state lasts for packets, not for time, unless LinkConfig::burst_outlives_idle is
/// limited. Good states have at least one packet, so bursts of mean L cannot lose more than L /
/// (L + 1) on average (but probability 1 loses everything).
struct Loss {
    double probability = 0;
    double mean_burst_packets = 1;  ///< in a LinkChange, 0 keeps the burst length of before
};

struct LinkConfig {
    BitRate rate{};                 ///< 0 = infinite
    Duration delay{};               ///< propagation, one way
    std::uint64_t queue_bytes = 0;  ///< drop-tail queue before the line, counting what is not sent yet; 0 = unlimited
    Loss loss{};
    /// A line that was idle for longer starts in a state of its own again: what caused a burst has gone by then, and an
    /// endpoint that is reduced to a probe now and then does not meet the same burst for seconds.
    Duration burst_outlives_idle = Duration::from_nanoseconds(std::numeric_limits<std::int64_t>::max());
    /// Loss is decided per group of this many consecutive packets of a message (a chunk), not per packet: `sdr sim
    /// --loss-unit chunk`.
    bool loss_per_group = false;
    Duration jitter{};  ///< added delay, uniform in [0, jitter]; order is kept
    double reorder_probability =
        0;                     ///< share of packets that are delayed by up to reorder_delay, overtaken by later ones
    Duration reorder_delay{};  ///< uniform in (0, reorder_delay]
    double duplicate_probability = 0;  ///< the copy arrives right behind
    double corrupt_probability = 0;    ///< a bit of the packet (and of its copy) is flipped on the way
    std::uint32_t overhead_bytes = 0;  ///< added to each packet's size on the line
};

/// At `at` after the start (TimePoint 0 of the caller's clock), these fields of the configuration change for packets
/// offered from then on.
struct LinkChange {
    Duration at{};
    std::optional<Loss> loss{};
    std::optional<BitRate> rate{};
    std::optional<Duration> delay{};
    std::optional<bool> up{};  ///< false: everything is lost
};

enum class DropReason : std::uint8_t { kNone, kQueueFull, kLoss, kLinkDown };

/// The fate of one packet.
struct Fate {
    DropReason dropped = DropReason::kNone;
    bool duplicated = false;
    bool corrupted = false;
    bool in_order = true;  ///< false when its delay lets later packets overtake it
    TimePoint
        departs;  ///< last bit on the line (also of lost packets: they use the line; not of those dropped by the queue)
    TimePoint arrives;       ///< when not dropped
    TimePoint copy_arrives;  ///< when duplicated; not before `arrives`
};

struct LinkCounters {
    std::uint64_t offered_packets = 0, offered_bytes = 0;
    std::uint64_t delivered_packets = 0, delivered_bytes = 0;  ///< without copies
    std::uint64_t dropped_queue = 0, dropped_loss = 0, dropped_down = 0;
    std::uint64_t duplicated = 0, corrupted = 0, reordered = 0;
};

class LinkModel {
 public:
    /// Fails when a probability is outside [0, 1], a duration is negative, a burst length cannot give its loss, or
    /// times of changes are negative. The schedule need not be sorted.
    static Result<LinkModel> create(const LinkConfig& config, std::vector<LinkChange> schedule, std::uint64_t seed);

    /// The fate of a packet of `bytes` offered at `now` (never before an earlier call's). `group` names its chunk when
    /// loss_per_group is set: a packet with the same group as the one before shares its fate of loss.
    Fate offer(TimePoint now, std::uint32_t bytes, std::uint64_t group = 0) {
        Fate fate;
        if (now >= next_change_at_) [[unlikely]]
            apply_schedule(now);
        ++counters_.offered_packets;
        counters_.offered_bytes += bytes;
        if (config_.queue_bytes != 0 && !queue_has_room(now, bytes)) {
            ++counters_.dropped_queue;
            fate.dropped = DropReason::kQueueFull;
            return fate;
        }
        fate.departs = line_.send(now, std::uint64_t{bytes} + config_.overhead_bytes);
        if (!up_) [[unlikely]] {
            ++counters_.dropped_down;
            fate.dropped = DropReason::kLinkDown;
            return fate;
        }
        if (bursty_) {
            if (now - last_offered_ > config_.burst_outlives_idle) [[unlikely]]
                start_loss(config_.loss);
            last_offered_ = now;
        }
        if (config_.loss_per_group ? group_is_lost(group) : next_is_lost()) [[unlikely]] {
            ++counters_.dropped_loss;
            fate.dropped = DropReason::kLoss;
            return fate;
        }
        fate.arrives = fate.departs + config_.delay;
        if (has_extras_) [[unlikely]]
            apply_extras(fate);
        if (fate.in_order) {
            // Also after a scheduled cut of the delay: nothing overtakes but what is meant to.
            if (fate.arrives < last_in_order_arrival_) fate.arrives = last_in_order_arrival_;
            last_in_order_arrival_ = fate.arrives;
        }
        if (fate.duplicated) fate.copy_arrives = fate.arrives;
        ++counters_.delivered_packets;
        counters_.delivered_bytes += bytes;
        return fate;
    }
    /// Time until a packet offered now would start on the line: the queue ahead of it.
    Duration backlog(TimePoint now) const { return line_.idle_at() > now ? line_.idle_at() - now : Duration(); }
    /// The configuration in force, after the changes so far.
    const LinkConfig& config() const { return config_; }
    const LinkCounters& counters() const { return counters_; }

 private:
    LinkModel(const LinkConfig& config, std::vector<LinkChange> schedule, std::uint64_t seed);
    void apply_schedule(TimePoint now);
    void start_loss(const Loss& loss);
    bool lose_and_draw();
    void apply_extras(Fate& fate);
    bool queue_has_room_after_rate_change(TimePoint now, std::uint64_t bytes) const;

    bool next_is_lost() {
        if (packets_until_loss_ != 0) [[likely]] {
            --packets_until_loss_;
            return false;
        }
        return lose_and_draw();
    }
    bool group_is_lost(std::uint64_t group) {
        if (!has_last_group_ || group != last_group_) {
            has_last_group_ = true;
            last_group_ = group;
            last_group_lost_ = next_is_lost();
        }
        return last_group_lost_;
    }
    bool queue_has_room(TimePoint now, std::uint64_t bytes) const {
        if (line_.idle_at() <= now) return true;
        if (now < carried_until_) [[unlikely]]
            return queue_has_room_after_rate_change(now, bytes);
        const auto backlog_ns = static_cast<std::uint64_t>((line_.idle_at() - now).nanoseconds());
        // Both sides in bits * 1e9: bytes not sent yet + this packet <= the queue's size.
        return static_cast<Uint128>(backlog_ns) * config_.rate.bits_per_second() +
                   static_cast<Uint128>(bytes + config_.overhead_bytes) * 8'000'000'000ull <=
               queue_bits_e9_;
    }

    LinkConfig config_;
    std::vector<LinkChange> schedule_;
    std::size_t next_change_ = 0;
    TimePoint next_change_at_ = TimePoint::never();
    Serializer line_;
    Random loss_random_, jitter_random_, reorder_random_, duplicate_random_, corrupt_random_;
    Uint128 queue_bits_e9_ = 0;
    std::uint64_t packets_until_loss_ = 0;  // drawn ahead: one draw per loss, not per packet
    std::uint64_t burst_left_ = 0;  // lost packets until the bad state ends, from the moment packets_until_loss_ is 0
    bool bursty_ = false;
    TimePoint last_offered_;
    double good_scale_ = 0, bad_scale_ = 0;  // 1 / log(1 - leaving probability) of the two states
    bool has_last_group_ = false;
    std::uint64_t last_group_ = 0;
    bool last_group_lost_ = false;
    bool up_ = true;
    bool has_extras_ = false;  // any of jitter, reordering, duplication, corruption
    // A backlog that was queued before the rate changed leaves at its old rate, until `carried_until_`.
    TimePoint carried_until_;
    double carried_bytes_per_ns_ = 0;
    TimePoint last_in_order_arrival_;
    LinkCounters counters_;
};

/// Changes over time, as `sdr link --schedule` takes them: a list of WHAT@TIME separated by commas, in any order, WHAT
/// one of `loss=P` (the burst length stays), `loss=P/L` (mean burst of L packets), `rate=R`, `delay=D` (one way),
/// `down`, `up`: `loss=1e-2@3s,rate=500M@5s,down@7s,up@8s`. An empty text is an empty schedule.
Result<std::vector<LinkChange>> parse_schedule(std::string_view text);

}  // namespace farhaul::link
