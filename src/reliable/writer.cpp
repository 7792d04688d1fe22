#include "reliable/writer.hpp"

#include <algorithm>
#include <bit>
#include <cassert>

namespace farhaul::reliable {
namespace {

// Packets handed to the queue pair at a time: enough for one segmentation-offload burst, few enough that a repair is
// not held up.
constexpr std::uint32_t kRunPackets = 64;
constexpr std::size_t kMaxSpareMessages = 16;
constexpr std::uint32_t kMaxBackoff = 6;

bool test(const std::vector<std::uint64_t>& bits, std::uint32_t i) { return bits[i / 64] >> (i % 64) & 1; }
void set(std::vector<std::uint64_t>& bits, std::uint32_t i) { bits[i / 64] |= 1ull << (i % 64); }
void clear(std::vector<std::uint64_t>& bits, std::uint32_t i) { bits[i / 64] &= ~(1ull << (i % 64)); }

// Bits of word `word` that lie in [first, end).
std::uint64_t word_mask(std::uint32_t word, std::uint32_t first, std::uint32_t end) {
    const std::uint32_t low = word * 64;
    std::uint64_t mask = ~0ull;
    if (first > low) mask &= ~0ull << (first - low);
    if (end < low + 64) mask &= (1ull << (end - low)) - 1;
    return mask;
}

}  // namespace

Writer::Writer(Environment environment)
    : env_(std::move(environment)),
      rto_timer_(
          env_.loop.timers(), [](void* self) { static_cast<Writer*>(self)->on_rto_timer(); }, this),
      probe_timer_(
          env_.loop.timers(), [](void* self) { static_cast<Writer*>(self)->on_probe_timer(); }, this),
      reorder_window_(std::max(env_.round_trip.smoothed() / 16, env_.config.granularity / 4)),
      last_ack_at_(env_.loop.now()) {}

Writer::~Writer() {
    for (auto& message : messages_)
        if (message && message->send != nullptr) env_.queue_pair.release_send(*message->send);
}

void Writer::write(const std::byte* data, std::uint64_t length, WriteCallback done,
                   std::optional<std::uint32_t> immediate) {
    auto operation = std::make_unique<Operation>();
    operation->data = data;
    operation->length = length;
    operation->done = std::move(done);
    operation->immediate = immediate;
    if (env_.config.write_timeout > Duration{}) operation->deadline = env_.loop.now() + env_.config.write_timeout;
    if (operations_.empty()) last_ack_at_ = env_.loop.now();
    operations_.push_back(std::move(operation));
    pump();
}

void Writer::fail(const Error& error) {
    rto_timer_.disarm();
    probe_timer_.disarm();
    repairs_.clear();
    log_.clear();
    for (auto& message : messages_)
        if (message && message->send != nullptr) env_.queue_pair.release_send(*message->send);
    first_sequence_ += messages_.size();
    messages_.clear();
    injecting_ = first_sequence_;
    next_operation_ = 0;
    parity_due_ = false;
    parity_owner_ = nullptr;
    unacknowledged_packets_ = 0;
    auto ended = std::move(operations_);
    operations_.clear();
    for (auto& operation : ended)
        if (operation->done) env_.defer([done = std::move(operation->done), error] { done(std::unexpected(error)); });
}

TimePoint Writer::next_write_deadline() const {
    // Deadlines are in order of write(): all Writes have the same limit.
    return operations_.empty() ? TimePoint::never() : operations_.front()->deadline;
}

Writer::Message* Writer::find(std::uint64_t sequence) {
    if (sequence < first_sequence_ || sequence - first_sequence_ >= messages_.size()) return nullptr;
    return messages_[sequence - first_sequence_].get();
}

Duration Writer::rto() const {
    return env_.round_trip.timeout(env_.config.rto_rtts, env_.config.min_rto) * (1ll << backoff_);
}

Duration Writer::probe_interval() const {
    const Duration interval =
        std::clamp(env_.round_trip.smoothed() / 8, env_.config.granularity / 2, Duration::from_milliseconds(250));
    // Many probes unanswered: the round trip is far longer than we think, or the path is dead. Either way, ask less
    // often.
    const std::uint32_t unanswered = std::min((last_probe_ - latest_probe_answered_) / 16, kMaxBackoff);
    return std::min(interval * (1ll << std::max(backoff_, unanswered)), Duration::from_milliseconds(1000));
}

// --- handing packets to the queue pair ---

void Writer::pump() {
    if (pumping_) return;  // the queue pair may call back from inside continue_send()
    pumping_ = true;
    env_.queue_pair.cork();
    while (env_.queue_pair.send_queue_packets() < sdr::QueuePair::send_queue_low_packets()) {
        if (queue_repairs()) continue;
        if (parity_due_) start_parity_message();
        Message* message = find(injecting_);
        if (message != nullptr && has_new_packets(*message)) {
            if (window_full() || !queue_new_packets(*message)) break;
            continue;
        }
        if (injecting_ < first_sequence_ + messages_.size()) {
            ++injecting_;
            continue;
        }
        if (!start_next_message() && !queue_tails()) break;
    }
    pumping_ = false;
    env_.queue_pair.uncork();  // injects, which may come back here
}

std::unique_ptr<Writer::Message> Writer::take_message() {
    if (spare_messages_.empty()) return std::make_unique<Message>();
    auto message = std::move(spare_messages_.back());
    spare_messages_.pop_back();
    return message;
}

bool Writer::start_parity_message() {
    if (!env_.queue_pair.can_start_send()) return false;
    sdr::StartSend start;
    if (parity_owner_ != nullptr && parity_owner_->tail_immediate) {
        start.immediate = parity_owner_->tail_immediate;
        start.length = env_.queue_pair.next_send_capacity();
        start.announce_immediate = true;  // there may be fewer packets than fragments of it
    }
    auto send = env_.queue_pair.start_send(start);
    if (!send) {
        if (send.error().code != ErrorCode::kRetry) env_.abort(send.error());
        return false;
    }
    auto message = take_message();
    message->send = *send;
    message->operation = nullptr;
    message->data = nullptr;
    message->length = message->packets = message->next_new = message->high_water = message->acked_count =
        message->cumulative = 0;
    message->is_parity = true;
    sdr::SendHandle** owner_send = parity_owner_ != nullptr ? parity_send(*parity_owner_) : nullptr;
    message->data_message = owner_send != nullptr ? parity_owner_ : nullptr;
    message->parity.reset();
    message->tail.reset();
    if (owner_send != nullptr) *owner_send = *send;
    messages_.push_back(std::move(message));
    parity_due_ = false;
    parity_owner_ = nullptr;
    // The receiver may have been done with the pair before we began its second half.
    const std::uint64_t sequence = (*send)->sequence();
    if (sequence < completed_below_) complete_message(sequence);
    return true;
}

bool Writer::window_full() const {
    return env_.config.window_bytes > 0 && unacknowledged_packets_ * payload_bytes() >= env_.config.window_bytes;
}

bool Writer::has_new_packets(const Message& message) const {
    return message.next_new < message.packets ||
           (message.parity && message.parity->next < message.parity->layout().parity_symbols());
}

bool Writer::queue_parity(Message& message, std::uint32_t end) {
    ParitySource& parity = *message.parity;
    if (parity.send == nullptr) return false;  // its clear-to-send is still to come
    const CodeLayout& layout = parity.layout();
    const std::uint32_t count = std::min(end - parity.next, std::max(1u, kRunPackets / layout.packets_per_symbol));
    const std::uint64_t bytes = std::uint64_t{layout.packets_per_symbol} * payload_bytes();
    auto queued = env_.queue_pair.continue_send(*parity.send, parity.next * bytes, parity.parity(parity.next, count),
                                                count * bytes);
    if (!queued) {
        env_.abort(queued.error());
        return false;
    }
    parity.next += count;
    env_.counters.packets_parity += std::uint64_t{count} * layout.packets_per_symbol;
    return true;
}

bool Writer::start_next_message() {
    if (parity_due_) return false;
    if (next_operation_ >= operations_.size() || !env_.queue_pair.can_start_send()) return false;
    Operation& operation = *operations_[next_operation_];
    const std::uint64_t capacity = env_.queue_pair.next_send_capacity();
    const bool last_of_buffer = env_.queue_pair.next_send_tag() != 0;
    const std::uint64_t left = operation.length - operation.started;
    const std::uint64_t length = std::min(left, capacity);
    if (length < left && last_of_buffer) {
        env_.abort({ErrorCode::kInvalidArgument,
                    fmt::format("a Write of {} bytes is longer than the buffer that the peer posted for it",
                                operation.length)});
        return false;
    }
    sdr::StartSend start;
    start.length = length;
    start.announce_immediate = paired();
    if (operation.started == 0 && operation.immediate) start.immediate = operation.immediate;
    // A message without packets is noticed only by its announcement.
    if (length == 0 && !start.immediate) start.immediate = 0;
    auto send = env_.queue_pair.start_send(start);
    if (!send) {
        if (send.error().code != ErrorCode::kRetry) env_.abort(send.error());
        return false;
    }
    auto message = take_message();
    const auto packets = static_cast<std::uint32_t>((length + payload_bytes() - 1) / payload_bytes());
    const std::size_t words = (packets + 63) / 64;
    message->send = *send;
    message->operation = &operation;
    message->data = operation.data == nullptr ? nullptr : operation.data + operation.started;
    message->length = length;
    message->packets = packets;
    message->next_new = message->high_water = message->acked_count = message->cumulative = 0;
    message->went_back_to = ~0u;
    message->ended = false;
    message->is_parity = false;
    message->data_message = nullptr;
    message->parity.reset();
    message->tail.reset();
    message->tail_immediate.reset();
    if (paired()) {
        if (env_.coding != nullptr && length == capacity && length > 0)
            message->parity = std::make_unique<ParitySource>(*env_.coding, message->data, length);
        parity_due_ = true;
        parity_owner_ = message.get();
    }
    message->acked.assign(words, 0);
    message->resent.assign(words, 0);
    message->queued.assign(words, 0);
    message->injected_at.assign(packets, TimePoint::never());
    (*send)->user = message.get();
    assert((*send)->sequence() == first_sequence_ + messages_.size());
    if (messages_.empty()) last_ack_at_ = env_.loop.now();
    messages_.push_back(std::move(message));
    operation.started += length;
    ++operation.messages_open;
    if (env_.tail != nullptr) plan_tail(*messages_.back(), capacity);
    // A buffer of several messages is used up by empty ones once the Write has ended.
    if (operation.started == operation.length && last_of_buffer) {
        operation.all_started = true;
        ++next_operation_;
    }
    if (packets == 0) {
        messages_.back()->ended = true;
        pause_probes_ = 0;
        probe_timer_.arm_no_later_than(env_.loop.now() + reorder_window_);
        if (auto ended = env_.queue_pair.end_send(**send); !ended) env_.abort(ended.error());
    }
    return true;
}

Status Writer::queue_run(Message& message, PacketRun run, bool urgent) {
    const std::uint64_t offset = static_cast<std::uint64_t>(run.first) * payload_bytes();
    const std::uint64_t length =
        std::min<std::uint64_t>(static_cast<std::uint64_t>(run.count) * payload_bytes(), message.length - offset);
    return env_.queue_pair.continue_send(*message.send, offset,
                                         message.data == nullptr ? nullptr : message.data + offset, length, urgent);
}

bool Writer::queue_new_packets(Message& message) {
    PacketRun run{message.next_new, std::min(kRunPackets, message.packets - message.next_new)};
    if (message.parity) {
        const CodeLayout& layout = message.parity->layout();
        const std::uint32_t block_packets = layout.k * layout.packets_per_symbol;
        const std::uint32_t blocks_sent =
            message.next_new == message.packets ? layout.blocks() : message.next_new / block_packets;
        if (message.parity->next < blocks_sent * layout.m) return queue_parity(message, blocks_sent * layout.m);
        run.count = std::min(run.count, (blocks_sent + 1) * block_packets - message.next_new);
    }
    const std::uint32_t again = std::min(run.count, message.high_water - message.next_new);  // go-back-N only
    message.next_new = run.end();
    message.high_water = std::max(message.high_water, message.next_new);
    env_.counters.packets_resent += again;
    env_.counters.packets_first += run.count - again;
    unacknowledged_packets_ += run.count - again;
    // A resent range is urgent only so that it is allowed after end_send(); nothing else of this message is queued
    // then.
    auto queued = queue_run(message, run, message.ended);
    if (queued && message.next_new == message.packets && !message.ended) {
        message.ended = true;
        queued = env_.queue_pair.end_send(*message.send);
    }
    if (!queued) env_.abort(queued.error());
    return queued.has_value();
}

bool Writer::queue_repairs() {
    while (!repairs_.empty()) {
        const Repair repair = repairs_.front();
        repairs_.pop_front();
        Message* message = find(repair.sequence);
        if (message == nullptr) continue;
        // Acknowledged in the meantime?
        std::uint32_t first = repair.run.first;
        while (first < repair.run.end() && test(message->acked, first)) clear(message->queued, first++);
        if (first == repair.run.end()) continue;
        std::uint32_t end = first;
        while (end < repair.run.end() && end - first < kRunPackets && !test(message->acked, end)) ++end;
        if (end < repair.run.end()) repairs_.push_front({repair.sequence, {end, repair.run.end() - end}});
        env_.counters.packets_resent += end - first;
        if (auto queued = queue_run(*message, {first, end - first}, true); !queued) {
            env_.abort(queued.error());
            return false;
        }
        return true;
    }
    return false;
}

void Writer::on_injected(sdr::SendHandle& send, std::uint64_t offset, std::uint64_t length) {
    Message* message = find(send.sequence());
    if (message == nullptr || length == 0) return;
    const TimePoint now = env_.loop.now();
    if (message->is_parity) {
        if (message->data_message != nullptr && message->data_message->tail) {
            message->data_message->tail->note_injected(
                static_cast<std::uint32_t>((length + payload_bytes() - 1) / payload_bytes()), now);
        } else if (message->data_message != nullptr) {
            ParitySource& parity = *message->data_message->parity;
            const std::uint64_t bytes = std::uint64_t{parity.layout().packets_per_symbol} * payload_bytes();
            parity.note_injected(static_cast<std::uint32_t>(offset / bytes), static_cast<std::uint32_t>(length / bytes),
                                 now);
        }
        pause_probes_ = 0;
        probe_timer_.arm(now + reorder_window_ + Duration::from_microseconds(1));
        return;
    }
    const auto first = static_cast<std::uint32_t>(offset / payload_bytes());
    const auto end = static_cast<std::uint32_t>((offset + length + payload_bytes() - 1) / payload_bytes());
    // Only a run that was all new has no "injected before" marks to set.
    for (std::uint32_t i = first; i < end; ++i) {
        if (message->injected_at[i] != TimePoint::never()) {
            set(message->resent, i);
            clear(message->queued, i);
        }
        message->injected_at[i] = now;
    }
    // A probe once injection has paused for the reordering window: its answer is evidence about everything before the
    // pause. While injection goes on acks carry the evidence, and a probe is due only to measure the round trip.
    pause_probes_ = 0;
    probe_timer_.arm(now + reorder_window_ + Duration::from_microseconds(1));
    if (now - last_probe_at_ > std::max(env_.round_trip.smoothed() / 2, probe_interval())) send_probe();
    if (env_.config.scheme.kind == Scheme::Kind::kGoBackN) {
        if (!rto_timer_.armed()) rto_timer_.arm(now + rto());
        return;
    }
    if (paired()) return;
    log_.push_back({send.sequence(), {first, end - first}, now});
    if (!rto_timer_.armed()) arm_rto_timer();
}

// --- hearing from the receiver ---

bool Writer::on_ack(const Ack& ack) {
    const TimePoint now = env_.loop.now();
    const std::uint64_t end_sequence = first_sequence_ + messages_.size();
    // Of a pair whose second half we have not begun yet the receiver may be done already.
    const std::uint64_t known_end = end_sequence + (parity_due_ ? 1 : 0);
    if (ack.completed_below > known_end || ack.probe > last_probe_) return false;
    completed_below_ = std::max(completed_below_, ack.completed_below);
    last_ack_at_ = now;
    backoff_ = 0;
    if (ack.probe > latest_probe_answered_) {
        latest_probe_answered_ = ack.probe;
        if (last_probe_ - ack.probe < kProbesRemembered) {
            const TimePoint sent = probe_sent_at_[ack.probe % kProbesRemembered];
            evidence_ = std::max(evidence_, sent);
            env_.round_trip.add_sample(now - sent);
        }
    }
    // Of two snapshots only the later one may say what is missing: an overtaken one knows nothing of what arrived
    // since.
    const bool current = !any_ack_ || static_cast<std::int32_t>(ack.event - latest_event_) >= 0;
    if (current) {
        latest_event_ = ack.event;
        note_rebuilt(ack);
    }
    any_ack_ = true;

    for (const AckSection& section : ack.sections) {
        // Complete already, or open at the receiver and not started here yet.
        Message* message = find(section.sequence);
        if (message == nullptr) continue;
        // The receiver may not know yet that the message is shorter than its buffer: what it says beyond the end is
        // ignored.
        std::uint32_t position = section.first;
        for (const PacketRun& run : ack.missing_of(section)) {
            mark_arrived(*message, position, std::min(run.first, message->packets));
            position = run.end();
        }
        mark_arrived(*message, position, std::min(section.end, message->packets));
    }
    repairs_mark_ = repairs_.size();
    if (uses_missing_lists() && current)
        for (const AckSection& section : ack.sections)
            if (Message* message = find(section.sequence))
                for (const PacketRun& run : ack.missing_of(section)) consider_missing(*message, section.sequence, run);
    if (env_.tail != nullptr) repeat_repairs();
    if (env_.config.scheme.kind == Scheme::Kind::kGoBackN)
        for (const AckSection& section : ack.sections)
            if (Message* message = find(section.sequence)) {
                if (section.end > message->cumulative && section.end <= message->packets && section.runs == 0) {
                    message->cumulative = section.end;
                    message->next_new = std::max(message->next_new, std::min(section.end, message->high_water));
                    rto_timer_.arm(now + rto());
                }
                // Once per gap: what was in flight behind it keeps arriving out of order for a round trip.
                const bool again = message->went_back_to == section.end && now - message->went_back_at < rto();
                if (section.go_back && section.end == message->cumulative && !again) go_back(*message, section.end);
            }

    while (first_sequence_ < ack.completed_below && !messages_.empty()) {
        if (messages_.front())
            complete_message(first_sequence_);
        else
            retire_messages();
    }
    for (std::size_t word = 0; word < ack.completed_ahead.size(); ++word)
        for (std::uint64_t bits = ack.completed_ahead[word]; bits != 0; bits &= bits - 1) {
            const std::uint64_t sequence =
                ack.completed_below + word * 64 + static_cast<unsigned>(std::countr_zero(bits));
            if (sequence >= known_end) return false;
            if (find(sequence) != nullptr) complete_message(sequence);
        }
    pump();
    return true;
}

void Writer::mark_arrived(Message& message, std::uint32_t first, std::uint32_t end) {
    for (std::uint32_t word = first / 64; first < end && word <= (end - 1) / 64; ++word) {
        const std::uint64_t fresh = word_mask(word, first, end) & ~message.acked[word];
        if (fresh == 0) continue;
        message.acked[word] |= fresh;
        const auto count = static_cast<std::uint32_t>(std::popcount(fresh));
        message.acked_count += count;
        if (env_.tail != nullptr) loss_.add_sent(count);
        unacknowledged_packets_ -= std::min<std::uint64_t>(count, unacknowledged_packets_);
        for (std::uint64_t bits = fresh & message.resent[word]; bits != 0; bits &= bits - 1)
            consider_arrival(message, word * 64 + static_cast<unsigned>(std::countr_zero(bits)));
        // Packets sent once are in order of time: the last one tells most.
        if (const std::uint64_t once = fresh & ~message.resent[word]; once != 0) {
            const TimePoint at = message.injected_at[word * 64 + 63 - static_cast<unsigned>(std::countl_zero(once))];
            if (at != TimePoint::never()) evidence_ = std::max(evidence_, at);
        }
    }
}

void Writer::consider_arrival(Message& message, std::uint32_t packet) {
    // Of a packet sent twice it is not known which copy arrived, unless the second cannot have made the trip yet.
    const TimePoint at = message.injected_at[packet];
    const TimePoint now = env_.loop.now();
    if (now - at >= env_.round_trip.least().scaled(0.9)) {
        evidence_ = std::max(evidence_, at);
    } else {
        ++env_.counters.packets_spurious;
        loss_.take_back_lost(1);
        reorder_window_ = std::min(std::max(reorder_window_, (now - at) / 8) * 2,
                                   std::max(env_.round_trip.smoothed(), env_.config.granularity));
    }
}

void Writer::consider_missing(Message& message, std::uint64_t sequence, PacketRun run) {
    const TimePoint latest = evidence_ - reorder_window_;
    const std::uint32_t end = std::min(run.end(), message.high_water);
    std::uint32_t lost_from = run.first;
    std::uint32_t i = run.first;
    for (; i < end; ++i) {
        const TimePoint at = message.injected_at[i];
        if (at > latest && !test(message.resent, i) && !test(message.acked, i))
            break;  // first copies behind it are younger still
        bool lost = at <= latest && !test(message.acked, i) && !test(message.queued, i);
        if (lost && message.parity && !test(message.resent, i)) {
            const CodeLayout& layout = message.parity->layout();
            const std::uint32_t symbol = i / layout.packets_per_symbol;
            if (symbol >= layout.first) lost = message.parity->block_done_at(layout.block_of(symbol)) <= latest;
        }
        if (lost && message.tail && !test(message.resent, i) && message.tail->started() &&
            i >= message.tail->layout().first())
            lost = message.tail->injected_at() <= latest;
        if (!lost) {
            if (i > lost_from) request_repair(message, sequence, {lost_from, i - lost_from});
            lost_from = i + 1;
        }
    }
    if (i > lost_from) request_repair(message, sequence, {lost_from, i - lost_from});
}

void Writer::request_repair(Message& message, std::uint64_t sequence, PacketRun run) {
    if (env_.tail != nullptr) {
        std::uint32_t first_copies = 0;
        for (std::uint32_t i = run.first; i < run.end(); ++i) first_copies += !test(message.resent, i);
        if (first_copies > 0) loss_.add_lost(first_copies, 1);
    }
    for (std::uint32_t i = run.first; i < run.end(); ++i) set(message.queued, i);
    if (repairs_.size() > repairs_mark_ && repairs_.back().sequence == sequence &&
        repairs_.back().run.end() == run.first)
        repairs_.back().run.count += run.count;
    else
        repairs_.push_back({sequence, run});
}

void Writer::go_back(Message& message, std::uint32_t to) {
    message.went_back_to = to;
    message.went_back_at = env_.loop.now();
    message.next_new = to;
    injecting_ = std::min(injecting_, message.send->sequence());
    rto_timer_.arm(env_.loop.now() + rto());
}

void Writer::complete_message(std::uint64_t sequence) {
    auto& slot = messages_[sequence - first_sequence_];
    Operation* operation = slot->operation;
    if (slot->is_parity) {
        if (slot->data_message != nullptr) *parity_send(*slot->data_message) = nullptr;
    } else if (parity_owner_ == slot.get()) {
        parity_owner_ = nullptr;
    } else if (parity_send(*slot) != nullptr) {
        // Nothing of the parity may stay queued when its memory goes.
        if (Message* parity = find(sequence + 1); parity != nullptr && parity->data_message == slot.get()) {
            env_.queue_pair.release_send(*parity->send);
            parity->send = nullptr;
            parity->data_message = nullptr;
        }
    }
    slot->parity.reset();
    slot->tail.reset();
    if (env_.tail != nullptr && !slot->is_parity) loss_.add_sent(slot->packets - slot->acked_count);
    unacknowledged_packets_ -= std::min<std::uint64_t>(slot->high_water - std::min(slot->acked_count, slot->high_water),
                                                       unacknowledged_packets_);
    env_.counters.bytes_acknowledged += slot->length;
    // With a schedule of its own the peer may say "complete" although packets of ours are still queued: it finished
    // early, or had copies.
    if (slot->send != nullptr) env_.queue_pair.release_send(*slot->send);
    if (spare_messages_.size() < kMaxSpareMessages) spare_messages_.push_back(std::move(slot));
    slot.reset();
    if (operation == nullptr) {
        retire_messages();
        return;
    }
    --operation->messages_open;
    if (operation->all_started && operation->messages_open == 0) {
        ++env_.counters.writes_completed;
        for (std::size_t i = 0; i < operations_.size(); ++i)
            if (operations_[i].get() == operation) {
                if (operation->done) env_.defer([done = std::move(operation->done)] { done({}); });
                operations_.erase(operations_.begin() + static_cast<std::ptrdiff_t>(i));
                --next_operation_;
                break;
            }
    }
    retire_messages();
}

void Writer::retire_messages() {
    while (!messages_.empty() && messages_.front() == nullptr) {
        messages_.pop_front();
        ++first_sequence_;
    }
    injecting_ = std::max(injecting_, first_sequence_);
    if (messages_.empty()) {
        log_.clear();
        repairs_.clear();
        rto_timer_.disarm();
        probe_timer_.disarm();
    }
}

// --- timers ---

void Writer::arm_rto_timer() {
    while (!log_.empty() && find(log_.front().sequence) == nullptr) log_.pop_front();
    if (log_.empty())
        rto_timer_.disarm();
    else
        rto_timer_.arm(log_.front().at + rto());
}

void Writer::on_rto_timer() {
    const TimePoint now = env_.loop.now();
    // Without any word from the peer, resending at the same pace only adds to what it cannot answer.
    if (now - last_ack_at_ > rto() * 2) backoff_ = std::min(backoff_ + 1, kMaxBackoff);
    if (env_.config.scheme.kind == Scheme::Kind::kGoBackN) return on_go_back_timeout();
    bool resent = false;
    while (!log_.empty()) {
        const Injection& entry = log_.front();
        if (entry.at + rto() > now) break;
        if (Message* message = find(entry.sequence)) {
            for (std::uint32_t i = entry.run.first; i < entry.run.end(); ++i)
                if (message->injected_at[i] == entry.at && !test(message->acked, i) && !test(message->queued, i)) {
                    request_repair(*message, entry.sequence, {i, 1});
                    resent = true;
                }
        }
        log_.pop_front();
    }
    if (resent) ++env_.counters.timeouts;
    arm_rto_timer();
    pump();
}

void Writer::on_go_back_timeout() {
    for (std::uint64_t sequence = first_sequence_; sequence < first_sequence_ + messages_.size(); ++sequence)
        if (Message* message = find(sequence);
            message != nullptr && message->packets > 0 && message->high_water > message->cumulative) {
            ++env_.counters.timeouts;
            go_back(*message, message->cumulative);
            break;
        }
    if (!messages_.empty() && !rto_timer_.armed()) rto_timer_.arm(env_.loop.now() + rto());
    pump();
}

void Writer::send_probe() {
    ++last_probe_;
    last_probe_at_ = probe_sent_at_[last_probe_ % kProbesRemembered] = env_.loop.now();
    encode_probe(last_probe_, probe_buffer_);
    env_.queue_pair.send_datagram(probe_buffer_);
    ++env_.counters.probes_sent;
}

void Writer::on_probe_timer() {
    if (messages_.empty()) return;
    if (env_.loop.now() - last_ack_at_ > rto() * 2) backoff_ = std::min(backoff_ + 1, kMaxBackoff);
    send_probe();
    // The first repeats come quickly, so that one lost probe does not cost much.
    const std::uint32_t step = std::min(pause_probes_++, 2u);
    probe_timer_.arm(env_.loop.now() + std::max(probe_interval() / (4 >> step), Duration::from_microseconds(20)));
}

}  // namespace farhaul::reliable
