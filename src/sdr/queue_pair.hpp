// A queue pair: messages over an unreliable wire, matched by order. The n-th send lands in the n-th posted receive.
//
// This is a state machine: it is driven by a Loop's timers and by its Wire, and calls a QueuePairListener. It has no
// thread, clock or socket.
//
// Send side: a send may start only when the peer's clear-to-send for that message has come (else kRetry). Packets are
// injected as the wire takes them and the rate limit allows; queued ranges of one send go out in the order in which
// they were queued, sends in the order in which they were started, unless a range is queued as urgent
// (retransmissions), which goes first. Receive side: post_receive() opens the next slot and announces it; the owner
// watches slot() and calls complete_receive(), early if it likes.
//
// Control: clear-to-send and message-info records travel in control datagrams that are acknowledged and repeated until
// they are (they are idempotent; see control.hpp). Datagrams of the layer above (send_datagram) are carried as they
// are: unreliable.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/loop.hpp"
#include "base/result.hpp"
#include "base/units.hpp"
#include "sdr/message_table.hpp"
#include "sdr/wire.hpp"

namespace farhaul::sdr {

struct QueuePairConfig {
    ImmediateLayout layout{};
    std::uint32_t payload_bytes = 4096;    ///< payload per packet, both sides equal: 1 .. WireLimits::max_payload_bytes
    std::uint32_t packets_per_chunk = 16;  ///< 1..64
    std::uint32_t max_messages = 64;       ///< receives open at once, and sends in flight: 1 .. layout.message_ids()
    std::uint64_t max_message_bytes =
        16u << 20;  ///< M of the root key [i*M, i*M+M): most bytes of one message; at most max_packets * payload_bytes
    bool send_enable = true;
    bool receive_enable = true;
    BitRate rate_limit{};              ///< payload + overhead_bytes per second; 0 = as fast as the wire takes packets
    std::uint32_t overhead_bytes = 0;  ///< counted per packet against rate_limit (headers below the payload)
    Duration initial_rtt =
        Duration::from_milliseconds(100);  ///< before the first measurement: paces control retransmission
    Duration control_timeout =
        Duration::from_milliseconds(10'000);  ///< a control record unanswered for so long: the peer is gone
};

/// A started send. Owned by the queue pair; valid until release_send(). Defined below.
class SendHandle;

struct QueuePairCounters {
    std::uint64_t packets_sent = 0;
    std::uint64_t bytes_sent = 0;  ///< payload
    std::uint64_t datagrams_sent = 0;
    std::uint64_t datagrams_received = 0;
    std::uint64_t malformed_datagrams = 0;  ///< from the peer, dropped
    std::uint64_t control_retransmissions = 0;
    ArrivalCounters arrivals;
};

/// What a QueuePair calls; every call is made on the Loop's thread, and never from inside a call to the QueuePair by
/// the listener's owner, except on_injected/on_send_queue_low, which may come from within send calls (but never from
/// inside one another: what they queue goes out after they return). A listener may call everything, but may destroy the
/// queue pair only in on_queue_pair_error().
class QueuePairListener {
 public:
    virtual ~QueuePairListener() = default;
    /// start_send() may succeed now: one or more clear-to-sends came.
    virtual void on_clear_to_send() {}
    /// A queued range has been handed to the wire entirely, at Loop::now().
    virtual void on_injected(SendHandle& /*send*/, std::uint64_t /*offset*/, std::uint64_t /*length*/) {}
    /// Fewer than send_queue_low_packets() packets wait for the wire: a good time to queue more. Once after each time
    /// that something was queued, so that queueing one chunk per call keeps the wire busy.
    virtual void on_send_queue_low() {}
    /// Packets came for the slot (new ones, or such as it has already: the peer may have missed an acknowledgement), or
    /// its length or immediate became known. Once per batch and slot.
    virtual void on_receive_progress(MessageSlot& /*slot*/) {}
    /// A datagram of the peer's layer above. From outside: never trusted.
    virtual void on_datagram(std::span<const std::byte> /*datagram*/) {}
    /// The wire broke or the peer is gone. Called once; sends and receives make no more progress.
    virtual void on_queue_pair_error(const Error& /*error*/) {}
};

struct StartSend {
    /// User's immediate; without one the message's fragments are not sent.
    std::optional<std::uint32_t> immediate{};
    /// Total bytes of the message if known at the start (then the receiver learns it at once when it posted more);
    /// otherwise the end of the furthest range queued by end_send().
    std::optional<std::uint64_t> length{};
    /// Announce the immediate in a control record even if the packets can carry it (needs `length`): for receivers that
    /// rebuild lost packets, whose fragments are lost with them.
    bool announce_immediate = false;
};

class QueuePair final : private WireSink {
 public:
    /// The wire must outlive the queue pair, which attaches itself. Errors: kInvalidArgument with the field that is
    /// wrong.
    static Result<std::unique_ptr<QueuePair>> create(Loop& loop, Wire& wire, const QueuePairConfig& config,
                                                     QueuePairListener* listener);
    /// Safe with operations in flight: buffers are detached (and other threads waited for) before it returns.
    ~QueuePair() override;

    const QueuePairConfig& config() const;
    const QueuePairCounters& counters();
    Loop& loop();
    void set_listener(QueuePairListener* listener);
    void set_rate_limit(BitRate rate);
    /// The measured round trip of control records, or config().initial_rtt before the first.
    Duration round_trip() const;

