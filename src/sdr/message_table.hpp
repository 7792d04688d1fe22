// Receive side of a queue pair: which message ids are open, where their payload goes, and which packets and chunks are
// in.
//
// A slot per message id. An open slot owns a buffer (its range of the zero-based root key) and the generation that may
// write to it; a closed slot is the NULL key: it swallows. A packet is taken only if its slot is open for exactly its
// generation, so that a packet that comes after an early completion, or a whole turn of the id space later, touches
// neither a buffer nor a bitmap.
//
// Bitmaps: each chunk owns one 64-bit word of packet bits (a chunk has 1..64 packets), so that "is this chunk complete"
// is one compare and chunk_packets() one load. The chunk bitmap has one bit per chunk, chunk c at byte c / 8, bit c
// % 8.
//
// Lengths: a packet is payload_bytes long unless it is the last of its message. A short packet in the middle of what
// was posted may be the last packet of a message that is shorter, whose announcement is still on its way: its payload
// is placed, but its bit is set only when set_length() confirms that the message ends there. One such candidate per
// message; it is forgotten when the announcement says otherwise.
//
// Threads: arrivals<kAtomic = true> may run on several threads at once beside open/close/read on the owner's; the owner
// must call Wire::quiesce() between close() and letting go of the buffer. arrivals<false> runs on the owner's thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "sdr/immediate.hpp"
#include "sdr/wire.hpp"

namespace farhaul::sdr {

struct MessageTableConfig {
    ImmediateLayout layout{};
    std::uint32_t payload_bytes = 4096;    ///< payload of every packet but a message's last; any size from 1
    std::uint32_t packets_per_chunk = 16;  ///< 1..64
    std::uint32_t generation_bits = 32;    ///< of the wire, 1..32
    /// Several threads call arrivals<true> with payload to copy. Two copies of one packet may then come at once on two
    /// channels: each thread claims a packet before it copies, so that no byte is written twice. Costs a second word
    /// per chunk and a second locked or per run.
    bool claim_before_copy = false;
};

/// Why packets were not taken. Monotonic; with several channels, sums over them.
struct ArrivalCounters {
    std::uint64_t accepted = 0;
    std::uint64_t duplicate = 0;      ///< its bit was set already
    std::uint64_t stale = 0;          ///< slot closed or of another generation: swallowed
    std::uint64_t out_of_bounds = 0;  ///< index or length beyond the posted buffer
    std::uint64_t out_of_order = 0;   ///< swallowed by an in-order slot (go-back-N)
};

/// How a receive is posted.
struct SlotOptions {
    bool in_order = false;  ///< accept only the next packet in order, swallow others, as a go-back-N NIC does
};

/// One receive slot, as its owner reads it. Only MessageTable writes it.
class MessageSlot {
 public:
    bool open() const { return open_; }
    std::uint64_t sequence() const { return sequence_; }
    /// Bytes expected: as posted, or as the sender announced.
    std::uint64_t length() const { return length_; }
    std::byte* buffer() const { return buffer_; }
    std::uint32_t packets() const { return packets_; }
    std::uint32_t chunks() const { return chunks_; }
    /// Packets of chunk `chunk`: packets_per_chunk but for the last.
    std::uint32_t packets_in_chunk(std::uint32_t chunk) const;

    /// The chunk bitmap: (chunks + 7) / 8 bytes; stable until the slot is opened again. Bits of chunks past the end are
    /// 0.
    const std::uint8_t* chunk_bitmap() const { return reinterpret_cast<const std::uint8_t*>(chunk_words_.get()); }
    bool chunk_complete(std::uint32_t chunk) const;
    /// Packet bits of one chunk, bit i = packet i of the chunk.
    std::uint64_t chunk_packets(std::uint32_t chunk) const;
    /// Chunks whose bit is set. Everything in, payload included, when it equals chunks().
    std::uint32_t chunks_complete() const { return chunks_complete_.load(std::memory_order_acquire); }
    bool complete() const { return chunks_complete() == chunks_; }
    /// First chunk at or after `from` whose bit is not set, or chunks().
    std::uint32_t next_incomplete_chunk(std::uint32_t from) const;
    /// One past the highest packet index seen: 0 when nothing came yet. What lies below and is not set is missing or
    /// late.
    std::uint32_t packet_horizon() const {
        const std::uint32_t horizon = horizon_.load(std::memory_order_relaxed);
        return horizon < packets_ ? horizon : packets_;
    }
    /// True once the sender's announcement of the length was applied (set_length()).
    bool length_announced() const { return length_announced_; }
    /// In-order slots: index of the next packet that will be taken, and how many were swallowed for being out of order.
    std::uint32_t next_in_order() const { return next_in_order_.load(std::memory_order_relaxed); }
    std::uint64_t swallowed_out_of_order() const { return swallowed_out_of_order_.load(std::memory_order_relaxed); }
    /// The user's immediate, once all its fragments are in (from packets or from set_immediate()). A sender that gives
    /// no immediate sends zeros: the value then means nothing.
    bool immediate(std::uint32_t* value) const;
    /// The sender's immediate, announced in a control datagram.
    void set_immediate(std::uint32_t value);

