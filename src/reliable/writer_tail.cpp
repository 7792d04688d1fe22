// What `auto` adds to the Writer: how far the tail reaches, its parity, and repairs that are sent several times.
#include <algorithm>
#include <limits>

#include "reliable/writer.hpp"

namespace farhaul::reliable {
namespace {

// A tail of fewer packets is extended: parity of some ten packets costs the same packets for more.
constexpr std::uint32_t kLeastCoded = 256;
constexpr std::uint32_t kTailRunPackets = 64;
// No receiver rebuilds more between two acks: what claims so is malformed.
constexpr std::uint32_t kMostRebuilt = 1u << 24;

}  // namespace

sdr::SendHandle** Writer::parity_send(Message& message) {
    if (message.parity) return &message.parity->send;
    if (message.tail) return &message.tail->send;
    return nullptr;
}

// Packets sent from now on whose loss could not be noticed and repaired before as many others were sent.
std::uint64_t Writer::packets_in_flight() const {
    const Duration rtt = env_.round_trip.smoothed();
    const Duration span = rtt + reorder_window_ + rtt / 16;
    const sdr::QueuePairConfig& pair = env_.queue_pair.config();
    const BitRate rate = env_.config.line_rate.unlimited() ? pair.rate_limit : env_.config.line_rate;
    if (!rate.unlimited()) {
        const double bits = static_cast<double>(rate.bits_per_second()) * span.seconds();
        return static_cast<std::uint64_t>(bits / 8 / (pair.payload_bytes + pair.overhead_bytes)) + 1;
    }
    if (env_.config.window_bytes > 0) return env_.config.window_bytes / pair.payload_bytes + 1;
    return std::numeric_limits<std::uint64_t>::max() / 2;
}

// Packets of all Writes that have not been queued yet.
std::uint64_t Writer::packets_waiting() const {
    std::uint64_t packets = 0;
    for (std::size_t i = next_operation_; i < operations_.size(); ++i)
        packets += (operations_[i]->length - operations_[i]->started) / payload_bytes();
    for (std::uint64_t sequence = std::max(injecting_, first_sequence_); sequence < first_sequence_ + messages_.size();
         ++sequence)
        if (const auto& message = messages_[sequence - first_sequence_])
            packets += message->packets - message->next_new;
    return packets;
}

void Writer::plan_tail(Message& message, std::uint64_t capacity) {
    if (message.packets == 0) return;
    const std::uint64_t in_flight = packets_in_flight();
    const std::uint64_t behind = packets_waiting() - message.packets;
    if (behind >= in_flight) return;
    auto coded = static_cast<std::uint32_t>(std::min<std::uint64_t>(message.packets, in_flight - behind));
    coded = std::max(coded, std::min(kLeastCoded, message.packets));
    const bool whole = coded == message.packets && message.length == capacity;
    const TailLayout layout = whole ? env_.tail->whole(capacity) : env_.tail->part(message.length, coded, capacity);
    const TailPlan plan = planner_.plan(layout, loss_);
    if (plan.packets(layout) == 0) return;
    if (!whole) message.tail_immediate = TailCoding::immediate_of(coded, message.length < capacity);
    message.tail = std::make_unique<TailParity>(
        *env_.tail, layout, plan, whole ? 0 : env_.tail->explicit_base(capacity), message.data, message.length,
        env_.config.executor, [](void* self) { static_cast<Writer*>(self)->pump(); }, this);
}

bool Writer::queue_tails() {
    if (env_.tail == nullptr) return false;
    for (auto& message : messages_) {
        if (!message || !message->tail || message->tail->send == nullptr || message->tail->all_queued()) continue;
        if (message->next_new < message->packets) continue;  // waits for the window
        const TailParity::Run run = message->tail->next(kTailRunPackets);
        if (run.count == 0) continue;
        const auto queued =
            env_.queue_pair.continue_send(*message->tail->send, std::uint64_t{run.first} * payload_bytes(), run.data,
                                          std::uint64_t{run.count} * payload_bytes());
        if (!queued) {
            env_.abort(queued.error());
            return false;
        }
        message->tail->note_queued(run.count);
        env_.counters.packets_parity += run.count;
        return true;
    }
    return false;
}

// The repairs that the ack at hand asked for go several times when there is no time to ask again.
void Writer::repeat_repairs() {
    const std::size_t end = repairs_.size();
    if (repairs_mark_ >= end) return;
    const std::uint64_t in_flight = packets_in_flight();
    if (packets_waiting() >= in_flight) return;
    // How many such repairs there will be: one round trip's losses, or those at hand.
    std::uint64_t at_hand = 0;
    for (std::size_t i = repairs_mark_; i < end; ++i) at_hand += repairs_[i].run.count;
    std::uint64_t sent = 0;
    for (const auto& message : messages_)
        if (message) sent += message->high_water;
    const double expected =
        std::max(static_cast<double>(at_hand), loss_.mean() * static_cast<double>(std::min(in_flight, sent)));
    const std::uint32_t copies = TailPlanner::copies(expected, loss_);
    for (std::uint32_t copy = 1; copy < copies; ++copy)
        for (std::size_t i = repairs_mark_; i < end; ++i) repairs_.push_back(repairs_[i]);
}

void Writer::note_rebuilt(const Ack& ack) {
    const std::uint32_t packets = ack.rebuilt - rebuilt_seen_;
    const std::uint32_t bursts = ack.rebuilt_bursts - rebuilt_bursts_seen_;
    rebuilt_seen_ = ack.rebuilt;
    rebuilt_bursts_seen_ = ack.rebuilt_bursts;
    if (packets == 0 || packets > kMostRebuilt || bursts > packets) return;
    env_.counters.packets_rebuilt += packets;
    loss_.add_lost(packets, bursts);
}

}  // namespace farhaul::reliable
