#include "wire/sim/sim_direction.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace farhaul::wire {

namespace {
constexpr std::size_t kMostDatagramsInCard = 256;  // more than a protocol sends in one turn; then the card is full
constexpr std::size_t kMostPerDelivery = 64;
}  // namespace

void SimLinkShared::trace(const SimEvent& event) {
    if (config.observer) config.observer(event);
    if (!config.hash_trace) return;
    const auto fold = [this](std::uint64_t value) {
        *trace_hash = (*trace_hash ^ value) * 0x9e3779b97f4a7c15ull;
        *trace_hash ^= *trace_hash >> 29;
    };
    fold(static_cast<std::uint64_t>(event.kind) << 8 | event.endpoint);
    fold(static_cast<std::uint64_t>(event.at.nanoseconds()));
    fold(static_cast<std::uint64_t>(event.arrives.nanoseconds()));
    fold(static_cast<std::uint64_t>(event.length) << 32 | event.immediate);
    fold(event.generation);
}

void SimDirection::Ring::grow() {
    std::vector<Packet> larger(slots_.size() * 2);
    const std::size_t count = size();
    for (std::size_t i = 0; i < count; ++i) larger[i] = (*this)[i];
    slots_.swap(larger);
    head_ = 0;
    tail_ = count;
}

SimDirection::SimDirection(SimLinkShared& shared, link::LinkModel model, SimEndpoint& sender, SimEndpoint& receiver,
                           std::uint64_t seed)
    : shared_(shared),
      model_(std::move(model)),
      sender_(sender),
      receiver_(receiver),
      fault_random_(seed),
      card_(shared.config.card_rate),
      fast_card_(!shared.config.card_rate.unlimited()),
      generation_mask_(shared.config.limits.generation_bits >= 32 ? ~0u
                                                                  : (1u << shared.config.limits.generation_bits) - 1),
      by_channel_(shared.config.limits.channels > 1 ? shared.config.limits.channels : 0),
      card_packets_(shared.config.tx_packets),
      card_datagrams_(kMostDatagramsInCard),
      delivery_timer_(
          shared.loop.timers(), [](void* self) { static_cast<SimDirection*>(self)->on_delivery_timer(); }, this),
      datagram_timer_(
          shared.loop.timers(),
          [](void* self) {
              auto* direction = static_cast<SimDirection*>(self);
              direction->deliver_datagrams(direction->shared_.loop.now());
          },
          this),
      writable_timer_(
          shared.loop.timers(), [](void* self) { static_cast<SimDirection*>(self)->on_writable_timer(); }, this) {
    for (auto& arrivals : by_channel_) arrivals.reserve(kMostPerDelivery);
}

// --- sending ---

std::size_t SimDirection::tx_burst(std::span<const sdr::OutgoingPacket> packets) {
    if (packets.empty()) return 0;
    if (sender_.killed) {  // into the void: a dead process sends nothing, and its protocol code must not wait for room
        sender_.counters.undeliverable += packets.size();
        return packets.size();
    }
    if (sender_.paused) {
        blocked_ = true;
        return 0;
    }
    const TimePoint now = shared_.loop.now();
    card_packets_.drop_until(now);
    std::size_t taken = 0;
    for (; taken < packets.size(); ++taken) {
        const bool too_many = card_packets_.full();
        const Duration backlog = card_idle_ - now;
        if (too_many || backlog > shared_.config.tx_backlog) {
            blocked_ = true;
            const TimePoint half =
                too_many ? card_packets_[(card_packets_.size() - 1) / 2] : card_idle_ - shared_.config.tx_backlog / 2;
            writable_timer_.arm(std::max(half, now));
            break;
        }
        send_packet(now, packets[taken]);
    }
    return taken;
}

TimePoint SimDirection::through_card(TimePoint now, std::uint32_t bytes) {
    if (!fast_card_) return now;
    return card_idle_ = card_.send(now, bytes);
}

// Consecutive packets of one chunk share a group. Going back inside the chunk is a retransmission: a new group, so a
// new draw.
std::uint64_t SimDirection::loss_group(const sdr::OutgoingPacket& packet) {
    const auto& layout = shared_.config.layout;
    const std::uint32_t index = layout.packet(packet.immediate);
    const std::uint64_t message =
        static_cast<std::uint64_t>(packet.generation) << layout.message_bits | layout.message_id(packet.immediate);
    const std::uint64_t key = message << layout.packet_bits | index / shared_.config.packets_per_chunk;
    if (key != chunk_key_ || index <= chunk_packet_) ++group_;
    chunk_key_ = key;
    chunk_packet_ = index;
    return group_;
}

