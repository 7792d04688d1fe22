#include "reliable/reader.hpp"

#include <algorithm>
#include <bit>

namespace farhaul::reliable {
namespace {

constexpr std::uint32_t kFinalAckRepeats = 4;
constexpr Duration kMinAckSpacing = Duration::from_microseconds(20);
// Tags of clear-to-sends: the writer must know where the posted buffer ends.
constexpr std::uint32_t kTagMore = 0;
constexpr std::uint32_t kTagLastOfBuffer = 1;
constexpr std::uint32_t kTagParity = 2;

}  // namespace

Reader::Reader(Environment environment)
    : env_(std::move(environment)),
      encoder_(env_.queue_pair.max_datagram_bytes()),
      ack_timer_(
          env_.loop.timers(), [](void* self) { static_cast<Reader*>(self)->send_ack(); }, this),
      final_timer_(
          env_.loop.timers(),
          [](void* self) {
              static_cast<Reader*>(self)->send_ack();
              static_cast<Reader*>(self)->schedule_final_acks();
          },
          this) {
    if (env_.coding != nullptr) repairer_ = std::make_unique<Repairer>(*env_.coding, env_.queue_pair);
    if (env_.tail != nullptr) tail_repairer_ = std::make_unique<TailRepairer>(*env_.tail, env_.queue_pair);
}

Reader::~Reader() {
    for (Message& message : messages_)
        if (message.slot != nullptr) env_.queue_pair.complete_receive(*message.slot);
}

ReceiveId Reader::receive(std::byte* buffer, std::uint64_t length, ReceiveCallback done, bool want_immediate) {
    auto operation = std::make_unique<Operation>();
    const ReceiveId id = operation->id = next_id_++;
    operation->buffer = buffer;
    operation->length = length;
    operation->want_immediate = want_immediate;
    operation->done = std::move(done);
    operations_.push_back(std::move(operation));
    post_messages();  // may fail, and with it the connection and every operation
    return id;
}

void Reader::post_messages() {
    const std::uint64_t most = env_.max_message_bytes;
    const sdr::SlotOptions options{.in_order = env_.config.scheme.kind == Scheme::Kind::kGoBackN};
    if (parity_due_ && !post_parity()) return;
    for (auto& operation : operations_) {
        while (!operation->all_posted) {
            // What an Ack cannot name is not opened.
            if (messages_.size() >= kMaxCompletedAhead) return;
            const std::uint64_t length = std::min(most, operation->length - operation->posted);
            const bool last = operation->posted + length == operation->length;
            auto slot = env_.queue_pair.post_receive(
                operation->buffer == nullptr ? nullptr : operation->buffer + operation->posted, length,
                last ? kTagLastOfBuffer : kTagMore, options);
            if (!slot) {
                if (slot.error().code != ErrorCode::kRetry && slot.error().code != ErrorCode::kClosed)
                    env_.abort(slot.error());
                return;
            }
            Message message;
            message.slot = *slot;
            message.operation = operation.get();
            message.offset = operation->posted;
            message.first = operation->posted == 0;
            message.posted_length = length;
            messages_.push_back(std::move(message));
            operation->posted += length;
            operation->all_posted = last;
            ++operation->messages_open;
            if (paired()) {
                const std::uint64_t bytes =
                    env_.tail != nullptr ? env_.tail->parity_bytes(length) : env_.coding->parity_bytes(length);
                parity_due_ = ParityDue{bytes, operation->buffer != nullptr};
                if (!post_parity()) return;
            }
        }
    }
}

bool Reader::post_parity() {
    Message message;
    message.is_parity = true;
    if (parity_due_->carries_payload && parity_due_->bytes > 0)
        message.parity_buffer = std::make_unique_for_overwrite<std::byte[]>(parity_due_->bytes);
    auto slot = env_.queue_pair.post_receive(message.parity_buffer.get(), parity_due_->bytes, kTagParity);
    if (!slot) {
        if (slot.error().code != ErrorCode::kRetry && slot.error().code != ErrorCode::kClosed) env_.abort(slot.error());
        return false;
    }
    message.slot = *slot;
    parity_due_.reset();
    const std::uint64_t sequence = (*slot)->sequence();
    messages_.push_back(std::move(message));
    const Message* data = sequence == first_sequence_ ? nullptr : find(sequence - 1);
    if (data == nullptr || data->slot == nullptr) {  // complete before there was a slot for its parity
        close(messages_.back());
        retire();
    }
    return true;
}

void Reader::repair(std::uint64_t data_sequence) {
    Message* data = find(data_sequence);
    Message* parity = find(data_sequence + 1);
    if (data == nullptr || parity == nullptr || data->slot == nullptr || parity->slot == nullptr ||
        data->slot->complete())
        return;
    if (tail_repairer_) {
        const auto outcome =
            tail_repairer_->repair(*data->slot, *parity->slot, parity->parity_buffer.get(), data->posted_length);
        rebuilt_ += outcome.packets;
        rebuilt_bursts_ += outcome.bursts;
    } else {
        rebuilt_ += static_cast<std::uint32_t>(
            repairer_->repair(*data->slot, *parity->slot, parity->parity_buffer.get(), data->posted_length));
    }
}

Reader::Message* Reader::find(std::uint64_t sequence) {
    if (sequence < first_sequence_ || sequence - first_sequence_ >= messages_.size()) return nullptr;
    return &messages_[sequence - first_sequence_];
}

bool Reader::partly_received() const {
    return std::any_of(messages_.begin(), messages_.end(),
                       [](const Message& m) { return m.slot != nullptr && m.started; });
}

void Reader::open_slots(ReceiveId id, const std::function<void(std::uint64_t, const sdr::MessageSlot&)>& visit) const {
    for (const Message& message : messages_)
        if (message.slot != nullptr && !message.is_parity && message.operation->id == id)
            visit(message.offset, *message.slot);
}

bool Reader::arrived(const Message& message) const {
    const sdr::MessageSlot& slot = *message.slot;
    if (!slot.complete()) return false;
    // A message without packets has arrived when its announcement has. And the immediate may come behind the last
    // packet.
    std::uint32_t value = 0;
    const bool need_immediate = slot.length() == 0 || (message.first && message.operation->want_immediate);
    return !need_immediate || slot.immediate(&value);
}

void Reader::on_progress(sdr::MessageSlot& slot) {
    Message* message = find(slot.sequence());
    if (message == nullptr || message->slot != &slot) return;
    message->dirty = message->started = true;
    std::uint64_t sequence = slot.sequence();
    if (paired()) {
        if (message->is_parity) message = find(--sequence);
        repair(sequence);
    }
    if (message->slot != nullptr && arrived(*message)) {
        complete(sequence, false);
        return;
    }
    if (env_.config.scheme.kind == Scheme::Kind::kGoBackN) {
        const std::uint64_t swallowed = slot.swallowed_out_of_order();
        if (swallowed != message->swallowed && message->asked_to_go_back_at != slot.next_in_order()) {
            send_ack();  // carries the request
            return;
        }
    }
    if (!ack_timer_.armed()) ack_timer_.arm(env_.loop.now() + ack_interval());
}

void Reader::close(Message& message) {
    env_.queue_pair.complete_receive(*message.slot);
    message.slot = nullptr;
    message.parity_buffer.reset();
}

void Reader::retire() {
    while (!messages_.empty() && messages_.front().slot == nullptr) {
        messages_.pop_front();
        ++first_sequence_;
    }
}

void Reader::complete(std::uint64_t sequence, bool early) {
    Message& message = *find(sequence);
    Operation* operation = message.operation;
    std::uint32_t value = 0;
    if (message.first && operation->want_immediate && message.slot->immediate(&value)) operation->immediate = value;
    operation->received += message.slot->length();
    operation->early = operation->early || early;
    close(message);
    if (Message* parity = find(sequence + 1); paired() && parity != nullptr && parity->slot != nullptr) close(*parity);
    --operation->messages_open;
    retire();
    if (operation->all_posted && operation->messages_open == 0) {
        ++env_.counters.receives_completed;
        env_.counters.bytes_received += operation->received;
        for (auto it = operations_.begin(); it != operations_.end(); ++it)
            if (it->get() == operation) {
                const ReceiveResult result{operation->received, operation->immediate, operation->early};
                if (operation->done) env_.defer([done = std::move(operation->done), result] { done(result); });
                operations_.erase(it);
                break;
            }
    }
    post_messages();
    // Several messages may complete in one batch: one ack at its end tells of all. The timer fires before anything else
    // can arrive.
    ack_timer_.arm(env_.loop.now());
    final_acks_sent_ = 0;
    final_timer_.disarm();
    schedule_final_acks();
}

Status Reader::finish_early(ReceiveId id) {
    for (auto& operation : operations_) {
        if (operation->id != id) continue;
        if (!operation->all_posted)
            return farhaul::fail(ErrorCode::kRetry,
                                 "receive {} is not yet open in full: its later messages have no slot", id);
        std::vector<std::uint64_t> sequences;
        for (std::size_t i = 0; i < messages_.size(); ++i)
            if (messages_[i].slot != nullptr && !messages_[i].is_parity && messages_[i].operation == operation.get())
                sequences.push_back(first_sequence_ + i);
        for (std::uint64_t sequence : sequences) complete(sequence, true);
        return {};
    }
    return farhaul::fail(ErrorCode::kInvalidArgument, "there is no receive {} outstanding", id);
}

void Reader::fail(const Error& error) {
    ack_timer_.disarm();
    final_timer_.disarm();
    for (Message& message : messages_)
        if (message.slot != nullptr) env_.queue_pair.complete_receive(*message.slot);
    first_sequence_ += messages_.size();
    messages_.clear();
    auto ended = std::move(operations_);
    operations_.clear();
    for (auto& operation : ended)
        if (operation->done) env_.defer([done = std::move(operation->done), error] { done(std::unexpected(error)); });
}

// --- acks ---

Duration Reader::ack_interval() const {
    const Duration rtt = env_.round_trip.smoothed();
    const bool coarse =
        env_.config.scheme.kind == Scheme::Kind::kGoBackN || env_.config.scheme.kind == Scheme::Kind::kSelectiveRepeat;
    const Duration interval = coarse ? rtt / 16 : rtt / 64;
    return std::clamp(interval, Duration::from_microseconds(50), Duration::from_milliseconds(50));
}

void Reader::schedule_final_acks() {
    if (final_acks_sent_ >= kFinalAckRepeats) return;
    const Duration rtt = env_.round_trip.smoothed();
    const Duration wait = rtt / 256 * (1ll << (2 * final_acks_sent_));
    ++final_acks_sent_;
    final_timer_.arm(env_.loop.now() + std::max(wait, kMinAckSpacing));
}

void Reader::on_probe(std::uint32_t id) {
    if (static_cast<std::int32_t>(id - latest_probe_) > 0 || latest_probe_ == 0) latest_probe_ = id;
    const TimePoint now = env_.loop.now();
    if (acked_once_ && now - last_ack_at_ < kMinAckSpacing)
        ack_timer_.arm_no_later_than(last_ack_at_ + kMinAckSpacing);
    else
        send_ack();
}

void Reader::next_datagram() {
    env_.queue_pair.send_datagram(encoder_.datagram());
    ++env_.counters.acks_sent;
    begin_datagram();
}

void Reader::begin_datagram() {
    encoder_.begin({event_, latest_probe_, rebuilt_, rebuilt_bursts_, first_sequence_}, completed_ahead_);
}

void Reader::send_ack() {
    ack_timer_.disarm();
    ++event_;
    last_ack_at_ = env_.loop.now();
    acked_once_ = true;
    completed_ahead_.assign((messages_.size() + 63) / 64, 0);
    for (std::size_t i = 0; i < messages_.size(); ++i)
        if (messages_[i].slot == nullptr) completed_ahead_[i / 64] |= 1ull << (i % 64);
    begin_datagram();
    // Messages that have not begun need no section but the first of them, lest the loss of a whole message pass
    // unnoticed. What is behind it is reported when it has begun itself or becomes the first.
    bool first_unstarted = true;
    for (std::size_t i = 0; i < messages_.size(); ++i) {
        Message& message = messages_[i];
        if (message.slot == nullptr || message.is_parity) continue;
        if (!message.started && !first_unstarted) continue;
        if (!message.started) first_unstarted = false;
        encode_message(first_sequence_ + i, message);
        message.dirty = false;
    }
    env_.queue_pair.send_datagram(encoder_.datagram());
    ++env_.counters.acks_sent;
}

void Reader::encode_message(std::uint64_t sequence, Message& message) {
    const sdr::MessageSlot& slot = *message.slot;
    if (env_.config.scheme.kind == Scheme::Kind::kGoBackN) {
        const std::uint64_t swallowed = slot.swallowed_out_of_order();
        const bool go_back = swallowed != message.swallowed && message.asked_to_go_back_at != slot.next_in_order();
        message.swallowed = swallowed;
        if (go_back) message.asked_to_go_back_at = slot.next_in_order();
        if (!encoder_.begin_section(sequence, 0, go_back)) {
            next_datagram();
            encoder_.begin_section(sequence, 0, go_back);
        }
        encoder_.end_section(slot.next_in_order());
        return;
    }
    const std::uint32_t per_chunk = env_.queue_pair.config().packets_per_chunk;
    if (!encoder_.begin_section(sequence, 0)) {
        next_datagram();
        encoder_.begin_section(sequence, 0);
    }
    PacketRun run;  // grows while missing packets touch
    const auto flush = [&] {
        if (run.count == 0) return;
        if (!encoder_.add_missing(run)) {
            encoder_.end_section(run.first);
            next_datagram();
            encoder_.begin_section(sequence, run.first);
            encoder_.add_missing(run);
        }
    };
    for (std::uint32_t chunk = slot.next_incomplete_chunk(0); chunk < slot.chunks();
         chunk = slot.next_incomplete_chunk(chunk + 1)) {
        const std::uint32_t base = chunk * per_chunk;
        if (base >= slot.packet_horizon()) {
            // Nothing came from here on: one run to the end.
            if (run.count == 0 || run.end() != base) flush(), run = {base, 0};
            run.count = slot.packets() - run.first;
            break;
        }
        const std::uint32_t count = slot.packets_in_chunk(chunk);
        std::uint64_t missing = ~slot.chunk_packets(chunk);
        if (count < 64) missing &= (1ull << count) - 1;
        while (missing != 0) {
            const auto start = static_cast<std::uint32_t>(std::countr_zero(missing));
            const std::uint64_t rest = missing >> start;
            const auto length = static_cast<std::uint32_t>(std::countr_one(rest));
            if (run.count != 0 && run.end() == base + start) {
                run.count += length;
            } else {
                flush();
                run = {base + start, length};
            }
            if (start + length >= 64) break;
            missing &= ~0ull << (start + length);
        }
    }
    flush();
    encoder_.end_section(slot.packets());
}

}  // namespace farhaul::reliable
