// The algorithm of arrivals(), and the order of its stores.
//
// A batch is cut into runs: neighbours that belong to one chunk of one open slot and have the full length. Inside a run
// a packet costs one subtraction that checks message id, chunk and bounds at once (immediate >> fragment_bits is id and
// index side by side), two compares and an OR into a register. Slot lookup, generation check against the tag, packet
// word, horizon and counters are paid once per run.
//
// Order of stores, weakest first:
//   payload  ->  packet bit (release)  ->  chunk bit (release)  ->  chunks_complete_ (release).
// A reader that acquires any of them may read what lies before it. A chunk bit is set by whichever thread flips it, and
// that thread counts.
//
// With several threads:
//   - A slot's buffer and words change only while its tag is closed and after Wire::quiesce(); the tag is stored last
//   (release).
//   - Two copies of one packet on two channels: with claim_before_copy a thread claims the bits of its run (one locked
//   OR) and copies only
//     what it claimed. Without claims both would write the same bytes, which hardware forgives and the C++ memory model
//     does not, and a reader that saw the bit of the first would read while the second writes.
//   - The length may shrink while packets arrive: each side stores its own (bit, shape) before it reads the other's,
//   sequentially
//     consistent, so that at least one of them sees a chunk that is now complete; the flip of the chunk bit says who
//     counts it.
#include "sdr/message_table.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace farhaul::sdr {

