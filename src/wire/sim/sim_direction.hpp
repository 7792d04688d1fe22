// One direction of a simulated link: from tx_burst() of its sender to on_arrivals() of its receiver. Internal to
// wire/sim; the algorithm is told in sim_network.hpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/loop.hpp"
#include "base/random.hpp"
#include "base/serializer.hpp"
#include "link/model.hpp"
#include "wire/sim/sim_network.hpp"

namespace farhaul::wire {

/// What one end of a link is doing.
struct SimEndpoint {
    SimWire* wire = nullptr;
    sdr::WireSink* sink = nullptr;
    std::uint8_t index = 0;
    bool killed = false;
    bool paused = false;
    SimWireCounters counters;
};

/// Payload of packets in flight: equal buffers, used again.
class PayloadPool {
 public:
    static constexpr std::uint32_t kNone = ~0u;
    explicit PayloadPool(std::size_t buffer_bytes) : buffer_bytes_(buffer_bytes) {}
    std::uint32_t take() {
        if (free_.empty()) {
            buffers_.push_back(std::make_unique<std::byte[]>(buffer_bytes_));
            return static_cast<std::uint32_t>(buffers_.size() - 1);
        }
        const std::uint32_t index = free_.back();
        free_.pop_back();
        return index;
    }
    void give_back(std::uint32_t index) {
        if (index != kNone) free_.push_back(index);
    }
    std::byte* data(std::uint32_t index) { return buffers_[index].get(); }

 private:
    std::size_t buffer_bytes_;
    std::vector<std::unique_ptr<std::byte[]>> buffers_;
    std::vector<std::uint32_t> free_;
};

/// What both directions of a link share.
struct SimLinkShared {
    SimLinkShared(SimLoop& l, const SimLinkConfig& c, std::uint64_t* hash)
        : loop(l), config(c), pool(c.limits.max_payload_bytes), trace_hash(hash) {}
    SimLoop& loop;
    SimLinkConfig config;
    PayloadPool pool;
    std::uint16_t epoch = 0;  // of the connection token: packets of another one are foreign
    std::uint64_t* trace_hash;

    bool traced() const { return config.hash_trace || config.observer; }
    void trace(const SimEvent& event);
};

class SimDirection {
 public:
    SimDirection(SimLinkShared& shared, link::LinkModel model, SimEndpoint& sender, SimEndpoint& receiver,
                 std::uint64_t seed);

    std::size_t tx_burst(std::span<const sdr::OutgoingPacket> packets);
    void send_datagram(std::span<const std::byte> datagram);
    void inject_packet(std::uint32_t immediate, std::uint32_t generation, std::span<const std::byte> payload,
                       std::uint32_t channel, Duration delay);
    void inject_datagram(std::span<const std::byte> datagram, Duration delay);
    void sender_resumed();
    void receiver_resumed();
    const link::LinkModel& model() const { return model_; }

 private:
    struct Packet {
        TimePoint arrives;
        std::uint32_t immediate;
        std::uint32_t generation;
        std::uint32_t length;
        std::uint32_t payload;   // index in the pool
        std::uint32_t sequence;  // order among equal arrivals
        std::uint16_t channel;
        std::uint16_t epoch;
    };
    static_assert(sizeof(Packet) == 32);

    struct Datagram {
        TimePoint arrives;
        std::uint64_t sequence;
        std::vector<std::byte> bytes;
        std::uint16_t epoch;
    };

    /// Packets in order of arrival, in a circle of a power of two.
    class Ring {
     public:
        Ring() : slots_(256) {}
        bool empty() const { return head_ == tail_; }
        std::size_t size() const { return static_cast<std::size_t>(tail_ - head_); }
        const Packet& operator[](std::size_t index) const { return slots_[(head_ + index) & (slots_.size() - 1)]; }
        const Packet& front() const { return (*this)[0]; }
        const Packet& back() const { return (*this)[size() - 1]; }
        void push(const Packet& packet) {
            if (size() == slots_.size()) grow();
            slots_[tail_++ & (slots_.size() - 1)] = packet;
        }
        void pop() { ++head_; }

     private:
        void grow();
        std::vector<Packet> slots_;
        std::uint64_t head_ = 0, tail_ = 0;
    };

    /// Departures of what is still in the card, oldest first.
    class Departures {
     public:
        explicit Departures(std::size_t capacity) : times_(capacity) {}
        std::size_t size() const { return size_; }
        bool full() const { return size_ == times_.size(); }
        TimePoint operator[](std::size_t index) const { return times_[(head_ + index) % times_.size()]; }
        void push(TimePoint time) { times_[(head_ + size_++) % times_.size()] = time; }
        void drop_until(TimePoint now) {
            while (size_ > 0 && times_[head_] <= now) {
                head_ = (head_ + 1) % times_.size();
                --size_;
            }
        }

     private:
        std::vector<TimePoint> times_;
        std::size_t head_ = 0, size_ = 0;
    };

    static bool arrives_later(const Packet& a, const Packet& b) {
        return a.arrives != b.arrives ? a.arrives > b.arrives : static_cast<std::int32_t>(a.sequence - b.sequence) > 0;
    }
    static bool datagram_later(const Datagram& a, const Datagram& b) {
        return a.arrives != b.arrives ? a.arrives > b.arrives : a.sequence > b.sequence;
    }

    void send_packet(TimePoint now, const sdr::OutgoingPacket& packet);
    TimePoint through_card(TimePoint now, std::uint32_t bytes);
    std::uint64_t loss_group(const sdr::OutgoingPacket& packet);
    void launch(Packet packet, bool in_order, Duration extra);
    void enqueue(const Packet& packet, bool in_order);
    void launch_datagram(TimePoint arrives, std::span<const std::byte> bytes, bool corrupt);
    void enqueue_datagram(TimePoint arrives, std::vector<std::byte> bytes);
    void flip_bit(Packet& packet);

    TimePoint next_arrival() const;
    TimePoint batch_end() const;
    void arm_delivery();
    void deliver_due(TimePoint now);
    std::size_t collect(TimePoint now, std::array<Packet, 64>& batch);
    void hand_over(std::span<const Packet> batch);
    void deliver_datagrams(TimePoint now);
    void on_delivery_timer();
    void on_writable_timer();

    SimLinkShared& shared_;
    link::LinkModel model_;
    SimEndpoint& sender_;
    SimEndpoint& receiver_;
    Random fault_random_;
    Serializer card_;
    const bool fast_card_;  // the card is faster than the link: it has its own line
    const std::uint32_t generation_mask_;

    Ring ring_;
    std::vector<Packet> late_;  // heap: what may overtake or be overtaken
    std::vector<Datagram> datagrams_;
    std::vector<std::vector<std::byte>> spare_datagrams_;
    std::vector<std::vector<sdr::Arrival>> by_channel_;
    std::uint32_t next_sequence_ = 0;
    std::uint64_t next_datagram_sequence_ = 0;

    Departures card_packets_, card_datagrams_;
    TimePoint card_idle_;
    bool blocked_ = false;  // tx_burst took less than it was given
    bool planned_ = false;  // the armed delivery covers its whole window
    std::uint64_t chunk_key_ = ~0ull, group_ = 0;
    std::uint32_t chunk_packet_ = 0;

    Timer delivery_timer_, datagram_timer_, writable_timer_;
};

}  // namespace farhaul::wire
