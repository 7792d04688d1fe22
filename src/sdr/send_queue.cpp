#include "sdr/send_queue.hpp"

#include <algorithm>

namespace farhaul::sdr {

namespace {

constexpr std::uint64_t kQuantumBytes = 64 * 1024;
constexpr Duration kQuantumTime = Duration::from_microseconds(200);
constexpr Duration kCredit = Duration::from_microseconds(250);

Duration quantum_of(BitRate rate) {
    return rate.unlimited() ? kQuantumTime : std::min(kQuantumTime, rate.time_for(kQuantumBytes));
}

}  // namespace

SendQueue::SendQueue(Loop& loop, Wire& wire, const QueuePairConfig& config, SendQueueSink& sink)
    : loop_(loop),
      wire_(wire),
      sink_(sink),
      layout_(config.layout),
      payload_bytes_(config.payload_bytes),
      overhead_bytes_(config.overhead_bytes),
      channels_(std::max(1u, wire.limits().channels)),
      line_(config.rate_limit),
      quantum_(quantum_of(config.rate_limit)),
      rate_timer_(loop.timers(), [](void* self) { static_cast<SendQueue*>(self)->inject(); }, this) {}

// --- the queue ---

SendRange* SendQueue::allocate() {
    if (free_ == nullptr) return &pool_.emplace_back();
    SendRange* range = free_;
    free_ = range->next;
    return range;
}

void SendQueue::recycle(SendRange* range) {
    range->next = free_;
    free_ = range;
}

/// Puts a send into the list of those with ordinary ranges, from behind: most are the newest.
void SendQueue::activate(SendHandle& send) {
    SendHandle* before = active_last_;
    while (before != nullptr && before->sequence_ > send.sequence_) before = before->previous_active_;
    send.previous_active_ = before;
    send.next_active_ = before != nullptr ? before->next_active_ : active_first_;
    (before != nullptr ? before->next_active_ : active_first_) = &send;
    (send.next_active_ != nullptr ? send.next_active_->previous_active_ : active_last_) = &send;
}

void SendQueue::deactivate(SendHandle& send) {
    (send.previous_active_ != nullptr ? send.previous_active_->next_active_ : active_first_) = send.next_active_;
    (send.next_active_ != nullptr ? send.next_active_->previous_active_ : active_last_) = send.previous_active_;
    send.next_active_ = send.previous_active_ = nullptr;
}

void SendQueue::push(SendHandle& send, std::uint64_t offset, const std::byte* data, std::uint64_t length, bool urgent) {
    SendRange* range = allocate();
    *range = {.send = &send,
              .data = data,
              .offset = offset,
              .length = length,
              .left = length,
              .packet = static_cast<std::uint32_t>(offset / payload_bytes_),
              .packets = static_cast<std::uint32_t>((length + payload_bytes_ - 1) / payload_bytes_),
              .urgent = urgent,
              .next = nullptr};
    if (urgent) {
        (urgent_last_ != nullptr ? urgent_last_->next : urgent_first_) = range;
        urgent_last_ = range;
        ++send.urgent_ranges_;
    } else {
        if (send.first_range_ == nullptr) activate(send);
        (send.last_range_ != nullptr ? send.last_range_->next : send.first_range_) = range;
        send.last_range_ = range;
    }
    send.queued_packets_ += range->packets;
    queued_packets_ += range->packets;
    low_armed_ = true;
}

void SendQueue::pop_first() {
    SendRange* range = first();
    SendHandle& send = *range->send;
    if (range->urgent) {
        urgent_first_ = range->next;
        if (urgent_first_ == nullptr) urgent_last_ = nullptr;
        --send.urgent_ranges_;
    } else {
        send.first_range_ = range->next;
        if (send.first_range_ == nullptr) {
            send.last_range_ = nullptr;
            deactivate(send);
        }
    }
    recycle(range);
}

SendRange* SendQueue::after(const SendRange& range) const {
    if (range.next != nullptr) return range.next;
    if (range.urgent) return first_ordinary();
    return range.send->next_active_ != nullptr ? range.send->next_active_->first_range_ : nullptr;
}

void SendQueue::drop(SendHandle& send) {
    if (send.first_range_ != nullptr) {
        deactivate(send);
        for (SendRange* range = send.first_range_; range != nullptr;) {
            SendRange* next = range->next;
            recycle(range);
            range = next;
        }
        send.first_range_ = send.last_range_ = nullptr;
    }
    if (send.urgent_ranges_ > 0) {
        SendRange* kept = nullptr;
        for (SendRange* range = urgent_first_; range != nullptr;) {
            SendRange* next = range->next;
            if (range->send == &send) {
                (kept != nullptr ? kept->next : urgent_first_) = next;
                recycle(range);
            } else {
                kept = range;
            }
            range = next;
        }
        urgent_last_ = kept;
        send.urgent_ranges_ = 0;
    }
    queued_packets_ -= send.queued_packets_;
    send.queued_packets_ = 0;
    for (std::size_t i = 0; i < injected_count_; ++i)
        if (injected_[i].send == &send) injected_[i].send = nullptr;
}

void SendQueue::stop() {
    stopped_ = true;
    rate_timer_.disarm();
}

// --- the rate ---

void SendQueue::set_rate(BitRate rate) {
    line_.set_rate(rate);
    quantum_ = quantum_of(rate);
    rate_timer_.disarm();
    inject();
}

/// How many bytes may go now; false (and a timer) when none may.
bool SendQueue::rate_allows(std::uint64_t& budget) {
    budget = ~0ull;
    if (line_.rate().unlimited()) return true;
    const TimePoint now = loop_.now();
    const TimePoint start = std::max(line_.idle_at(), credit_ ? now - kCredit : now);
    const TimePoint limit = now + quantum_;
    if (start >= limit) {
        credit_ = true;
        rate_timer_.arm(std::max(now + Duration::from_nanoseconds(1), start - quantum_ / 2));
        return false;
    }
    budget = std::max<std::uint64_t>(1, line_.rate().bytes_in(limit - start));
    return true;
}

void SendQueue::account(std::span<const OutgoingPacket> taken) {
    std::uint64_t bytes = 0;
    for (const OutgoingPacket& packet : taken) bytes += packet.length;
    packets_sent_ += taken.size();
    bytes_sent_ += bytes;
    next_channel_ = static_cast<std::uint32_t>((next_channel_ + taken.size()) % channels_);
    if (line_.rate().unlimited() || taken.empty()) return;
    const TimePoint now = loop_.now();
    const TimePoint start = credit_ ? std::min(now, std::max(line_.idle_at(), now - kCredit)) : now;
    line_.send(start, bytes + taken.size() * overhead_bytes_);
}

// --- injection ---

/// Cuts up to a burst of packets off the front of the queue, without taking them out; `budget` bytes may be overrun by
/// one packet.
std::size_t SendQueue::build(std::span<OutgoingPacket> burst, std::uint64_t budget) const {
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    std::uint32_t channel = next_channel_;
    const std::uint32_t residue_mask = layout_.fragments() - 1;
    const std::uint32_t fragment_mask = (1u << layout_.fragment_bits) - 1;
    for (const SendRange* range = first(); range != nullptr; range = after(*range)) {
        const SendHandle& send = *range->send;
        const std::byte* data = range->data;
        std::uint64_t left = range->left;
        for (std::uint32_t packet = range->packet; left > 0; ++packet) {
            if (count == burst.size() || bytes >= budget) return count;
            const auto length = static_cast<std::uint32_t>(std::min<std::uint64_t>(left, payload_bytes_));
            std::uint32_t immediate = send.immediate_base_ | packet << layout_.fragment_bits;
            if (send.has_immediate_)
                immediate |= send.user_immediate_ >> ((packet & residue_mask) * layout_.fragment_bits) & fragment_mask;
            burst[count++] = {data, length, immediate, send.generation_, channel};
            if (++channel == channels_) channel = 0;
            if (data != nullptr) data += length;
            left -= length;
            bytes += length + overhead_bytes_;
        }
    }
    return count;
}

/// Takes `packets` packets out of the queue, in the order in which build() saw them.
void SendQueue::consume(std::size_t packets) {
    while (packets > 0) {
        SendRange& range = *first();
        const auto taken = static_cast<std::uint32_t>(std::min<std::size_t>(packets, range.packets));
        const std::uint64_t bytes = std::min(range.left, static_cast<std::uint64_t>(taken) * payload_bytes_);
        range.packet += taken;
        range.packets -= taken;
        range.left -= bytes;
        if (range.data != nullptr) range.data += bytes;
        range.send->queued_packets_ -= taken;
        queued_packets_ -= taken;
        packets -= taken;
        if (range.packets == 0) {
            injected_[injected_count_++] = {range.send, range.offset, range.length};
            pop_first();
        }
    }
}

void SendQueue::inject() {
    if (injecting_ || stopped_ || corks_ > 0) return;
    injecting_ = true;
    std::array<OutgoingPacket, kBurst> burst;
    while (!stopped_ && !blocked_ && queued_packets_ > 0) {
        std::uint64_t budget = 0;
        if (!rate_allows(budget)) break;
        sink_.before_data();
        const std::size_t count = build(burst, budget);
        blocked_ = true;  // until on_writable(), which may come from inside tx_burst()
        const std::size_t taken = wire_.tx_burst({burst.data(), count});
        if (taken == count) blocked_ = false;
        account({burst.data(), taken});
        consume(taken);
        if (blocked_) credit_ = false;
        for (std::size_t i = 0; i < injected_count_ && !stopped_; ++i)
            if (injected_[i].send != nullptr)
                sink_.on_range_injected(*injected_[i].send, injected_[i].offset, injected_[i].length);
        injected_count_ = 0;
        if (queued_packets_ < QueuePair::send_queue_low_packets() && low_armed_ && !stopped_) {
            low_armed_ = false;
            sink_.on_low();
        }
    }
    if (queued_packets_ == 0) credit_ = false;
    injecting_ = false;
}

void SendQueue::on_writable() {
    blocked_ = false;
    inject();
}

}  // namespace farhaul::sdr