namespace {

constexpr std::uint32_t full_packets(std::uint64_t shape) { return static_cast<std::uint32_t>(shape >> 32); }
constexpr std::uint32_t tail_bytes(std::uint64_t shape) { return static_cast<std::uint32_t>(shape); }
constexpr std::uint32_t packets_of(std::uint64_t shape) { return full_packets(shape) + (tail_bytes(shape) != 0); }
/// tail_candidate_ once the length is announced: no more candidates.
constexpr std::uint64_t kSettled = ~0ull;
constexpr std::uint64_t low_bits(std::uint32_t count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

template <bool kAtomic>
void raise(std::atomic<std::uint32_t>& value, std::uint32_t to) {
    std::uint32_t current = value.load(std::memory_order_relaxed);
    if constexpr (kAtomic) {
        while (current < to && !value.compare_exchange_weak(current, to, std::memory_order_relaxed)) {
        }
    } else if (current < to) {
        value.store(to, std::memory_order_relaxed);
    }
}

/// fetch_or that is a plain load and store where one thread owns the word.
template <bool kAtomic, typename T>
T or_into(std::atomic<T>& word, T bits) {
    if constexpr (kAtomic) {
        return word.fetch_or(bits, std::memory_order_seq_cst);
    } else {
        const T old = word.load(std::memory_order_relaxed);
        word.store(old | bits, std::memory_order_release);
        return old;
    }
}

}  // namespace

// --- MessageSlot ---

std::uint32_t MessageSlot::packets_in_chunk(std::uint32_t chunk) const {
    if (chunk >= chunks_) return 0;
    return chunk + 1 < chunks_ ? packets_per_chunk_ : packets_ - chunk * packets_per_chunk_;
}

bool MessageSlot::chunk_complete(std::uint32_t chunk) const {
    return chunk < chunks_ && (chunk_words_[chunk / 64].load(std::memory_order_acquire) >> (chunk % 64) & 1) != 0;
}

std::uint64_t MessageSlot::chunk_packets(std::uint32_t chunk) const {
    if (chunk >= chunks_) return 0;
    return packet_words_[chunk].load(std::memory_order_acquire) & low_bits(packets_in_chunk(chunk));
}

std::uint32_t MessageSlot::next_incomplete_chunk(std::uint32_t from) const {
    while (from < chunks_) {
        const std::uint64_t missing = ~chunk_words_[from / 64].load(std::memory_order_acquire) >> (from % 64);
        if (missing != 0) return std::min(chunks_, from + static_cast<std::uint32_t>(std::countr_zero(missing)));
        from = (from / 64 + 1) * 64;
    }
    return chunks_;
}

bool MessageSlot::immediate(std::uint32_t* value) const {
    if (immediate_seen_.load(std::memory_order_acquire) != all_fragments_ || all_fragments_ == 0) return false;
    *value = immediate_value_.load(std::memory_order_relaxed);
    return true;
}

void MessageSlot::set_immediate(std::uint32_t value) {
    immediate_value_.store(value, std::memory_order_relaxed);
    immediate_seen_.store(all_fragments_, std::memory_order_release);
}

// --- MessageTable, the owner's side ---

Result<std::unique_ptr<MessageTable>> MessageTable::create(const MessageTableConfig& config) {
    if (auto ok = config.layout.validate(); !ok) return propagate(ok);
    if (config.payload_bytes < 1 || config.payload_bytes > 1u << 30)
        return fail(ErrorCode::kInvalidArgument, "payload of {} bytes per packet: must be 1 to 2^30",
                    config.payload_bytes);
    if (config.packets_per_chunk < 1 || config.packets_per_chunk > 64)
        return fail(ErrorCode::kInvalidArgument, "{} packets per chunk: must be 1 to 64", config.packets_per_chunk);
    if (config.generation_bits < 1 || config.generation_bits > 32)
        return fail(ErrorCode::kInvalidArgument, "{} generation bits: must be 1 to 32", config.generation_bits);
    std::unique_ptr<MessageTable> table(new MessageTable);
    table->config_ = config;
    // n / d = n * ceil(2^k / d) >> k with k = 30 + ceil(log2 d): the multiplier is too large by e / d with e < d <=
    // 2^(k-30), so that the product is too large by n * e / d < 2^k / d, which never reaches the next integer for n <
    // 2^30; and it stays below 2^61.
    const std::uint32_t d = config.packets_per_chunk;
    table->chunk_shift_ = 30 + static_cast<std::uint32_t>(std::bit_width(d - 1));
    table->chunk_multiplier_ = ((1ull << table->chunk_shift_) + d - 1) / d;
    table->generation_mask_ = static_cast<std::uint32_t>(low_bits(config.generation_bits));
    table->slots_ = std::vector<MessageSlot>(config.layout.message_ids());
    return table;
}

Result<MessageSlot*> MessageTable::open(std::uint64_t sequence, std::byte* buffer, std::uint64_t length,
                                        SlotOptions options) {
    const ImmediateLayout& layout = config_.layout;
    MessageSlot& slot = slots_[sequence & (layout.message_ids() - 1)];
    if (slot.open_)
        return fail(ErrorCode::kRetry, "message id {} is still in use by message {}: complete that receive first",
                    index_of(slot), slot.sequence_);
    if (length > static_cast<std::uint64_t>(layout.max_packets()) * config_.payload_bytes)
        return fail(ErrorCode::kInvalidArgument,
                    "a message of {} bytes needs more than {} packets of {} bytes: split it", length,
                    layout.max_packets(), config_.payload_bytes);
    const std::uint64_t shape = shape_of(length);
    const std::uint32_t packets = packets_of(shape);
    const std::uint32_t chunks = packets == 0 ? 0 : chunk_of(packets - 1) + 1;
    if (chunks > slot.capacity_chunks_ || !slot.chunk_words_) {
        const std::uint32_t capacity = std::max(1u, chunks);
        slot.packet_words_ = std::make_unique<std::atomic<std::uint64_t>[]>(capacity);
        slot.chunk_words_ = std::make_unique<std::atomic<std::uint64_t>[]>((capacity + 63) / 64);
        if (config_.claim_before_copy) slot.claim_words_ = std::make_unique<std::atomic<std::uint64_t>[]>(capacity);
        slot.capacity_chunks_ = capacity;
    } else {
        for (std::uint32_t i = 0; i < chunks; ++i) slot.packet_words_[i].store(0, std::memory_order_relaxed);
        for (std::uint32_t i = 0; i < std::max(1u, (chunks + 63) / 64); ++i)
            slot.chunk_words_[i].store(0, std::memory_order_relaxed);
        if (config_.claim_before_copy)
            for (std::uint32_t i = 0; i < chunks; ++i) slot.claim_words_[i].store(0, std::memory_order_relaxed);
    }
    slot.buffer_ = buffer;
    slot.length_ = slot.posted_length_ = length;
    slot.packets_ = packets;
    slot.chunks_ = chunks;
    slot.packets_per_chunk_ = config_.packets_per_chunk;
    slot.all_fragments_ = layout.all_fragments();
    slot.in_order_ = options.in_order;
    slot.sequence_ = sequence;
    slot.length_announced_ = false;
    slot.open_ = true;
    slot.chunks_complete_.store(0, std::memory_order_relaxed);
    slot.horizon_.store(0, std::memory_order_relaxed);
    slot.immediate_value_.store(0, std::memory_order_relaxed);
    slot.immediate_seen_.store(0, std::memory_order_relaxed);
    slot.next_in_order_.store(0, std::memory_order_relaxed);
    slot.swallowed_out_of_order_.store(0, std::memory_order_relaxed);
    slot.tail_candidate_.store(0, std::memory_order_relaxed);
    slot.shape_.store(shape, std::memory_order_relaxed);
    slot.tag_.store(tag_of(static_cast<std::uint32_t>(sequence >> layout.message_bits)), std::memory_order_release);
    return &slot;
}

void MessageTable::mark_rebuilt(MessageSlot& slot, std::uint32_t first, std::uint32_t count) {
    if (!slot.open_) return;
    const std::uint32_t end = std::min(slot.packets_, first + count);
    while (first < end) {
        const std::uint32_t chunk = chunk_of(first);
        const std::uint32_t base = chunk * config_.packets_per_chunk;
        const std::uint32_t stop = std::min(end, base + config_.packets_per_chunk);
        const std::uint64_t bits = low_bits(stop - base) & ~low_bits(first - base);
        if (config_.claim_before_copy) slot.claim_words_[chunk].fetch_or(bits, std::memory_order_acq_rel);
        raise<true>(slot.horizon_, stop);
        set_bits<true>(slot, chunk, bits);
        first = stop;
    }
}

void MessageTable::close(MessageSlot& slot) {
    if (!slot.open_) return;
    slot.tag_.store(0, std::memory_order_seq_cst);
    slot.open_ = false;
}

MessageSlot* MessageTable::find(std::uint64_t sequence) {
    MessageSlot& slot = slots_[sequence & (config_.layout.message_ids() - 1)];
    return slot.open_ && slot.sequence_ == sequence ? &slot : nullptr;
}

Status MessageTable::set_length(MessageSlot& slot, std::uint64_t length) {
    if (!slot.open_) return fail(ErrorCode::kClosed, "message {} was completed already", slot.sequence_);
    if (length > slot.posted_length_)
        return fail(ErrorCode::kProtocol, "message {}: the sender announces {} bytes, {} were posted", slot.sequence_,
                    length, slot.posted_length_);
    if (slot.length_announced_ && length != slot.length_)
        return fail(ErrorCode::kProtocol, "message {}: the sender announces {} bytes after it announced {}",
                    slot.sequence_, length, slot.length_);
    if (slot.length_announced_) return {};
    slot.length_announced_ = true;
    const std::uint64_t shape = shape_of(length);
    if (length != slot.length_) {
        const std::uint32_t old_chunks = slot.chunks_;
        slot.length_ = length;
        slot.packets_ = packets_of(shape);
        slot.chunks_ = slot.packets_ == 0 ? 0 : chunk_of(slot.packets_ - 1) + 1;
        slot.shape_.store(shape, std::memory_order_seq_cst);
        // Chunks past the end can be set only when the sender contradicts itself; whoever clears such a bit takes it
        // off the count.
        for (std::uint32_t word = slot.chunks_ / 64; word < (old_chunks + 63) / 64; ++word) {
            const std::uint64_t keep = word == slot.chunks_ / 64 ? low_bits(slot.chunks_ % 64) : 0;
            const std::uint64_t old = slot.chunk_words_[word].fetch_and(keep, std::memory_order_seq_cst);
            slot.chunks_complete_.fetch_sub(static_cast<std::uint32_t>(std::popcount(old & ~keep)),
                                            std::memory_order_acq_rel);
        }
    }
    const std::uint64_t candidate = slot.tail_candidate_.exchange(kSettled, std::memory_order_acq_rel);
    if (candidate != 0) {
        const std::uint32_t index = static_cast<std::uint32_t>(candidate >> 32) - 1;
        const std::uint32_t chunk = chunk_of(index);
        const std::uint64_t bit = 1ull << (index - chunk * config_.packets_per_chunk);
        if (index == full_packets(shape) && static_cast<std::uint32_t>(candidate) == tail_bytes(shape)) {
            set_bits<true>(slot, chunk, bit);
            raise<true>(slot.horizon_, index + 1);
            if (slot.in_order_) raise<true>(slot.next_in_order_, index + 1);
        } else if (config_.claim_before_copy) {
            slot.claim_words_[chunk].fetch_and(~bit, std::memory_order_acq_rel);
        }
    }
    if (slot.chunks_ > 0) {
        const std::uint32_t last = slot.chunks_ - 1;
        const std::uint64_t mask = chunk_mask(shape, last);
        if ((slot.packet_words_[last].load(std::memory_order_seq_cst) & mask) == mask) complete_chunk<true>(slot, last);
    }
    return {};
}

// --- MessageTable, arrivals ---

std::uint64_t MessageTable::chunk_mask(std::uint64_t shape, std::uint32_t chunk) const {
    const std::uint32_t first = chunk * config_.packets_per_chunk;
    const std::uint32_t packets = packets_of(shape);
    return first >= packets ? 0 : low_bits(std::min(config_.packets_per_chunk, packets - first));
}

template <bool kAtomic>
void MessageTable::complete_chunk(MessageSlot& slot, std::uint32_t chunk) {
    const std::uint64_t bit = 1ull << (chunk % 64);
    std::atomic<std::uint64_t>& word = slot.chunk_words_[chunk / 64];
    if ((or_into<kAtomic>(word, bit) & bit) != 0) return;
    if constexpr (kAtomic) {
        slot.chunks_complete_.fetch_add(1, std::memory_order_acq_rel);
        // The message may have shrunk meanwhile: see set_length().
        if (chunk_mask(slot.shape_.load(std::memory_order_seq_cst), chunk) == 0 &&
            (word.fetch_and(~bit, std::memory_order_seq_cst) & bit) != 0)
            slot.chunks_complete_.fetch_sub(1, std::memory_order_acq_rel);
    } else {
        slot.chunks_complete_.store(slot.chunks_complete_.load(std::memory_order_relaxed) + 1,
                                    std::memory_order_release);
    }
}

/// Sets packet bits whose payload is in place; returns those that were not set before.
template <bool kAtomic>
std::uint64_t MessageTable::set_bits(MessageSlot& slot, std::uint32_t chunk, std::uint64_t bits) {
    const std::uint64_t old = or_into<kAtomic>(slot.packet_words_[chunk], bits);
    const std::uint64_t fresh = bits & ~old;
    const std::uint64_t mask = chunk_mask(slot.shape_.load(std::memory_order_seq_cst), chunk);
    if (fresh != 0 && mask != 0 && ((old | bits) & mask) == mask) complete_chunk<kAtomic>(slot, chunk);
    return fresh;
}

template <bool kAtomic>
void MessageTable::take_fragment(MessageSlot& slot, const Arrival& arrival) {
    const ImmediateLayout& layout = config_.layout;
    const std::uint32_t position = layout.packet(arrival.immediate) & (layout.fragments() - 1);
    if ((slot.immediate_seen_.load(std::memory_order_relaxed) >> position & 1) != 0) return;
    or_into<kAtomic>(slot.immediate_value_, layout.fragment(arrival.immediate) << (position * layout.fragment_bits));
    or_into<kAtomic>(slot.immediate_seen_, 1u << position);
}

/// Full-length packets of one chunk; `bits` is the union of theirs, `payload` whether any brings bytes to copy.
template <bool kAtomic>
void MessageTable::take_run(MessageSlot& slot, std::span<const Arrival> run, std::uint32_t chunk, std::uint64_t bits,
                            bool payload, ArrivalCounters& counters) {
    std::uint64_t fresh = bits & ~slot.packet_words_[chunk].load(std::memory_order_relaxed);
    if (fresh != 0 && payload && slot.buffer_ != nullptr) {
        if (kAtomic && config_.claim_before_copy)
            fresh &= ~slot.claim_words_[chunk].fetch_or(fresh, std::memory_order_acq_rel);
        std::uint64_t to_copy = fresh;
        const std::uint32_t first = chunk * config_.packets_per_chunk;
        for (const Arrival& arrival : run) {
            const std::uint32_t index = config_.layout.packet(arrival.immediate);
            const std::uint64_t bit = 1ull << (index - first);
            if ((to_copy & bit) == 0) continue;
            to_copy &= ~bit;
            if (arrival.payload != nullptr)
                std::memcpy(slot.buffer_ + static_cast<std::uint64_t>(index) * config_.payload_bytes, arrival.payload,
                            config_.payload_bytes);
        }
    }
    if (fresh != 0) {
        if (slot.immediate_seen_.load(std::memory_order_relaxed) != slot.all_fragments_)
            for (const Arrival& arrival : run) take_fragment<kAtomic>(slot, arrival);
        raise<kAtomic>(slot.horizon_,
                       chunk * config_.packets_per_chunk + static_cast<std::uint32_t>(std::bit_width(bits)));
        fresh = set_bits<kAtomic>(slot, chunk, fresh);
    }
    const std::uint64_t taken = static_cast<std::uint64_t>(std::popcount(fresh));
    counters.accepted += taken;
    counters.duplicate += run.size() - taken;
}

/// A packet that is not of full length or lies behind the full-length ones: the message's last, or perhaps its last, or
/// wrong.
template <bool kAtomic>
void MessageTable::take_short(MessageSlot& slot, const Arrival& arrival, std::uint32_t index,
                              ArrivalCounters& counters) {
    const std::uint32_t length = arrival.length;
    const std::uint32_t chunk = chunk_of(index);
    const std::uint64_t bit = 1ull << (index - chunk * config_.packets_per_chunk);
    const std::uint64_t candidate = static_cast<std::uint64_t>(index + 1) << 32 | length;
    const bool claims = kAtomic && config_.claim_before_copy && arrival.payload != nullptr && slot.buffer_ != nullptr;
    for (;;) {
        // The candidate word is read first: once it says kSettled, the shape read after it is the announced one.
        const std::uint64_t known = slot.tail_candidate_.load(std::memory_order_seq_cst);
        const std::uint64_t shape = slot.shape_.load(std::memory_order_seq_cst);
        const std::uint32_t full = full_packets(shape);
        const bool is_last = index == full && length == tail_bytes(shape);
        const bool may_be_last = known != kSettled && (index < full || (index == full && length < tail_bytes(shape)));
        if (length == 0 || length >= config_.payload_bytes || (!is_last && !may_be_last)) {
            ++counters.out_of_bounds;
            return;
        }
        if ((slot.packet_words_[chunk].load(std::memory_order_relaxed) & bit) != 0) {
            ++counters.duplicate;
            return;
        }
        if (!is_last && known != 0) {
            ++(known == candidate ? counters.duplicate : counters.out_of_bounds);
            return;
        }
        if (claims && (slot.claim_words_[chunk].fetch_or(bit, std::memory_order_acq_rel) & bit) != 0) {
            ++counters.duplicate;
            return;
        }
        if (arrival.payload != nullptr && slot.buffer_ != nullptr)
            std::memcpy(slot.buffer_ + static_cast<std::uint64_t>(index) * config_.payload_bytes, arrival.payload,
                        length);
        std::uint64_t none = 0;
        if (is_last) {
            raise<kAtomic>(slot.horizon_, index + 1);
            set_bits<kAtomic>(slot, chunk, bit);
        } else if (!slot.tail_candidate_.compare_exchange_strong(none, candidate, std::memory_order_seq_cst)) {
            // The length became known, or another thread had a candidate, while this one copied: judge the packet
            // again.
            if (claims) slot.claim_words_[chunk].fetch_and(~bit, std::memory_order_acq_rel);
            continue;
        }
        take_fragment<kAtomic>(slot, arrival);
        ++counters.accepted;
        return;
    }
}

template <bool kAtomic>
void MessageTable::take_in_order(MessageSlot& slot, const Arrival& arrival, ArrivalCounters& counters) {
    if constexpr (kAtomic)
        while (slot.in_order_lock_.test_and_set(std::memory_order_acquire)) {
        }
    const std::uint64_t shape = slot.shape_.load(std::memory_order_seq_cst);
    const std::uint32_t index = config_.layout.packet(arrival.immediate);
    const std::uint32_t next = slot.next_in_order_.load(std::memory_order_relaxed);
    if (index >= packets_of(shape)) {
        ++counters.out_of_bounds;
    } else if (index < next) {
        ++counters.duplicate;
    } else if (index > next) {
        ++counters.out_of_order;
        slot.swallowed_out_of_order_.fetch_add(1, std::memory_order_relaxed);
    } else {
        const std::uint32_t chunk = chunk_of(index);
        const std::uint64_t bit = 1ull << (index - chunk * config_.packets_per_chunk);
        if (index < full_packets(shape) && arrival.length == config_.payload_bytes)
            take_run<kAtomic>(slot, {&arrival, 1}, chunk, bit, arrival.payload != nullptr, counters);
        else
            take_short<kAtomic>(slot, arrival, index, counters);
        if ((slot.packet_words_[chunk].load(std::memory_order_relaxed) & bit) != 0)
            raise<kAtomic>(slot.next_in_order_, index + 1);
    }
    if constexpr (kAtomic) slot.in_order_lock_.clear(std::memory_order_release);
}

template <bool kAtomic>
void MessageTable::arrivals(std::span<const Arrival> batch, ArrivalCounters& counters, std::span<MessageSlot*> touched,
                            std::size_t& touched_count) {
    const ImmediateLayout layout = config_.layout;
    const std::uint32_t fragment_bits = layout.fragment_bits;
    const std::uint32_t payload_bytes = config_.payload_bytes;
    touched_count = 0;
    MessageSlot* last_touched = nullptr;
    const Arrival* next = batch.data();
    const Arrival* const end = next + batch.size();
    while (next != end) {
        const std::uint32_t id = layout.message_id(next->immediate);
        MessageSlot& slot = slots_[id];
        const std::uint32_t generation = next->generation;
        if (slot.tag_.load(std::memory_order_acquire) != tag_of(generation)) {
            ++counters.stale;
            ++next;
            continue;
        }
        if (&slot != last_touched) {
            last_touched = &slot;
            const auto known = touched.first(touched_count);
            if (touched_count < touched.size() && std::find(known.begin(), known.end(), &slot) == known.end())
                touched[touched_count++] = &slot;
        }
        if (slot.in_order_) [[unlikely]] {
            take_in_order<kAtomic>(slot, *next++, counters);
            continue;
        }
        const std::uint32_t index = layout.packet(next->immediate);
        const std::uint32_t full = full_packets(slot.shape_.load(std::memory_order_relaxed));
        if (index >= full || next->length != payload_bytes) [[unlikely]] {
            take_short<kAtomic>(slot, *next++, index, counters);
            continue;
        }
        const std::uint32_t chunk = chunk_of(index);
        const std::uint32_t first = chunk * config_.packets_per_chunk;
        const std::uint32_t in_chunk = std::min(config_.packets_per_chunk, full - first);
        const std::uint32_t base = id << layout.packet_bits | first;
        const Arrival* const run = next;
        std::uint64_t bits = 0;
        const std::byte* payload = nullptr;
        do {
            const std::uint32_t offset = (next->immediate >> fragment_bits) - base;
            if (offset >= in_chunk || next->generation != generation || next->length != payload_bytes) break;
            bits |= 1ull << offset;
            if (next->payload != nullptr) payload = next->payload;
        } while (++next != end);
        take_run<kAtomic>(slot, {run, next}, chunk, bits, payload != nullptr, counters);
    }
}

template void MessageTable::arrivals<true>(std::span<const Arrival>, ArrivalCounters&, std::span<MessageSlot*>,
                                           std::size_t&);
template void MessageTable::arrivals<false>(std::span<const Arrival>, ArrivalCounters&, std::span<MessageSlot*>,
                                            std::size_t&);

}  // namespace farhaul::sdr
