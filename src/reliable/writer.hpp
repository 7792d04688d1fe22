// The sending half of a reliable connection.
//
// A Write is cut into messages; a message into packets. A message starts when the peer's clear-to-send for it is there.
// Packets go to the queue pair a few dozen at a time, just before the wire can take them, so that a repair never waits
// behind new data: repairs are queued as urgent.
//
// What is known of a packet: its latest injection time, whether it was ever resent, whether it is acknowledged. Acks
// (ack.hpp) name what the receiver lacks.
//
// `sr`: each packet has a timeout, rto = max(rto_rtts * srtt, srtt + 4 rttvar, min_rto), from its latest injection.
// Injections are kept in
//   a log in order of time, so one timer at the head of the log serves all. Missing lists are not used.
//
// `sr-nack`: a packet is lost when an ack lists it as missing and the receiver's snapshot was taken after a packet or
// probe had arrived that was injected at
//   least the reordering window later (the argument of RACK, RFC 8985, with the receiver's word instead of the absence
//   of an ack). This needs no assumption on the path's delay, finds lost retransmissions too, and costs one round trip
//   + window + ack interval. The window starts at 1/16 round trip and doubles, up to one round trip, when a resent
//   packet is acknowledged sooner than the copy could have arrived. What nothing follows (the tail of the last message)
//   is covered by probes, sent whenever injection pauses: after the window, then at growing intervals of 1/32 .. 1/8
//   round trip while something is unacknowledged. The timeout of `sr` remains as last resort.
//
// `gbn`: the receiver takes packets in order only and asks once per gap to go back; the sender then resends everything
// from there. A lost
//   request or a lost first packet of the resent part is found by the timeout only, as in NICs.
//
// `ec:K,M`, `ec-xor:K,M`: messages come in pairs, data and parity (code_layout.hpp). Behind each block's data goes its
// parity, as published. A
//   packet counts as lost only when the receiver's snapshot was taken a reordering window after the block's parity had
//   passed: then parity was too little, and the rest goes as with `sr-nack`. A message that does not fill its buffer is
//   sent without parity: the receiver could not know the blocks before the length is announced. There is no timeout:
//   probes find every loss.
//
// `auto`: pairs as well, and `sr-nack` with three things added. (1) A loss that is noticed while new data is still
// being
//   injected is repaired at no cost in time; so only what is sent in the last round trip (and reordering window) before
//   the queue of Writes runs dry is coded: the tail (tail_layout.hpp). Its parity is encoded beside the injection and
//   goes out when no new data waits, row by row: if nothing was lost it costs no time, and when it is enough the
//   receiver says so at once. How much is planned per message from the losses seen so far (loss_estimate.hpp). While
//   parity is on its way a loss in the tail is left to it: until a reordering window after the latest of it has passed,
//   so that parity which new data holds up does not hold up the repair. (2) A repair that could not be asked for again
//   before the queue runs dry is sent several times, the copies one after the other, so that all arrive with
//   probability 1 - 1e-4. (3) Parity is never sent in place of new data: under steady load `auto` is `sr-nack`.
//
// A Write is done when every message of it is acknowledged as complete.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/loop.hpp"
#include "reliable/ack.hpp"
#include "reliable/connection.hpp"
#include "reliable/parity.hpp"
#include "reliable/round_trip.hpp"
#include "reliable/tail_code.hpp"
#include "sdr/queue_pair.hpp"

namespace farhaul::reliable {

class Writer {
 public:
    struct Environment {
        Loop& loop;
        sdr::QueuePair& queue_pair;
        const ConnectionConfig& config;
        RoundTrip& round_trip;
        ConnectionCounters& counters;
        const Coding* coding;  ///< null unless the scheme is coded
        TailCoding* tail;      ///< null unless it is `auto`
        /// Runs a callback from the Loop, later.
        std::function<void(std::function<void()>)> defer;
        /// Tells the peer and fails the connection.
        std::function<void(Error)> abort;
    };
    explicit Writer(Environment environment);
    ~Writer();

    void write(const std::byte* data, std::uint64_t length, WriteCallback done, std::optional<std::uint32_t> immediate);
    bool outstanding() const { return !operations_.empty(); }
    std::uint64_t writes_outstanding() const { return operations_.size(); }
    /// Ends every Write with `error`.
    void fail(const Error& error);

    // Events of the queue pair and the peer.
    void pump();
    void on_injected(sdr::SendHandle& send, std::uint64_t offset, std::uint64_t length);
    /// False when the ack names what was never sent: malformed.
    bool on_ack(const Ack& ack);
    /// Sends a probe now.
    void send_probe();
    /// The earliest write_timeout of a Write that is not done, or never.
    TimePoint next_write_deadline() const;