    // --- sending ---
    /// True when start_send() would not return kRetry.
    bool can_start_send() const;
    /// Bytes that the peer posted for the next send; 0 when nothing is posted. And the tag of that receive.
    std::uint64_t next_send_capacity() const;
    std::uint32_t next_send_tag() const;
    /// Starts the next message. Errors: kRetry without a clear-to-send or when max_messages sends are in flight;
    /// kInvalidArgument when `length` exceeds the peer's buffer; kClosed after an error.
    Result<SendHandle*> start_send(const StartSend& start);
    /// Queues bytes [offset, offset + length) of the message for injection; offset must be a multiple of payload_bytes.
    /// `data` points at the byte for `offset` (null on a metadata-only wire) and must stay valid until injected.
    /// `length` must be a multiple of payload_bytes unless the range ends the message: then that end is the message's
    /// length, if it was not known. Nothing happens for a length of 0. `urgent` goes before ordinary ranges. May be
    /// called again for the same bytes: a retransmission. Errors: kInvalidArgument beyond the peer's buffer or
    /// misaligned; kClosed after end_send() unless urgent.
    Status continue_send(SendHandle& send, std::uint64_t offset, const std::byte* data, std::uint64_t length,
                         bool urgent = false);
    /// No more new ranges. Announces the length if the peer cannot know it, and the immediate if the packets did not
    /// carry all of it.
    Status end_send(SendHandle& send);
    /// True when everything queued has been handed to the wire.
    bool injected(const SendHandle& send) const;
    /// The handle goes back to the queue pair; ranges of it still queued are dropped.
    void release_send(SendHandle& send);
    /// While corked, continue_send() only queues: what is queued leaves in one burst with the last uncork(). Calls
    /// nest.
    void cork();
    void uncork();
    /// Packets queued and not yet handed to the wire.
    std::uint64_t send_queue_packets() const;
    /// The low-water mark of on_send_queue_low().
    static constexpr std::uint32_t send_queue_low_packets() { return 64; }

    // --- receiving ---
    /// Posts the next receive: `length` bytes at `buffer` (null on a metadata-only wire). `tag` reaches the sender with
    /// the clear-to-send. Errors: kRetry when max_messages are open or the slot is still in use; kInvalidArgument above
    /// max_message_bytes.
    Result<MessageSlot*> post_receive(std::byte* buffer, std::uint64_t length, std::uint32_t tag = 0,
                                      SlotOptions options = {});
    /// The owner rebuilt these packets in the buffer itself (from parity): they count as received.
    void mark_rebuilt(MessageSlot& slot, std::uint32_t first_packet, std::uint32_t count);
    /// Ends the receive, complete or not. After it returns nothing touches the buffer. Every posted receive must be
    /// completed once.
    void complete_receive(MessageSlot& slot);

    // --- datagrams of the layer above ---
    std::uint32_t max_datagram_bytes() const;
    /// Unreliable. Dropped when it is longer than max_datagram_bytes(), or after an error.
    void send_datagram(std::span<const std::byte> datagram);
    /// Fails everything with `error`, as if the wire had broken; on_queue_pair_error() follows when the loop comes
    /// round.
    void abort(const Error& error);

 private:
    QueuePair();
    void announce(SendHandle& send, bool immediate);
    void on_arrivals(std::uint32_t channel, std::span<const Arrival> arrivals) override;
    void poll() override;
    void on_datagram(std::span<const std::byte> datagram) override;
    void on_writable() override;
    void on_wire_error(const Error& error) override;

    struct State;
    std::unique_ptr<State> state_;
};

/// What a message sequence number is sent with and who owns it; read by listeners.
class SendHandle {
 public:
    SendHandle() = default;
    std::uint64_t sequence() const { return sequence_; }
    std::uint64_t capacity() const { return capacity_; }  ///< bytes that the peer posted
    std::uint32_t tag() const { return tag_; }
    void* user = nullptr;  ///< for the layer above

 private:
    friend class QueuePair;
    friend class SendQueue;
    std::uint64_t sequence_ = 0;
    std::uint64_t capacity_ = 0;
    std::uint32_t tag_ = 0;
    // What every packet of the message carries.
    std::uint32_t generation_ = 0;
    std::uint32_t immediate_base_ = 0;  // message id, in place
    std::uint32_t user_immediate_ = 0;
    bool has_immediate_ = false;
    // What the peer must be told.
    bool in_use_ = false;
    bool ended_ = false;
    bool length_known_ = false;  // length_ is final
    bool length_announced_ = false;
    bool immediate_announced_ = false;
    std::uint32_t covered_ = 0;  // fragments of the immediate that queued packets carry
    std::uint64_t length_ = 0;
    std::uint64_t furthest_ = 0;  // end of the furthest range queued
    // SendQueue's.
    std::uint64_t queued_packets_ = 0;
    std::uint32_t urgent_ranges_ = 0;
    struct SendRange* first_range_ = nullptr;
    struct SendRange* last_range_ = nullptr;
    SendHandle* next_active_ = nullptr;  // sends with ordinary ranges, in the order in which they were started
    SendHandle* previous_active_ = nullptr;
};

}  // namespace farhaul::sdr
