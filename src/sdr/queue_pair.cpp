#include "sdr/queue_pair.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <map>

#include "base/log.hpp"
#include "sdr/control.hpp"
#include "sdr/send_queue.hpp"

namespace farhaul::sdr {

namespace {

constexpr std::size_t kArrivalPiece =
    256;  // a batch is taken in pieces of this size, so that the slots it is for fit on the stack

struct alignas(64) ChannelCounters {
    std::atomic<std::uint64_t> accepted{0}, duplicate{0}, stale{0}, out_of_bounds{0}, out_of_order{0};

    /// One thread per channel: no locked additions.
    void add(const ArrivalCounters& counters) {
        const auto bump = [](std::atomic<std::uint64_t>& to, std::uint64_t by) {
            to.store(to.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
        };
        bump(accepted, counters.accepted);
        bump(duplicate, counters.duplicate);
        bump(stale, counters.stale);
        bump(out_of_bounds, counters.out_of_bounds);
        bump(out_of_order, counters.out_of_order);
    }
    void add_to(ArrivalCounters& sum) const {
        sum.accepted += accepted.load(std::memory_order_relaxed);
        sum.duplicate += duplicate.load(std::memory_order_relaxed);
        sum.stale += stale.load(std::memory_order_relaxed);
        sum.out_of_bounds += out_of_bounds.load(std::memory_order_relaxed);
        sum.out_of_order += out_of_order.load(std::memory_order_relaxed);
    }
};

/// Clear-to-sends kept beyond one turn of the ids; more is no honest peer.
constexpr std::uint64_t kMostPostedAhead = 65'536;

/// A receive that the peer posted and we have not used.
struct Posted {
    std::uint64_t length = 0;
    std::uint32_t tag = 0;
    bool known = false;
};

QueuePairListener& null_listener() {
    static QueuePairListener listener;
    return listener;
}

Status check(const QueuePairConfig& config, const WireLimits& limits) {
    if (auto ok = config.layout.validate(); !ok) return ok;
    const auto bad = [](const char* field, std::uint64_t value, std::uint64_t low, std::uint64_t high) -> Status {
        return fail(ErrorCode::kInvalidArgument, "{} is {}: must be {} to {}", field, value, low, high);
    };
    if (config.payload_bytes < 1 || config.payload_bytes > limits.max_payload_bytes)
        return bad("payload_bytes", config.payload_bytes, 1, limits.max_payload_bytes);
    if (config.packets_per_chunk < 1 || config.packets_per_chunk > 64)
        return bad("packets_per_chunk", config.packets_per_chunk, 1, 64);
    if (config.max_messages < 1 || config.max_messages > config.layout.message_ids())
        return bad("max_messages", config.max_messages, 1, config.layout.message_ids());
    const std::uint64_t most = static_cast<std::uint64_t>(config.layout.max_packets()) * config.payload_bytes;
    if (config.max_message_bytes > most) return bad("max_message_bytes", config.max_message_bytes, 0, most);
    if (config.initial_rtt <= Duration() || config.control_timeout <= Duration())
        return fail(ErrorCode::kInvalidArgument, "initial_rtt and control_timeout must be above 0");
    if (limits.max_datagram_bytes < ControlChannel::kMinDatagramBytes)
        return fail(ErrorCode::kInvalidArgument, "the wire carries datagrams of {} bytes: at least {} are needed",
                    limits.max_datagram_bytes, ControlChannel::kMinDatagramBytes);
    return {};
}

}  // namespace

struct QueuePair::State final : ControlSink, SendQueueSink {
    State(Loop& loop_in, Wire& wire_in, const QueuePairConfig& config_in, QueuePairListener* listener_in,
          std::unique_ptr<MessageTable> table_in)
        : loop(loop_in),
          wire(wire_in),
          limits(wire_in.limits()),
          config(config_in),
          listener(listener_in != nullptr ? listener_in : &null_listener()),
          table(std::move(table_in)),
          control(loop_in, wire_in,
                  {.max_datagram_bytes = limits.max_datagram_bytes,
                   .initial_rtt = config_in.initial_rtt,
                   .timeout = config_in.control_timeout,
                   .max_records = std::max<std::size_t>(2 * ControlChannel::kWindow, 4ull * config_in.max_messages)},
                  *this),
          queue(loop_in, wire_in, config_in, *this),
          channels(std::max(1u, limits.channels)),
          error_timer(loop_in.timers(), [](void* self) { static_cast<State*>(self)->report_error(); }, this) {
        datagram.reserve(limits.max_datagram_bytes);
        if (config.send_enable) posted.resize(config.layout.message_ids());
        if (limits.concurrent_channels)
            progress = std::vector<std::atomic<std::uint64_t>>((config.layout.message_ids() + 63) / 64);
    }