void SimDirection::send_packet(TimePoint now, const sdr::OutgoingPacket& packet) {
    auto& counters = sender_.counters;
    const auto& limits = shared_.config.limits;
    if (packet.length > limits.max_payload_bytes || packet.channel >= limits.channels) {
        ++counters.packets_refused;
        return;
    }
    const std::uint32_t size = packet.length + model_.config().overhead_bytes;
    if (counters.first_packet_sent == TimePoint::never()) counters.first_packet_sent = std::max(now, card_idle_);
    const TimePoint offered = through_card(now, size);
    const link::Fate fate =
        model_.offer(offered, packet.length, model_.config().loss_per_group ? loss_group(packet) : 0);
    ++counters.packets_sent;
    counters.bytes_sent += packet.length;
    if (fate.dropped != link::DropReason::kQueueFull && !fast_card_) card_idle_ = fate.departs;
    counters.last_packet_sent = std::max(now, card_idle_);
    if (card_idle_ > now) card_packets_.push(card_idle_);

    const std::uint32_t generation = packet.generation & generation_mask_;
    const bool lost = fate.dropped != link::DropReason::kNone;
    if (shared_.traced())
        shared_.trace({.kind = lost             ? SimEvent::Kind::kLost
                               : fate.corrupted ? SimEvent::Kind::kCorrupt
                                                : SimEvent::Kind::kSend,
                       .endpoint = sender_.index,
                       .at = now,
                       .arrives = lost ? TimePoint() : fate.arrives,
                       .length = packet.length,
                       .immediate = packet.immediate,
                       .generation = generation});
    if (lost) {
        ++counters.packets_lost;
        return;
    }
    bool corrupt_original = false;
    if (fate.corrupted) {
        corrupt_original = shared_.config.deliver_corrupt && limits.carries_payload;
        if (!corrupt_original) {
            ++counters.packets_corrupt;
            if (!fate.duplicated) return;
        }
    }
    Packet flying{.arrives = fate.arrives,
                  .immediate = packet.immediate,
                  .generation = generation,
                  .length = packet.length,
                  .payload = PayloadPool::kNone,
                  .sequence = 0,
                  .channel = static_cast<std::uint16_t>(packet.channel),
                  .epoch = shared_.epoch};
    const auto load = [&](Packet& each) {
        if (!limits.carries_payload) return;
        each.payload = shared_.pool.take();
        if (packet.length > 0) std::memcpy(shared_.pool.data(each.payload), packet.payload, packet.length);
    };
    if (!fate.corrupted || corrupt_original) {
        load(flying);
        if (corrupt_original) flip_bit(flying);
        launch(flying, fate.in_order, {});
    }
    if (fate.duplicated) {
        // The copy is a whole one: what was flipped, was flipped behind the place where the packet was doubled.
        Packet copy = flying;
        copy.immediate = packet.immediate;
        copy.generation = generation;
        copy.payload = PayloadPool::kNone;
        copy.arrives = fate.copy_arrives;
        load(copy);
        launch(copy, false, {});
    }
}

void SimDirection::flip_bit(Packet& packet) {
    const std::uint64_t bit = fault_random_.below(64 + 8ull * packet.length);
    if (bit < 32)
        packet.immediate ^= 1u << bit;
    else if (bit < 64)
        packet.generation ^= (1u << (bit - 32)) & generation_mask_;
    else
        shared_.pool.data(packet.payload)[(bit - 64) / 8] ^= static_cast<std::byte>(1u << (bit % 8));
}

void SimDirection::launch(Packet packet, bool in_order, Duration extra) {
    if (shared_.config.hook) {
        SimInFlight view{.sender = *sender_.wire,
                         .datagram = false,
                         .bytes = packet.payload == PayloadPool::kNone
                                      ? std::span<std::byte>()
                                      : std::span(shared_.pool.data(packet.payload), packet.length),
                         .length = packet.length,
                         .immediate = packet.immediate,
                         .generation = packet.generation,
                         .extra_delay = {}};
        shared_.config.hook(view);
        if (view.drop) {
            ++sender_.counters.dropped_by_hook;
            shared_.pool.give_back(packet.payload);
            return;
        }
        packet.length = std::min(view.length, packet.length);
        packet.immediate = view.immediate;
        packet.generation = view.generation & generation_mask_;
        extra += std::max(view.extra_delay, Duration());
    }
    if (extra > Duration()) {
        packet.arrives = packet.arrives + extra;
        in_order = false;
    }
    enqueue(packet, in_order);
}