 private:
    struct Operation {
        const std::byte* data;
        std::uint64_t length;
        std::uint64_t started = 0;  ///< bytes handed to messages
        std::uint32_t messages_open = 0;
        bool all_started = false;
        TimePoint deadline = TimePoint::never();
        std::optional<std::uint32_t> immediate;
        WriteCallback done;
    };
    struct Message {
        sdr::SendHandle* send = nullptr;
        Operation* operation = nullptr;
        const std::byte* data = nullptr;
        std::uint64_t length = 0;
        std::uint32_t packets = 0;
        std::uint32_t next_new = 0;    ///< packets below were queued at least once (go-back-N moves it back)
        std::uint32_t high_water = 0;  ///< highest next_new ever
        std::uint32_t acked_count = 0;
        std::uint32_t cumulative = 0;  ///< go-back-N: packets below have arrived
        TimePoint went_back_at;
        std::uint32_t went_back_to = ~0u;
        bool ended = false;
        bool is_parity = false;                ///< the second of a pair: has no packets of its own to acknowledge
        Message* data_message = nullptr;       ///< of a parity message; null when it has no parity or is complete
        std::unique_ptr<ParitySource> parity;  ///< of a data message with parity
        std::unique_ptr<TailParity> tail;      ///< the same, of `auto`
        std::optional<std::uint32_t> tail_immediate;  ///< of its parity message
        std::vector<std::uint64_t> acked, resent,
            queued;                          ///< bit per packet; queued: waits for its retransmission to be injected
        std::vector<TimePoint> injected_at;  ///< latest; never() before the first
    };
    struct Injection {  // one entry of the log
        std::uint64_t sequence;
        PacketRun run;
        TimePoint at;
    };
    struct Repair {
        std::uint64_t sequence;
        PacketRun run;
    };

    Message* find(std::uint64_t sequence);
    bool start_next_message();
    bool start_parity_message();
    bool window_full() const;
    bool has_new_packets(const Message& message) const;
    bool queue_new_packets(Message& message);
    bool queue_parity(Message& message, std::uint32_t end);
    void plan_tail(Message& message, std::uint64_t capacity);
    bool queue_tails();
    std::uint64_t packets_in_flight() const;
    std::uint64_t packets_waiting() const;
    void repeat_repairs();
    void note_rebuilt(const Ack& ack);
    bool paired() const { return env_.config.scheme.paired(); }
    bool uses_missing_lists() const {
        return paired() || env_.config.scheme.kind == Scheme::Kind::kSelectiveRepeatNack;
    }
    static sdr::SendHandle** parity_send(Message& message);
    std::unique_ptr<Message> take_message();
    bool queue_repairs();
    Status queue_run(Message& message, PacketRun run, bool urgent);
    void mark_arrived(Message& message, std::uint32_t first, std::uint32_t end);
    void consider_arrival(Message& message, std::uint32_t packet);
    void consider_missing(Message& message, std::uint64_t sequence, PacketRun run);
    void request_repair(Message& message, std::uint64_t sequence, PacketRun run);
    void go_back(Message& message, std::uint32_t to);
    void complete_message(std::uint64_t sequence);
    void retire_messages();
    void on_rto_timer();
    void on_go_back_timeout();
    void arm_rto_timer();
    void on_probe_timer();
    Duration rto() const;
    Duration probe_interval() const;
    std::uint32_t payload_bytes() const { return env_.queue_pair.config().payload_bytes; }

    Environment env_;
    std::deque<std::unique_ptr<Operation>> operations_;  // in order of write()
    std::deque<std::unique_ptr<Message>> messages_;      // message first_sequence_ + i; null when complete
    std::vector<std::unique_ptr<Message>> spare_messages_;
    std::uint64_t first_sequence_ = 0;
    std::uint64_t injecting_ = 0;               // sequence of the first message with packets never queued
    bool parity_due_ = false;                   // the next message to start is the parity of parity_owner_
    Message* parity_owner_ = nullptr;           // null when that is complete already
    std::uint64_t unacknowledged_packets_ = 0;  // sent once and not known to have arrived
    std::uint64_t completed_below_ = 0;         // as far as acks say
    std::size_t next_operation_ = 0;            // the first of operations_ that is not all_started
    std::deque<Injection> log_;
    std::deque<Repair> repairs_;
    std::size_t repairs_mark_ = 0;  // those behind it came with the ack at hand
    LossEstimate loss_;
    TailPlanner planner_;
    std::uint32_t rebuilt_seen_ = 0, rebuilt_bursts_seen_ = 0;
    Timer rto_timer_, probe_timer_;
    Duration reorder_window_;
    TimePoint evidence_;  // latest injection time of a packet or probe known to have arrived
    std::uint32_t latest_event_ = 0;
    bool any_ack_ = false;
    TimePoint last_ack_at_;
    std::uint32_t backoff_ = 0;
    std::uint32_t pause_probes_ = 0;  // probes sent since the last injection
    TimePoint last_probe_at_;
    bool pumping_ = false;

    static constexpr std::size_t kProbesRemembered = 256;
    std::uint32_t last_probe_ = 0, latest_probe_answered_ = 0;
    TimePoint probe_sent_at_[kProbesRemembered];
    std::vector<std::byte> probe_buffer_;
};

}  // namespace farhaul::reliable