    Status failed_status() const { return fail(ErrorCode::kClosed, "the queue pair has failed: {}", error.message); }

    void fail_with(const Error& cause) {
        if (failed.exchange(true)) return;
        error = cause;
        queue.stop();
        control.stop();
        error_timer.arm(loop.now());
    }
    void report_error() {
        const Error copy = error;
        listener->on_queue_pair_error(copy);  // last: the listener may destroy the queue pair
    }

    // ControlSink: only notes what happened; report_control() tells the listener when the datagram is done with.
    bool on_clear_to_send(const ClearToSend& record) override {
        if (!config.send_enable) return false;
        if (record.sequence < next_send) return true;  // used already
        const std::uint64_t ahead = record.sequence - next_send;
        if (ahead >= config.layout.message_ids() + kMostPostedAhead) return false;
        // A receive that was completed before we started to send frees its id: the peer may be turns of the ids ahead.
        Posted& entry = ahead < config.layout.message_ids()
                            ? posted[record.sequence & (config.layout.message_ids() - 1)]
                            : posted_ahead[record.sequence];
        if (entry.known) return entry.length == record.length && entry.tag == record.tag;
        if (record.length > static_cast<std::uint64_t>(config.layout.max_packets()) * config.payload_bytes)
            return false;
        entry = {record.length, record.tag, true};
        clear_to_send_came = true;
        return true;
    }
    bool on_message_info(const MessageInfo& record) override {
        if (!config.receive_enable || record.sequence >= next_post) return false;
        MessageSlot* slot = table->find(record.sequence);
        if (slot == nullptr) return true;  // completed early
        if (!table->set_length(*slot, record.length)) return false;
        if (record.immediate) slot->set_immediate(*record.immediate);
        informed.push_back(slot);
        return true;
    }
    void on_control_timeout(const Error& cause) override { fail_with(cause); }

    void report_control() {
        if (clear_to_send_came) {
            clear_to_send_came = false;
            listener->on_clear_to_send();
        }
        // By index: a listener may cause nothing that adds here, but the list must survive it all the same.
        for (std::size_t i = 0; i < informed.size(); ++i)
            if (informed[i]->open()) listener->on_receive_progress(*informed[i]);
        informed.clear();
    }

    // SendQueueSink
    void before_data() override { control.flush(); }
    void on_range_injected(SendHandle& send, std::uint64_t offset, std::uint64_t length) override {
        listener->on_injected(send, offset, length);
    }
    void on_low() override { listener->on_send_queue_low(); }

    const Posted* next_posted() const {
        if (!config.send_enable) return nullptr;
        const Posted& entry = posted[next_send & (config.layout.message_ids() - 1)];
        return entry.known ? &entry : nullptr;
    }
    SendHandle& new_handle() {
        if (free_handles.empty()) {
            handles.push_back(std::make_unique<SendHandle>());
            free_handles.push_back(handles.back().get());
        }
        SendHandle& handle = *free_handles.back();
        free_handles.pop_back();
        return handle;
    }