void SimDirection::enqueue(const Packet& given, bool in_order) {
    Packet packet = given;
    packet.sequence = next_sequence_++;
    const TimePoint before = next_arrival();
    if (in_order && (ring_.empty() || packet.arrives >= ring_.back().arrives)) {
        ring_.push(packet);
    } else {
        late_.push_back(packet);
        std::push_heap(late_.begin(), late_.end(), arrives_later);
    }
    if (packet.arrives < before && !receiver_.paused) {
        planned_ = false;
        delivery_timer_.arm_no_later_than(std::max(packet.arrives, shared_.loop.now()));
    }
}

void SimDirection::send_datagram(std::span<const std::byte> datagram) {
    auto& counters = sender_.counters;
    const TimePoint now = shared_.loop.now();
    card_datagrams_.drop_until(now);
    if (datagram.size() > shared_.config.limits.max_datagram_bytes || sender_.killed || sender_.paused ||
        card_datagrams_.full()) {
        ++counters.datagrams_refused;
        return;
    }
    const auto length = static_cast<std::uint32_t>(datagram.size());
    const TimePoint offered = through_card(now, length + model_.config().overhead_bytes);
    link::Fate fate = model_.offer(offered, length, model_.config().loss_per_group ? ++group_ : 0);
    ++counters.datagrams_sent;
    counters.datagram_bytes_sent += length;
    if (fate.dropped != link::DropReason::kQueueFull && !fast_card_) card_idle_ = fate.departs;
    if (card_idle_ > now) card_datagrams_.push(card_idle_);

    bool lost = fate.dropped != link::DropReason::kNone;
    if (shared_.config.lossless_control) {
        if (lost) fate.arrives = std::max(card_idle_, offered) + model_.config().delay;
        lost = fate.corrupted = false;
    }
    if (shared_.traced())
        shared_.trace({.kind = lost ? SimEvent::Kind::kLostDatagram : SimEvent::Kind::kSendDatagram,
                       .endpoint = sender_.index,
                       .at = now,
                       .arrives = lost ? TimePoint() : fate.arrives,
                       .length = length,
                       .immediate = 0,
                       .generation = 0});
    if (lost) {
        ++counters.datagrams_lost;
        return;
    }
    const bool drop_corrupt = fate.corrupted && !shared_.config.deliver_corrupt;
    if (drop_corrupt)
        ++counters.datagrams_corrupt;
    else
        launch_datagram(fate.arrives, datagram, fate.corrupted);
    if (fate.duplicated) launch_datagram(fate.copy_arrives, datagram, false);
}

void SimDirection::launch_datagram(TimePoint arrives, std::span<const std::byte> content, bool corrupt) {
    std::vector<std::byte> bytes;
    if (!spare_datagrams_.empty()) {
        bytes = std::move(spare_datagrams_.back());
        spare_datagrams_.pop_back();
    }
    bytes.assign(content.begin(), content.end());
    if (corrupt && !bytes.empty()) {
        const std::uint64_t bit = fault_random_.below(8ull * bytes.size());
        bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    }
    if (shared_.config.hook) {
        SimInFlight view{.sender = *sender_.wire,
                         .datagram = true,
                         .bytes = bytes,
                         .length = static_cast<std::uint32_t>(bytes.size()),
                         .immediate = 0,
                         .generation = 0,
                         .extra_delay = {}};
        shared_.config.hook(view);
        if (view.drop) {
            ++sender_.counters.dropped_by_hook;
            return;
        }
        bytes.resize(std::min<std::size_t>(view.length, bytes.size()));
        arrives = arrives + std::max(view.extra_delay, Duration());
    }
    enqueue_datagram(arrives, std::move(bytes));
}

void SimDirection::enqueue_datagram(TimePoint arrives, std::vector<std::byte> bytes) {
    datagrams_.push_back({arrives, next_datagram_sequence_++, std::move(bytes), shared_.epoch});
    std::push_heap(datagrams_.begin(), datagrams_.end(), datagram_later);
    if (!receiver_.paused) datagram_timer_.arm_no_later_than(std::max(arrives, shared_.loop.now()));
}

