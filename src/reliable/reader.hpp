// The receiving half of a reliable connection.
//
// Posted buffers are cut into messages (at max_message_bytes) and opened in order as the queue pair has slots. The
// reader polls the bitmap of a message whenever packets came in, and tells the writer by acks (ack.hpp):
//   - when a message is complete: at once, and again after 1/256, 1/64, 1/16 and 1/4 round trip, so that the loss of an
//   ack costs the
//     writer a small part of a round trip and not a timeout. Every ack carries the state of all messages, so repeats
//     merge: under steady traffic there is one ack per batch of arrivals and no repeat.
//   - while a message is incomplete and packets arrive: every ack interval (1/64 round trip with `sr-nack`, 1/16
//   otherwise), with
//     what is missing.
//   - when a probe comes: at once (not more often than every 20 us).
//   - coded schemes and `auto`: as with `sr-nack`. Behind every data message a parity message is opened, on memory of
//   our own; whenever either of the
//     two took packets, what has enough parity is rebuilt in place. Both are complete when the data is.
//   - `gbn`: once per gap, a request to go back.
// When nothing arrives the reader is silent: asking again is the writer's task, who knows what it has sent.
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

class Reader {
 public:
    struct Environment {
        Loop& loop;
        sdr::QueuePair& queue_pair;
        const ConnectionConfig& config;
        RoundTrip& round_trip;
        ConnectionCounters& counters;
        const Coding* coding;             ///< null unless the scheme is coded
        TailCoding* tail;                 ///< null unless it is `auto`
        std::uint64_t max_message_bytes;  ///< where buffers are cut
        std::function<void(std::function<void()>)> defer;
        std::function<void(Error)> abort;
    };
    explicit Reader(Environment environment);
    ~Reader();

    ReceiveId receive(std::byte* buffer, std::uint64_t length, ReceiveCallback done, bool want_immediate);
    Status finish_early(ReceiveId id);
    void open_slots(ReceiveId id, const std::function<void(std::uint64_t, const sdr::MessageSlot&)>& visit) const;
    void fail(const Error& error);
    /// Part of a message has arrived and the rest has not: silence now means trouble.
    bool partly_received() const;

    void on_progress(sdr::MessageSlot& slot);
    void on_probe(std::uint32_t id);

 private:
    struct Operation {
        ReceiveId id;
        std::byte* buffer;
        std::uint64_t length;
        std::uint64_t posted = 0;  ///< bytes for which messages are open or done
        bool all_posted = false;
        bool want_immediate = false;
        bool early = false;
        std::uint32_t messages_open = 0;
        std::uint64_t received = 0;
        std::optional<std::uint32_t> immediate;
        ReceiveCallback done;
    };
    struct Message {
        sdr::MessageSlot* slot = nullptr;  ///< null when complete
        Operation* operation = nullptr;
        std::uint64_t offset = 0;  ///< in the operation's buffer
        bool first = false;
        bool dirty = false;    ///< something arrived since the last ack
        bool started = false;  ///< something arrived at all
        std::uint32_t asked_to_go_back_at = ~0u;
        std::uint64_t swallowed = 0;
        bool is_parity = false;  ///< the second of a pair: no acks, complete when its data message is
        std::unique_ptr<std::byte[]> parity_buffer;
        std::uint64_t posted_length = 0;
    };

    void post_messages();
    Message* find(std::uint64_t sequence);
    bool arrived(const Message& message) const;
    bool post_parity();
    void repair(std::uint64_t data_sequence);
    void close(Message& message);
    void retire();
    void complete(std::uint64_t sequence, bool early);
    void send_ack();
    void encode_message(std::uint64_t sequence, Message& message);
    void next_datagram();
    void begin_datagram();
    bool paired() const { return env_.config.scheme.paired(); }
    void schedule_final_acks();
    Duration ack_interval() const;

    Environment env_;
    std::deque<std::unique_ptr<Operation>> operations_;
    std::deque<Message> messages_;      // message first_sequence_ + i
    std::uint64_t first_sequence_ = 0;  // every message below is complete
    ReceiveId next_id_ = 1;
    std::vector<std::uint64_t> completed_ahead_;
    std::uint32_t event_ = 0;
    std::uint32_t latest_probe_ = 0;
    TimePoint last_ack_at_;
    bool acked_once_ = false;
    std::uint32_t final_acks_sent_ = 0;
    AckEncoder encoder_;
    Timer ack_timer_, final_timer_;
    std::unique_ptr<Repairer> repairer_;
    std::unique_ptr<TailRepairer> tail_repairer_;
    std::uint32_t rebuilt_ = 0, rebuilt_bursts_ = 0;
    struct ParityDue {
        std::uint64_t bytes;
        bool carries_payload;
    };
    std::optional<ParityDue> parity_due_;  // the next slot to open is the parity of the last data message
};

}  // namespace farhaul::reliable
