// The simulated wire: endpoints joined by link::LinkModel in virtual time, deterministic from one seed.
//
// Algorithm. A packet given to tx_burst() is offered to the link model at once, which tells its fate. If it survives,
// 32 bytes of metadata go into a ring ordered by arrival (packets that others may overtake go into a small heap). One
// timer per direction delivers: it hands over all packets that arrive within a coalescing window of the first, as a
// network card's interrupt moderation does, and fires when the last of them arrives. So the last packet of a message is
// never late, an earlier one by the window at most, and the price of an event is shared by up to 64 packets. Nothing is
// allocated per packet once the rings have grown.
//
// Transmit. The card's queue is short: tx_burst() stops taking packets when the line has about 2 us or 32 packets
// ahead, and on_writable() follows when half of that has drained. A long queue would make every retransmission wait
// behind it.
//
// Control datagrams take the same line behind at most that short queue, and share the link's loss, jitter, duplication
// and corruption.
//
// Corruption. A real wire's checksum finds a flipped bit and drops the packet; so does this one (counted) unless
// deliver_corrupt is set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/time.hpp"
#include "link/model.hpp"
#include "sdr/immediate.hpp"
#include "sdr/wire.hpp"
#include "wire/sim/sim_loop.hpp"

namespace farhaul::wire {

class SimWire;

/// One thing that happened on the link, for traces.
struct SimEvent {
    enum class Kind : std::uint8_t { kSend, kLost, kCorrupt, kDeliver, kSendDatagram, kLostDatagram, kDeliverDatagram };
    Kind kind;
    std::uint8_t endpoint;  ///< 0 or 1: the sender's for sends and losses, the receiver's for deliveries
    TimePoint at;           ///< sends and losses: when it was given to the card; deliveries: when it arrived
    TimePoint arrives;      ///< of sends: when it will
    std::uint32_t length;   ///< payload or datagram bytes
    std::uint32_t immediate;
    std::uint32_t generation;
};
const char* to_string(SimEvent::Kind kind);

/// A packet or datagram in flight, as a hook sees it after the link decided that it arrives.
struct SimInFlight {
    SimWire& sender;
    bool datagram;
    std::span<std::byte> bytes;  ///< payload (empty on a metadata-only wire) or datagram: may be written to
    std::uint32_t length;        ///< payload bytes; may be lowered
    std::uint32_t immediate;     ///< these may be changed
    std::uint32_t generation;
    Duration extra_delay;  ///< added to its arrival: later packets overtake it
    bool drop = false;
};

struct SimLinkConfig {
    link::LinkConfig forward;   ///< from the first endpoint to the second
    link::LinkConfig backward;  ///< from the second to the first
    std::vector<link::LinkChange> forward_schedule;
    std::vector<link::LinkChange> backward_schedule;
    sdr::WireLimits limits;         ///< concurrent_channels is ignored: one thread delivers everything
    bool lossless_control = false;  ///< datagrams are neither lost nor corrupted
    bool deliver_corrupt =
        false;  ///< hand over packets with a flipped bit instead of dropping them (payload mode only)

    Duration coalesce =
        Duration::from_microseconds(2);   ///< most that a packet waits for later ones; 0 delivers each at its time
    std::uint32_t coalesce_packets = 64;  ///< most packets per delivery, 1..64
    Duration tx_backlog = Duration::from_microseconds(2);  ///< the card's queue: stop at so much time on the line
    std::uint32_t tx_packets = 32;                         ///< or at so many packets
    /// Rate of the card when it is faster than the link, so that the link's own queue fills and drops. 0: the card is
    /// the link's line.
    BitRate card_rate;

    /// What a chunk is, for link::LinkConfig::loss_per_group.
    sdr::ImmediateLayout layout;
    std::uint32_t packets_per_chunk = 16;