void SimDirection::inject_packet(std::uint32_t immediate, std::uint32_t generation, std::span<const std::byte> payload,
                                 std::uint32_t channel, Duration delay) {
    const auto& limits = shared_.config.limits;
    if (payload.size() > limits.max_payload_bytes || channel >= limits.channels) {
        ++sender_.counters.packets_refused;
        return;
    }
    Packet packet{.arrives = shared_.loop.now() + std::max(delay, Duration()),
                  .immediate = immediate,
                  .generation = generation & generation_mask_,
                  .length = static_cast<std::uint32_t>(payload.size()),
                  .payload = PayloadPool::kNone,
                  .sequence = 0,
                  .channel = static_cast<std::uint16_t>(channel),
                  .epoch = shared_.epoch};
    if (limits.carries_payload) {
        packet.payload = shared_.pool.take();
        if (!payload.empty()) std::memcpy(shared_.pool.data(packet.payload), payload.data(), payload.size());
    }
    enqueue(packet, false);
}

void SimDirection::inject_datagram(std::span<const std::byte> datagram, Duration delay) {
    if (datagram.size() > shared_.config.limits.max_datagram_bytes) {
        ++sender_.counters.datagrams_refused;
        return;
    }
    enqueue_datagram(shared_.loop.now() + std::max(delay, Duration()), std::vector(datagram.begin(), datagram.end()));
}

void SimDirection::on_writable_timer() {
    if (!blocked_ || sender_.paused) return;
    blocked_ = false;
    if (sender_.sink != nullptr && !sender_.killed) sender_.sink->on_writable();
}

void SimDirection::sender_resumed() {
    if (blocked_) writable_timer_.arm_no_later_than(shared_.loop.now());
}

// --- delivering ---

void SimDirection::receiver_resumed() {
    const TimePoint now = shared_.loop.now();
    if (next_arrival() != TimePoint::never()) {
        planned_ = false;
        delivery_timer_.arm_no_later_than(std::max(next_arrival(), now));
    }
    if (!datagrams_.empty()) datagram_timer_.arm_no_later_than(std::max(datagrams_.front().arrives, now));
}

TimePoint SimDirection::next_arrival() const {
    const TimePoint in_order = ring_.empty() ? TimePoint::never() : ring_.front().arrives;
    return late_.empty() ? in_order : std::min(in_order, late_.front().arrives);
}

/// Arrival of the last packet known by now that comes within the window of the first.
TimePoint SimDirection::batch_end() const {
    const TimePoint first = next_arrival();
    const TimePoint limit = first + shared_.config.coalesce;
    const std::size_t most = std::min<std::size_t>(ring_.size(), shared_.config.coalesce_packets);
    TimePoint end = first;
    if (most > 0 && ring_[most - 1].arrives <= limit) {
        end = std::max(end, ring_[most - 1].arrives);
    } else {
        for (std::size_t i = 0; i < most && ring_[i].arrives <= limit; ++i) end = std::max(end, ring_[i].arrives);
    }
    if (!late_.empty() && late_.front().arrives <= limit && most < shared_.config.coalesce_packets)
        end = std::max(end, late_.front().arrives);
    return end;
}

void SimDirection::arm_delivery() {
    const TimePoint first = next_arrival();
    if (first == TimePoint::never()) return delivery_timer_.disarm();
    const TimePoint end = batch_end();
    // When everything in flight is part of this batch, more may still come within the window: look again when the last
    // of it is there.
    planned_ = ring_.size() > shared_.config.coalesce_packets ||
               (!ring_.empty() && ring_.back().arrives > first + shared_.config.coalesce);
    delivery_timer_.arm(std::max(end, shared_.loop.now()));
}

void SimDirection::on_delivery_timer() {
    if (receiver_.paused) return;
    const TimePoint now = shared_.loop.now();
    if (next_arrival() == TimePoint::never()) return;
    if (!planned_) {
        const TimePoint end = batch_end();
        if (end > now) {
            planned_ = true;
            return delivery_timer_.arm(end);
        }
    }
    deliver_due(now);
    if (!receiver_.paused) arm_delivery();
}