 private:
    friend class MessageTable;
    // What arrivals() needs of a slot, first, on two cache lines. Written by open() before the tag, and constant while
    // the tag is open, except the atomics. See message_table.cpp for the order of stores.
    std::atomic<std::uint64_t> tag_{0};  // generation << 1 | open: one compare decides whether a packet is taken
    std::atomic<std::uint64_t> shape_{
        0};  // full-length packets << 32 | bytes of a shorter last one: length_ as arrivals() reads it
    std::byte* buffer_ = nullptr;
    std::unique_ptr<std::atomic<std::uint64_t>[]> packet_words_;
    std::unique_ptr<std::atomic<std::uint64_t>[]> chunk_words_;
    std::unique_ptr<std::atomic<std::uint64_t>[]> claim_words_;
    std::atomic<std::uint32_t> horizon_{0};
    std::atomic<std::uint32_t> chunks_complete_{0};
    std::atomic<std::uint32_t> immediate_value_{0};
    std::atomic<std::uint32_t> immediate_seen_{0};
    std::uint32_t all_fragments_ = 0;
    std::uint32_t packets_per_chunk_ = 0;
    bool in_order_ = false;
    std::atomic_flag in_order_lock_;
    std::atomic<std::uint32_t> next_in_order_{0};
    std::atomic<std::uint64_t> tail_candidate_{
        0};  // (index + 1) << 32 | length of a short packet where the message may end
    std::atomic<std::uint64_t> swallowed_out_of_order_{0};
    // The owner's alone.
    std::uint64_t sequence_ = 0;
    std::uint64_t length_ = 0;
    std::uint64_t posted_length_ = 0;
    std::uint32_t packets_ = 0;
    std::uint32_t chunks_ = 0;
    std::uint32_t capacity_chunks_ = 0;
    bool open_ = false;
    bool length_announced_ = false;
};

class MessageTable {
 public:
    static Result<std::unique_ptr<MessageTable>> create(const MessageTableConfig& config);

    const MessageTableConfig& config() const { return config_; }

    /// Opens the slot of message `sequence` (slot = sequence mod message ids, generation = sequence div message ids)
    /// for `length` bytes at `buffer` (null on a metadata-only wire). A zero-length message has no packets and no
    /// chunks and is complete at once. Errors: kRetry when that slot is still open; kInvalidArgument when length needs
    /// more packets than the layout can number.
    Result<MessageSlot*> open(std::uint64_t sequence, std::byte* buffer, std::uint64_t length,
                              SlotOptions options = {});
    /// Shrinks the open message: the sender announced fewer bytes than were posted. Completes its last chunk if that is
    /// now full. kProtocol when it is above the posted length or contradicts an earlier announcement; nothing changes
    /// then.
    Status set_length(MessageSlot& slot, std::uint64_t length);
    /// Sets the bits of `count` packets from `first` on, whose payload the owner put into the buffer itself: rebuilt
    /// from parity. Copies that arrive later count as duplicates. On the owner's thread; packets past the end are
    /// ignored.
    void mark_rebuilt(MessageSlot& slot, std::uint32_t first, std::uint32_t count);
    /// From here on the slot is the NULL key. The bitmaps stay readable until the slot is opened again.
    void close(MessageSlot& slot);

    /// The slot of message `sequence` if that message is open, else null.
    MessageSlot* find(std::uint64_t sequence);
    /// Index of a slot: its message id.
    std::uint32_t index_of(const MessageSlot& slot) const { return static_cast<std::uint32_t>(&slot - slots_.data()); }
    MessageSlot& slot(std::uint32_t message_id) { return slots_[message_id]; }

    /// Chunk of a packet: packet / packets_per_chunk by a multiplication, exact for every index below 2^30.
    std::uint32_t chunk_of(std::uint32_t packet) const {
        return static_cast<std::uint32_t>(packet * chunk_multiplier_ >> chunk_shift_);
    }

    /// Takes a batch: checks, places, sets bits. `touched` receives the distinct slots that a packet was for (taken,
    /// known already or swallowed for its order; at most its size; further ones are not reported) and `touched_count`
    /// how many. Adds to `counters`. Never allocates.
    template <bool kAtomic>
    void arrivals(std::span<const Arrival> batch, ArrivalCounters& counters, std::span<MessageSlot*> touched,
                  std::size_t& touched_count);

 private:
    MessageTable() = default;
    std::uint64_t tag_of(std::uint32_t generation) const {
        return static_cast<std::uint64_t>(generation & generation_mask_) << 1 | 1;
    }
    std::uint64_t shape_of(std::uint64_t length) const {
        return length / config_.payload_bytes << 32 | length % config_.payload_bytes;
    }
    template <bool kAtomic>
    void take_run(MessageSlot& slot, std::span<const Arrival> run, std::uint32_t chunk, std::uint64_t bits,
                  bool payload, ArrivalCounters& counters);
    template <bool kAtomic>
    void take_short(MessageSlot& slot, const Arrival& arrival, std::uint32_t index, ArrivalCounters& counters);
    template <bool kAtomic>
    void take_in_order(MessageSlot& slot, const Arrival& arrival, ArrivalCounters& counters);
    template <bool kAtomic>
    std::uint64_t set_bits(MessageSlot& slot, std::uint32_t chunk, std::uint64_t bits);
    template <bool kAtomic>
    void complete_chunk(MessageSlot& slot, std::uint32_t chunk);
    template <bool kAtomic>
    void take_fragment(MessageSlot& slot, const Arrival& arrival);
    std::uint64_t chunk_mask(std::uint64_t shape, std::uint32_t chunk) const;

    MessageTableConfig config_;
    std::uint64_t chunk_multiplier_ = 0;
    std::uint32_t chunk_shift_ = 0;
    std::uint32_t generation_mask_ = ~0u;
    std::vector<MessageSlot> slots_;
};

extern template void MessageTable::arrivals<true>(std::span<const Arrival>, ArrivalCounters&, std::span<MessageSlot*>,
                                                  std::size_t&);
extern template void MessageTable::arrivals<false>(std::span<const Arrival>, ArrivalCounters&, std::span<MessageSlot*>,
                                                   std::size_t&);

}  // namespace farhaul::sdr