    /// Called for each packet and datagram that will arrive; only when set.
    std::function<void(SimInFlight&)> hook;
    /// Called for each event; only when set.
    std::function<void(const SimEvent&)> observer;
    /// Folds every event into SimNetwork::trace_hash().
    bool hash_trace = false;
};

struct SimWireCounters {
    std::uint64_t packets_sent = 0, bytes_sent = 0;  ///< data given to the line, payload bytes
    std::uint64_t datagrams_sent = 0, datagram_bytes_sent = 0;
    std::uint64_t packets_lost = 0, datagrams_lost = 0;        ///< of those: by the link, whatever its reason
    std::uint64_t packets_corrupt = 0, datagrams_corrupt = 0;  ///< of those: found by the checksum
    std::uint64_t dropped_by_hook = 0;
    std::uint64_t packets_received = 0, bytes_received = 0, datagrams_received = 0;  ///< handed to the sink
    std::uint64_t deliveries = 0;                                                    ///< batches of data
    std::uint64_t foreign = 0;            ///< of an incarnation before restart(): dropped on arrival
    std::uint64_t undeliverable = 0;      ///< no sink, or this endpoint was killed
    std::uint64_t packets_refused = 0;    ///< longer than max_payload_bytes, or a channel that does not exist
    std::uint64_t datagrams_refused = 0;  ///< too large, the card was full, or this endpoint was killed or paused
    TimePoint first_packet_sent = TimePoint::never();  ///< when the first data packet's first bit went on the line
    TimePoint last_packet_sent;                        ///< when the last data packet's last bit left
};

/// One endpoint. Owned by its SimNetwork.
class SimWire final : public sdr::Wire {
 public:
    ~SimWire() override;
    const sdr::WireLimits& limits() const override;
    void attach(sdr::WireSink* sink) override;
    std::size_t tx_burst(std::span<const sdr::OutgoingPacket> packets) override;
    void send_datagram(std::span<const std::byte> datagram) override;

    const SimWireCounters& counters() const;
    /// The link from this endpoint to its peer.
    const link::LinkModel& link() const;
    SimWire& peer();
    /// Starts first_packet_sent and last_packet_sent anew.
    void reset_clock();

    // --- faults ---
    /// From now on this endpoint sends and hears nothing; its peer is not told. What it sent before still arrives.
    void kill();
    /// The endpoint's process stops: tx_burst() takes nothing and what arrives waits, as in a socket's buffer, until
    /// resume().
    void pause();
    void resume();
    /// The path reports `error` to this endpoint's sink (as ECONNREFUSED would), at once.
    void report_error(const Error& error);
    /// A new incarnation of the connection (a peer restarted and both made a new connection token): packets of the old
    /// one that are still in flight in either direction are dropped on arrival and counted as foreign. Revives killed
    /// endpoints.
    void restart();
    /// A packet that the peer never sent arrives here after `delay`: `payload` is copied (on a metadata-only wire just
    /// its size counts).
    void inject_packet(std::uint32_t immediate, std::uint32_t generation, std::span<const std::byte> payload,
                       std::uint32_t channel = 0, Duration delay = {});
    void inject_datagram(std::span<const std::byte> datagram, Duration delay = {});

 private:
    friend class SimNetwork;
    struct State;
    explicit SimWire(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

/// Owns links and their endpoints; any number on one loop. Must not outlive the loop, nor be destroyed from inside a
/// delivery.
class SimNetwork {
 public:
    explicit SimNetwork(SimLoop& loop);
    ~SimNetwork();
    SimNetwork(const SimNetwork&) = delete;
    SimNetwork& operator=(const SimNetwork&) = delete;

    /// Two endpoints and the link between them. Errors: kInvalidArgument naming the field.
    Result<std::pair<SimWire*, SimWire*>> connect(const SimLinkConfig& config, std::uint64_t seed);

    /// Over all events of links with hash_trace: equal when two runs did the same at the same times.
    std::uint64_t trace_hash() const { return trace_hash_; }

 private:
    friend class SimWire;
    struct Link;
    SimLoop& loop_;
    std::vector<std::unique_ptr<Link>> links_;
    std::uint64_t trace_hash_ = 0;
};

}  // namespace farhaul::wire