std::size_t SimDirection::collect(TimePoint now, std::array<Packet, 64>& batch) {
    std::size_t count = 0;
    while (count < shared_.config.coalesce_packets) {
        const bool from_ring = !ring_.empty() && ring_.front().arrives <= now;
        const bool from_late = !late_.empty() && late_.front().arrives <= now;
        if (from_late && (!from_ring || arrives_later(ring_.front(), late_.front()))) {
            batch[count++] = late_.front();
            std::pop_heap(late_.begin(), late_.end(), arrives_later);
            late_.pop_back();
        } else if (from_ring) {
            batch[count++] = ring_.front();
            ring_.pop();
        } else {
            break;
        }
    }
    return count;
}

/// Hands over everything that has arrived. Callbacks may send, detach the sink, kill, pause or restart.
void SimDirection::deliver_due(TimePoint now) {
    std::array<Packet, 64> batch;
    while (!receiver_.paused) {
        const std::size_t count = collect(now, batch);
        if (count == 0) return;
        hand_over(std::span(batch).first(count));
        for (std::size_t i = 0; i < count; ++i) shared_.pool.give_back(batch[i].payload);
    }
}

void SimDirection::hand_over(std::span<const Packet> batch) {
    auto& counters = receiver_.counters;
    if (receiver_.sink == nullptr || receiver_.killed) {
        counters.undeliverable += batch.size();
        return;
    }
    ++counters.deliveries;
    const bool traced = shared_.traced();
    std::array<sdr::Arrival, kMostPerDelivery> arrivals;
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    for (const Packet& packet : batch) {
        if (packet.epoch != shared_.epoch) {
            ++counters.foreign;
            continue;
        }
        const sdr::Arrival arrival{
            .payload = packet.payload == PayloadPool::kNone ? nullptr : shared_.pool.data(packet.payload),
            .length = packet.length,
            .immediate = packet.immediate,
            .generation = packet.generation};
        if (by_channel_.empty())
            arrivals[count] = arrival;
        else
            by_channel_[packet.channel].push_back(arrival);
        ++count;
        bytes += packet.length;
        if (traced)
            shared_.trace({.kind = SimEvent::Kind::kDeliver,
                           .endpoint = receiver_.index,
                           .at = packet.arrives,
                           .arrives = shared_.loop.now(),
                           .length = packet.length,
                           .immediate = packet.immediate,
                           .generation = packet.generation});
    }
    counters.packets_received += count;
    counters.bytes_received += bytes;
    if (by_channel_.empty()) {
        if (count > 0) receiver_.sink->on_arrivals(0, std::span(arrivals).first(count));
        return;
    }
    for (std::uint32_t channel = 0; channel < by_channel_.size(); ++channel) {
        auto& mine = by_channel_[channel];
        if (!mine.empty() && receiver_.sink != nullptr) receiver_.sink->on_arrivals(channel, mine);
        mine.clear();
    }
}

void SimDirection::deliver_datagrams(TimePoint now) {
    // Data that came earlier is seen earlier, coalescing or not.
    const bool was_planned = delivery_timer_.armed();
    if (!receiver_.paused && next_arrival() <= now) {
        deliver_due(now);
        if (!receiver_.paused && was_planned) arm_delivery();
    }
    auto& counters = receiver_.counters;
    while (!receiver_.paused && !datagrams_.empty() && datagrams_.front().arrives <= now) {
        std::pop_heap(datagrams_.begin(), datagrams_.end(), datagram_later);
        Datagram datagram = std::move(datagrams_.back());
        datagrams_.pop_back();
        if (receiver_.sink == nullptr || receiver_.killed) {
            ++counters.undeliverable;
        } else if (datagram.epoch != shared_.epoch) {
            ++counters.foreign;
        } else {
            ++counters.datagrams_received;
            if (shared_.traced())
                shared_.trace({.kind = SimEvent::Kind::kDeliverDatagram,
                               .endpoint = receiver_.index,
                               .at = datagram.arrives,
                               .arrives = now,
                               .length = static_cast<std::uint32_t>(datagram.bytes.size()),
                               .immediate = 0,
                               .generation = 0});
            receiver_.sink->on_datagram(datagram.bytes);
        }
        spare_datagrams_.push_back(std::move(datagram.bytes));
    }
    if (!receiver_.paused && !datagrams_.empty()) datagram_timer_.arm_no_later_than(datagrams_.front().arrives);
}

}  // namespace farhaul::wire
