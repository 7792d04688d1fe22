// What waits for the wire: ranges of messages, cut into packets as the wire takes them.
//
// Order: urgent ranges first, as they were queued; then the ranges of the oldest send that has any. A burst of up to
// kBurst packets is built on the stack across ranges and offered to the wire; what it does not take is built again
// later (a packet is 32 bytes: cheaper than keeping).
//
// Rate: a Serializer knows when the line would be idle. Packets may run ahead of it by a quantum, 64 KiB or 200 us,
// whichever is shorter; then a timer waits until half of that has drained. A timer that comes late does not cost rate:
// while data waits, up to kCredit of lost time is caught up. An idle sender earns no credit.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>

#include "base/loop.hpp"
#include "base/serializer.hpp"
#include "sdr/queue_pair.hpp"
#include "sdr/wire.hpp"

namespace farhaul::sdr {

/// Bytes [offset, offset + length) of a message, of which `packets` packets still wait. From a pool.
struct SendRange {
    SendHandle* send;
    const std::byte* data;  ///< of the next packet; null without payload
    std::uint64_t offset;
    std::uint64_t length;
    std::uint64_t left;     ///< bytes not handed to the wire
    std::uint32_t packet;   ///< index of the next packet
    std::uint32_t packets;  ///< left
    bool urgent;
    SendRange* next;
};

/// What a SendQueue calls.
class SendQueueSink {
 public:
    virtual ~SendQueueSink() = default;
    /// Data is about to go out: records that must precede it go now.
    virtual void before_data() = 0;
    virtual void on_range_injected(SendHandle& send, std::uint64_t offset, std::uint64_t length) = 0;
    virtual void on_low() = 0;
};

class SendQueue {
 public:
    static constexpr std::size_t kBurst = 64;

    SendQueue(Loop& loop, Wire& wire, const QueuePairConfig& config, SendQueueSink& sink);
    SendQueue(const SendQueue&) = delete;
    SendQueue& operator=(const SendQueue&) = delete;

    /// Queues a checked range, not empty.
    void push(SendHandle& send, std::uint64_t offset, const std::byte* data, std::uint64_t length, bool urgent);
    /// Hands to the wire what it takes and the rate allows. Does nothing when called from inside itself.
    void inject();
    /// While corked nothing is injected: several short ranges then leave in one burst. Calls nest.
    void cork() { ++corks_; }
    void uncork() {
        if (--corks_ == 0) inject();
    }
    void on_writable();
    void set_rate(BitRate rate);
    /// Forgets the ranges of a send.
    void drop(SendHandle& send);
    /// Nothing is injected from here on.
    void stop();

    std::uint64_t packets() const { return queued_packets_; }
    std::uint64_t packets_sent() const { return packets_sent_; }
    std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
    struct Injected {
        SendHandle* send;
        std::uint64_t offset;
        std::uint64_t length;
    };

    SendRange* first() const { return urgent_first_ != nullptr ? urgent_first_ : first_ordinary(); }
    SendRange* first_ordinary() const { return active_first_ != nullptr ? active_first_->first_range_ : nullptr; }
    SendRange* after(const SendRange& range) const;
    void activate(SendHandle& send);
    void deactivate(SendHandle& send);
    std::size_t build(std::span<OutgoingPacket> burst, std::uint64_t budget) const;
    void consume(std::size_t packets);
    void pop_first();
    bool rate_allows(std::uint64_t& budget);
    void account(std::span<const OutgoingPacket> taken);
    SendRange* allocate();
    void recycle(SendRange* range);

    Loop& loop_;
    Wire& wire_;
    SendQueueSink& sink_;
    const ImmediateLayout layout_;
    const std::uint32_t payload_bytes_;
    const std::uint32_t overhead_bytes_;
    const std::uint32_t channels_;

    SendRange* urgent_first_ = nullptr;
    SendRange* urgent_last_ = nullptr;
    SendHandle* active_first_ = nullptr;
    SendHandle* active_last_ = nullptr;
    std::deque<SendRange> pool_;
    SendRange* free_ = nullptr;

    std::uint64_t queued_packets_ = 0;
    std::uint64_t packets_sent_ = 0;
    std::uint64_t bytes_sent_ = 0;
    std::uint32_t next_channel_ = 0;
    bool injecting_ = false;
    std::uint32_t corks_ = 0;
    bool blocked_ = false;  // the wire took less than it was given and has not said "writable" since
    bool stopped_ = false;
    bool low_armed_ = false;
    std::array<Injected, kBurst> injected_;  // ranges of the burst in hand that are through
    std::size_t injected_count_ = 0;

    Serializer line_;
    Duration quantum_;
    bool credit_ = false;  // data waits for the rate: lateness is caught up
    Timer rate_timer_;
};

}  // namespace farhaul::sdr