    Loop& loop;
    Wire& wire;
    const WireLimits limits;
    const QueuePairConfig config;
    QueuePairListener* listener;
    QueuePairCounters counters;
    std::unique_ptr<MessageTable> table;
    ControlChannel control;
    SendQueue queue;
    std::vector<std::byte> datagram;
    std::uint64_t malformed = 0;
    std::uint64_t datagrams_sent = 0;
    std::uint64_t datagrams_received = 0;

    // Sending.
    std::uint64_t next_send = 0;
    std::uint32_t sends_in_flight = 0;
    std::vector<Posted> posted;                    // by message id: the next message_ids() from next_send
    std::map<std::uint64_t, Posted> posted_ahead;  // by sequence: those after them
    bool clear_to_send_came = false;
    std::vector<std::unique_ptr<SendHandle>> handles;
    std::vector<SendHandle*> free_handles;

    // Receiving.
    std::uint64_t next_post = 0;
    std::uint32_t receives_open = 0;
    std::vector<MessageSlot*> informed;
    std::vector<ChannelCounters> channels;
    // With concurrent channels: message ids that saw packets since the last poll(), and whether wake() was called
    // since.
    std::vector<std::atomic<std::uint64_t>> progress;
    std::atomic<bool> woken{false};

    std::atomic<bool> failed{false};
    Error error{ErrorCode::kClosed, {}};
    Timer error_timer;
};

QueuePair::QueuePair() = default;

Result<std::unique_ptr<QueuePair>> QueuePair::create(Loop& loop, Wire& wire, const QueuePairConfig& config,
                                                     QueuePairListener* listener) {
    const WireLimits& limits = wire.limits();
    if (auto ok = check(config, limits); !ok) return propagate(ok);
    auto table = MessageTable::create({.layout = config.layout,
                                       .payload_bytes = config.payload_bytes,
                                       .packets_per_chunk = config.packets_per_chunk,
                                       .generation_bits = limits.generation_bits,
                                       .claim_before_copy = limits.concurrent_channels && limits.carries_payload});
    if (!table) return propagate(table);
    std::unique_ptr<QueuePair> queue_pair(new QueuePair);
    queue_pair->state_ = std::make_unique<State>(loop, wire, config, listener, std::move(*table));
    wire.attach(queue_pair.get());
    return queue_pair;
}

QueuePair::~QueuePair() {
    state_->wire.attach(nullptr);
    state_->wire.quiesce();
}

const QueuePairConfig& QueuePair::config() const { return state_->config; }
Loop& QueuePair::loop() { return state_->loop; }
Duration QueuePair::round_trip() const { return state_->control.round_trip(); }
void QueuePair::set_rate_limit(BitRate rate) { state_->queue.set_rate(rate); }
void QueuePair::set_listener(QueuePairListener* listener) {
    state_->listener = listener != nullptr ? listener : &null_listener();
}

const QueuePairCounters& QueuePair::counters() {
    State& s = *state_;
    s.counters.packets_sent = s.queue.packets_sent();
    s.counters.bytes_sent = s.queue.bytes_sent();
    s.counters.datagrams_sent = s.datagrams_sent + s.control.counters().datagrams_sent;
    s.counters.datagrams_received = s.datagrams_received;
    s.counters.malformed_datagrams = s.malformed + s.control.counters().malformed;
    s.counters.control_retransmissions = s.control.counters().retransmissions;
    s.counters.arrivals = {};
    for (const ChannelCounters& channel : s.channels) channel.add_to(s.counters.arrivals);
    return s.counters;
}

// --- sending ---

bool QueuePair::can_start_send() const {
    const State& s = *state_;
    return !s.failed && s.next_posted() != nullptr && s.sends_in_flight < s.config.max_messages && !s.control.full();
}

std::uint64_t QueuePair::next_send_capacity() const {
    const Posted* posted = state_->next_posted();
    return posted != nullptr ? posted->length : 0;
}

std::uint32_t QueuePair::next_send_tag() const {
    const Posted* posted = state_->next_posted();
    return posted != nullptr ? posted->tag : 0;
}

Result<SendHandle*> QueuePair::start_send(const StartSend& start) {
    State& s = *state_;
    if (s.failed) return std::unexpected(s.failed_status().error());
    if (!s.config.send_enable)
        return fail(ErrorCode::kInvalidArgument, "this queue pair only receives: create it with send_enable to send");
    const Posted* posted = s.next_posted();
    if (posted == nullptr) return fail(ErrorCode::kRetry, "the peer has not posted receive {} yet", s.next_send);
    if (s.sends_in_flight >= s.config.max_messages)
        return fail(ErrorCode::kRetry, "{} sends are in flight, the most allowed: release one first",
                    s.sends_in_flight);
    if (s.control.full())
        return fail(ErrorCode::kRetry, "too many control records wait for the peer's acknowledgement");
    if (start.length && *start.length > posted->length)
        return fail(ErrorCode::kInvalidArgument,
                    "message {} of {} bytes does not fit into the {} bytes that the peer posted", s.next_send,
                    *start.length, posted->length);
    const ImmediateLayout& layout = s.config.layout;
    SendHandle& send = s.new_handle();
    send = SendHandle();
    send.in_use_ = true;
    send.sequence_ = s.next_send;
    send.capacity_ = posted->length;
    send.tag_ = posted->tag;
    send.generation_ = static_cast<std::uint32_t>(s.next_send >> layout.message_bits);
    send.immediate_base_ = layout.encode(static_cast<std::uint32_t>(s.next_send & (layout.message_ids() - 1)), 0, 0);
    send.has_immediate_ = start.immediate.has_value();
    send.user_immediate_ = start.immediate.value_or(0);
    Posted& used = s.posted[s.next_send & (layout.message_ids() - 1)];
    used.known = false;
    if (const auto next_turn = s.posted_ahead.find(s.next_send + layout.message_ids());
        next_turn != s.posted_ahead.end()) {
        used = next_turn->second;
        s.posted_ahead.erase(next_turn);
    }
    ++s.next_send;
    ++s.sends_in_flight;
    if (start.length) {
        send.length_known_ = true;
        send.length_ = *start.length;
        const std::uint64_t packets = (send.length_ + s.config.payload_bytes - 1) / s.config.payload_bytes;
        announce(send, start.announce_immediate || packets < layout.fragments());
    }
    return &send;
}

/// Tells the peer the final length unless it knows it, and the immediate if `immediate` (the packets will not carry all
/// of it).
void QueuePair::announce(SendHandle& send, bool immediate) {
    const bool tell_length = send.length_ != send.capacity_ && !send.length_announced_;
    const bool tell_immediate = immediate && send.has_immediate_ && !send.immediate_announced_;
    if (!tell_length && !tell_immediate) return;
    send.length_announced_ = true;
    send.immediate_announced_ |= tell_immediate;
    state_->control.queue(
        MessageInfo{.sequence = send.sequence_,
                    .length = send.length_,
                    .immediate = tell_immediate ? std::optional(send.user_immediate_) : std::nullopt});
}

Status QueuePair::continue_send(SendHandle& send, std::uint64_t offset, const std::byte* data, std::uint64_t length,
                                bool urgent) {
    State& s = *state_;
    if (s.failed) return s.failed_status();
    const std::uint32_t payload = s.config.payload_bytes;
    if (!send.in_use_) return fail(ErrorCode::kClosed, "this send was released");
    if (send.ended_ && !urgent)
        return fail(ErrorCode::kClosed, "message {} was ended: only urgent ranges (retransmissions) are taken",
                    send.sequence_);
    if (offset % payload != 0)
        return fail(ErrorCode::kInvalidArgument,
                    "message {}: offset {} is not a multiple of the packet payload, {} bytes", send.sequence_, offset,
                    payload);
    const std::uint64_t limit = send.length_known_ ? send.length_ : send.capacity_;
    if (offset > limit || length > limit - offset)
        return fail(ErrorCode::kInvalidArgument, "message {}: bytes {} to {} + {} lie beyond its {} bytes",
                    send.sequence_, offset, offset, length, limit);
    if (length == 0) return {};
    if (data == nullptr && s.limits.carries_payload)
        return fail(ErrorCode::kInvalidArgument, "message {}: no data, but this wire carries payload", send.sequence_);
    const std::uint64_t end = offset + length;
    if (length % payload != 0 && end != limit) {
        if (send.length_known_ || send.furthest_ > end)
            return fail(
                ErrorCode::kInvalidArgument,
                "message {}: a range of {} bytes in its middle is not a multiple of the packet payload, {} bytes",
                send.sequence_, length, payload);
        send.length_known_ = true;
        send.length_ = end;
        announce(send, false);
    }
    send.furthest_ = std::max(send.furthest_, end);
    if (send.has_immediate_ && send.covered_ != s.config.layout.all_fragments()) {
        const std::uint32_t fragments = s.config.layout.fragments();
        const std::uint64_t first = offset / payload;
        const std::uint64_t packets = (length + payload - 1) / payload;
        for (std::uint64_t i = 0; i < std::min<std::uint64_t>(packets, fragments); ++i)
            send.covered_ |= 1u << ((first + i) & (fragments - 1));
    }
    s.queue.push(send, offset, data, length, urgent);
    s.queue.inject();
    return {};
}

Status QueuePair::end_send(SendHandle& send) {
    State& s = *state_;
    if (s.failed) return s.failed_status();
    if (!send.in_use_ || send.ended_) return fail(ErrorCode::kClosed, "message {} was ended already", send.sequence_);
    send.ended_ = true;
    if (!send.length_known_) {
        send.length_known_ = true;
        send.length_ = send.furthest_;
    }
    announce(send, send.covered_ != s.config.layout.all_fragments());
    return {};
}

bool QueuePair::injected(const SendHandle& send) const { return send.queued_packets_ == 0; }

void QueuePair::release_send(SendHandle& send) {
    State& s = *state_;
    if (!send.in_use_) return;
    s.queue.drop(send);
    send.in_use_ = false;
    --s.sends_in_flight;
    s.free_handles.push_back(&send);
}

void QueuePair::cork() { state_->queue.cork(); }
void QueuePair::uncork() { state_->queue.uncork(); }

std::uint64_t QueuePair::send_queue_packets() const { return state_->queue.packets(); }

// --- receiving ---

Result<MessageSlot*> QueuePair::post_receive(std::byte* buffer, std::uint64_t length, std::uint32_t tag,
                                             SlotOptions options) {
    State& s = *state_;
    if (s.failed) return std::unexpected(s.failed_status().error());
    if (!s.config.receive_enable)
        return fail(ErrorCode::kInvalidArgument,
                    "this queue pair only sends: create it with receive_enable to receive");
    if (length > s.config.max_message_bytes)
        return fail(ErrorCode::kInvalidArgument, "a receive of {} bytes is above the most bytes of one message, {}",
                    length, s.config.max_message_bytes);
    if (buffer == nullptr && length > 0 && s.limits.carries_payload)
        return fail(ErrorCode::kInvalidArgument, "no buffer, but this wire carries payload");
    if (s.receives_open >= s.config.max_messages)
        return fail(ErrorCode::kRetry, "{} receives are open, the most allowed: complete one first", s.receives_open);
    if (s.control.full())
        return fail(ErrorCode::kRetry, "too many control records wait for the peer's acknowledgement");
    auto slot = s.table->open(s.next_post, buffer, length, options);
    if (!slot) return slot;
    s.control.queue(ClearToSend{.sequence = s.next_post, .length = length, .tag = tag});
    ++s.next_post;
    ++s.receives_open;
    return slot;
}

void QueuePair::mark_rebuilt(MessageSlot& slot, std::uint32_t first_packet, std::uint32_t count) {
    state_->table->mark_rebuilt(slot, first_packet, count);
}

void QueuePair::complete_receive(MessageSlot& slot) {
    State& s = *state_;
    if (!slot.open()) return;
    s.table->close(slot);
    s.wire.quiesce();
    --s.receives_open;
}

// --- events of the wire ---

void QueuePair::on_arrivals(std::uint32_t channel, std::span<const Arrival> arrivals) {
    State& s = *state_;
    if (s.failed.load(std::memory_order_relaxed)) return;
    ChannelCounters& counters = s.channels[channel < s.channels.size() ? channel : 0];
    std::array<MessageSlot*, kArrivalPiece> touched;
    std::size_t touched_count = 0;
    while (!arrivals.empty()) {
        const auto piece = arrivals.first(std::min(arrivals.size(), kArrivalPiece));
        arrivals = arrivals.subspan(piece.size());
        ArrivalCounters piece_counters;
        if (s.limits.concurrent_channels) {
            s.table->arrivals<true>(piece, piece_counters, touched, touched_count);
            for (std::size_t i = 0; i < touched_count; ++i) {
                const std::uint32_t id = s.table->index_of(*touched[i]);
                s.progress[id / 64].fetch_or(1ull << (id % 64), std::memory_order_acq_rel);
            }
            // Set after the bits, cleared by poll() before it reads them: a bit is never left behind.
            if (touched_count > 0 && !s.woken.exchange(true, std::memory_order_acq_rel)) s.wire.wake();
            counters.add(piece_counters);
        } else {
            s.table->arrivals<false>(piece, piece_counters, touched, touched_count);
            counters.add(piece_counters);
            for (std::size_t i = 0; i < touched_count; ++i)
                if (touched[i]->open()) s.listener->on_receive_progress(*touched[i]);
        }
    }
}

void QueuePair::poll() {
    State& s = *state_;
    if (!s.limits.concurrent_channels || !s.woken.exchange(false, std::memory_order_acq_rel) || s.failed) return;
    for (std::size_t word = 0; word < s.progress.size(); ++word) {
        if (s.progress[word].load(std::memory_order_relaxed) == 0) continue;
        for (std::uint64_t bits = s.progress[word].exchange(0, std::memory_order_acq_rel); bits != 0;
             bits &= bits - 1) {
            MessageSlot& slot = s.table->slot(static_cast<std::uint32_t>(word * 64) +
                                              static_cast<std::uint32_t>(std::countr_zero(bits)));
            if (slot.open()) s.listener->on_receive_progress(slot);
        }
    }
}

void QueuePair::on_datagram(std::span<const std::byte> datagram) {
    State& s = *state_;
    if (s.failed) return;
    ++s.datagrams_received;
    if (!datagram.empty() && datagram[0] == static_cast<std::byte>(DatagramKind::kRecords)) {
        s.control.receive(datagram);
        s.report_control();
    } else if (!datagram.empty() && datagram[0] == static_cast<std::byte>(DatagramKind::kUpper)) {
        s.listener->on_datagram(datagram.subspan(1));
    } else {
        ++s.malformed;
    }
}

void QueuePair::on_writable() { state_->queue.on_writable(); }
void QueuePair::on_wire_error(const Error& error) { state_->fail_with(error); }
void QueuePair::abort(const Error& error) { state_->fail_with(error); }

// --- datagrams of the layer above ---

std::uint32_t QueuePair::max_datagram_bytes() const { return state_->limits.max_datagram_bytes - 1; }

void QueuePair::send_datagram(std::span<const std::byte> datagram) {
    State& s = *state_;
    if (s.failed) return;
    if (datagram.size() > max_datagram_bytes()) {
        log().warn("datagram of {} bytes dropped: this path carries {}", datagram.size(), max_datagram_bytes());
        return;
    }
    s.datagram.assign(1, static_cast<std::byte>(DatagramKind::kUpper));
    s.datagram.insert(s.datagram.end(), datagram.begin(), datagram.end());
    ++s.datagrams_sent;
    s.wire.send_datagram(s.datagram);
}

}  // namespace farhaul::sdr
