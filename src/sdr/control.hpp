// Control records between two queue pairs, over unreliable datagrams.
//
// Two records exist: clear-to-send ("I posted my n-th receive, so long, with this tag") and message-info ("my n-th
// message is so long, and this is its immediate"). Both are idempotent. Each has a sequence number and is repeated
// until the peer acknowledged it:
//
//   - New records go out together when the loop comes round (a timer of zero delay), or at once before data that they
//   must precede. As many
//     as fit share a datagram.
//   - Every datagram carries what was received: all records below a number, and a bitmap behind it. A datagram with
//   records is answered at
//     once. Acknowledgements alone are not answered.
//   - A record is repeated after 1.5 round trips (never sooner than the variance of the round trip allows, nor than 1
//   ms), then after twice
//     that, then after four times that, again and again: a dead peer costs a trickle, a lossy link of 30% a few tries.
//     A record that was sent less than three times also rides along, for nothing, in any datagram that has room, and on
//     a long link datagrams go out for it after 1/32 and 1/8 of a round trip: a lost one costs that much and not a
//     wait.
//   - The round trip is measured by time stamps that the peer echoes, so that repeats need not be told apart from first
//   sends.
//   - A record that stays unanswered for `timeout` means that the peer is gone.
//
// Nothing from the peer is trusted: at most kWindow records are accepted ahead of the first missing one, so that memory
// is bounded; a datagram that does not parse or acknowledges what was never sent is refused.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/loop.hpp"
#include "base/result.hpp"
#include "base/time.hpp"
#include "sdr/wire.hpp"

namespace farhaul::sdr {

/// First byte of every datagram that a queue pair sends.
enum class DatagramKind : std::uint8_t {
    kRecords = 1,  ///< control records and acknowledgements of them
    kUpper = 2,    ///< a datagram of the layer above follows
};

struct ClearToSend {
    std::uint64_t sequence;  ///< of the message
    std::uint64_t length;    ///< bytes posted
    std::uint32_t tag;
};

struct MessageInfo {
    std::uint64_t sequence;
    std::uint64_t length;  ///< bytes that the message has
    std::optional<std::uint32_t> immediate;
};

/// What a ControlChannel calls. The first two return false when the record cannot be true; it is then counted as
/// malformed.
class ControlSink {
 public:
    virtual ~ControlSink() = default;
    virtual bool on_clear_to_send(const ClearToSend& record) = 0;
    virtual bool on_message_info(const MessageInfo& record) = 0;
    /// A record was not acknowledged in time. Called once; the channel has stopped. May not destroy the channel.
    virtual void on_control_timeout(const Error& error) = 0;
};

struct ControlConfig {
    std::uint32_t max_datagram_bytes = 1200;  ///< kMinDatagramBytes or more
    Duration initial_rtt;
    Duration timeout;
    std::size_t max_records = 2048;  ///< unacknowledged or waiting: full() from there on
};

struct ControlCounters {
    std::uint64_t datagrams_sent = 0;
    std::uint64_t records_sent = 0;
    std::uint64_t retransmissions = 0;  ///< records repeated because their time ran out (not those that rode along)
    std::uint64_t malformed = 0;        ///< datagrams and records refused
};

class ControlChannel {
 public:
    /// Records in flight, and accepted ahead of the first missing one.
    static constexpr std::uint64_t kWindow = 1024;
    static constexpr std::uint32_t kMinDatagramBytes = 256;

    ControlChannel(Loop& loop, Wire& wire, const ControlConfig& config, ControlSink& sink);
    ControlChannel(const ControlChannel&) = delete;
    ControlChannel& operator=(const ControlChannel&) = delete;

    /// Queues a record. It is the caller's to respect full(), but a record is never refused.
    void queue(const ClearToSend& record);
    void queue(const MessageInfo& record);
    bool full() const { return outgoing_.size() >= config_.max_records; }
    /// Sends now what was queued since the last time. Cheap when there is nothing.
    void flush() {
        if (unsent_ < outgoing_.size()) send_pending();
    }
    /// Takes a datagram of kind kRecords, its first byte included.
    void receive(std::span<const std::byte> datagram);
    /// No more datagrams and timers.
    void stop();

    /// Smoothed round trip, or the initial one before the first measurement.
    Duration round_trip() const { return smoothed_rtt_; }
    const ControlCounters& counters() const { return counters_; }
    /// Records that the peer has not acknowledged.
    std::size_t outstanding() const { return outgoing_.size(); }

 private:
    struct Record {
        std::uint8_t type;
        bool acknowledged = false;
        bool has_immediate = false;
        std::uint8_t backoff = 0;
        std::uint32_t sends = 0;
        std::uint32_t value;  // tag or immediate
        std::uint64_t message;
        std::uint64_t length;
        TimePoint first_sent;
        TimePoint last_sent;
    };

    void push(const Record& record);
    void send_pending();
    void on_retransmit();
    void on_copy();
    void copy_later(int share);
    void begin_datagram();
    void add_record(std::size_t index);
    bool has_room() const;
    bool wants_copy(const Record& record) const;
    bool ride_along();
    void finish_datagram();
    bool parse(std::span<const std::byte> datagram);
    bool take_acknowledgements(std::uint64_t cumulative, std::span<const std::uint64_t> words);
    bool take_record(std::uint64_t sequence, class RecordReader& reader);
    void measure(std::uint64_t echo, std::uint32_t delay_us);
    Duration base_timeout() const;
    Duration timeout_of(const Record& record) const { return base_timeout() * (1 << record.backoff); }

    Loop& loop_;
    Wire& wire_;
    ControlConfig config_;
    ControlSink& sink_;
    ControlCounters counters_;
    bool stopped_ = false;

    // Outgoing: outgoing_[i] has sequence number first_outgoing_ + i; [0, unsent_) were sent at least once.
    std::deque<Record> outgoing_;
    std::uint64_t first_outgoing_ = 0;
    std::size_t unsent_ = 0;
    std::vector<std::byte> datagram_;
    std::uint16_t datagram_records_ = 0;
    Timer flush_timer_;
    Timer retransmit_timer_;
    Timer copy_timer_;  // of records that nothing else carries again

    // Incoming: every record below next_expected_ was received; the ring tells of kWindow behind it.
    std::uint64_t next_expected_ = 0;
    std::uint64_t highest_seen_ = 0;  // one past
    std::array<std::uint64_t, kWindow / 64> received_{};
    bool acknowledge_ = false;
    std::uint64_t echo_ = 0;
    TimePoint echo_received_;

    Duration smoothed_rtt_;
    Duration rtt_variance_;
    bool measured_ = false;
};

}  // namespace farhaul::sdr
