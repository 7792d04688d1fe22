// Receive side of a queue pair: which message ids are open, where their payload goes, and which packets and chunks are in.
//
// A slot per message id. An open slot owns a buffer (its range of the zero-based root key) and the generation that may write to it; a
// closed slot is the NULL key: it swallows. A packet is taken only if its slot is open for exactly its generation, so that a packet that
// comes after an early completion, or a whole turn of the id space later, touches neither a buffer nor a bitmap.
//
// Bitmaps: each chunk owns one 64-bit word of packet bits (a chunk has 1..64 packets), so that "is this chunk complete" is one compare and
// chunk_packets() one load. The chunk bitmap has one bit per chunk, chunk c at byte c / 8, bit c % 8.
//
// Threads: arrivals<kAtomic = true> may run on several threads at once beside open/close/read on the owner's; the owner must call
// Wire::quiesce() between close() and letting go of the buffer. arrivals<false> runs on the owner's thread.
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
    ImmediateLayout layout;
    std::uint32_t payload_bytes = 4096;    ///< payload of every packet but a message's last; any size from 1
    std::uint32_t packets_per_chunk = 16;  ///< 1..64
    std::uint32_t generation_bits = 32;    ///< of the wire
};

/// Why packets were not taken. Monotonic; with several channels, sums over them.
struct ArrivalCounters {
    std::uint64_t accepted = 0;
    std::uint64_t duplicate = 0;            ///< its bit was set already
    std::uint64_t stale = 0;                ///< slot closed or of another generation: swallowed
    std::uint64_t out_of_bounds = 0;        ///< index or length beyond the posted buffer
    std::uint64_t out_of_order = 0;         ///< swallowed by an in-order slot (go-back-N)
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

    /// The chunk bitmap: (chunks + 7) / 8 bytes; stable until the slot is opened again. Bits of chunks past the end are 0.
    const std::uint8_t* chunk_bitmap() const { return reinterpret_cast<const std::uint8_t*>(chunk_words_.get()); }
    bool chunk_complete(std::uint32_t chunk) const;
    /// Packet bits of one chunk, bit i = packet i of the chunk.
    std::uint64_t chunk_packets(std::uint32_t chunk) const;
    /// Chunks whose bit is set. Everything in, payload included, when it equals chunks().
    std::uint32_t chunks_complete() const { return chunks_complete_.load(std::memory_order_acquire); }
    bool complete() const { return chunks_complete() == chunks_; }
    /// First chunk at or after `from` whose bit is not set, or chunks().
    std::uint32_t next_incomplete_chunk(std::uint32_t from) const;
    /// One past the highest packet index seen: 0 when nothing came yet. What lies below and is not set is missing or late.
    std::uint32_t packet_horizon() const { return horizon_.load(std::memory_order_relaxed); }
    /// In-order slots: index of the next packet that will be taken, and how many were swallowed for being out of order.
    std::uint32_t next_in_order() const { return next_in_order_; }
    std::uint64_t swallowed_out_of_order() const { return swallowed_out_of_order_; }
    /// The user's immediate, once all its fragments are in (from packets or from set_immediate()).
    bool immediate(std::uint32_t* value) const;
    /// The sender's immediate, announced in a control datagram.
    void set_immediate(std::uint32_t value);

   private:
    friend class MessageTable;
    // Implementation state: see message_table.cpp for the layout and the order of stores.
    std::atomic<std::uint64_t> tag_{0};  // generation << 1 | open: one compare decides whether a packet is taken
    std::byte* buffer_ = nullptr;
    std::uint64_t length_ = 0;
    std::uint32_t packets_ = 0;
    std::uint32_t chunks_ = 0;
    std::atomic<std::uint32_t> chunks_complete_{0};
    std::atomic<std::uint32_t> horizon_{0};
    std::unique_ptr<std::atomic<std::uint64_t>[]> packet_words_;
    std::unique_ptr<std::atomic<std::uint64_t>[]> chunk_words_;
    std::uint32_t capacity_chunks_ = 0;
    std::uint32_t packets_per_chunk_ = 0;
    std::uint32_t next_in_order_ = 0;
    std::uint64_t swallowed_out_of_order_ = 0;
    std::atomic<std::uint32_t> immediate_value_{0};
    std::atomic<std::uint32_t> immediate_seen_{0};
    std::uint32_t all_fragments_ = 0;
    std::uint64_t sequence_ = 0;
    bool open_ = false;
    bool in_order_ = false;
};

class MessageTable {
   public:
    static Result<std::unique_ptr<MessageTable>> create(const MessageTableConfig& config);

    const MessageTableConfig& config() const { return config_; }

    /// Opens the slot of message `sequence` (slot = sequence mod message ids, generation = sequence div message ids) for `length` bytes at
    /// `buffer` (null on a metadata-only wire). A zero-length message has no packets and no chunks and is complete at once. Errors:
    /// kRetry when that slot is still open; kInvalidArgument when length needs more packets than the layout can number.
    Result<MessageSlot*> open(std::uint64_t sequence, std::byte* buffer, std::uint64_t length, SlotOptions options = {});
    /// Shrinks the open message: the sender announced fewer bytes than were posted. Completes its last chunk if that is now full.
    /// A length above the posted one is an error (kProtocol).
    Status set_length(MessageSlot& slot, std::uint64_t length);
    /// From here on the slot is the NULL key. The bitmaps stay readable until the slot is opened again.
    void close(MessageSlot& slot);

    /// Takes a batch: checks, places, sets bits. `touched` receives the distinct slots that took a packet (at most its size; further ones
    /// are not reported) and `touched_count` how many. Never allocates.
    template <bool kAtomic>
    void arrivals(std::span<const Arrival> batch, ArrivalCounters& counters, std::span<MessageSlot*> touched, std::size_t& touched_count);

   private:
    MessageTable() = default;
    MessageTableConfig config_;
    std::vector<MessageSlot> slots_;
};

extern template void MessageTable::arrivals<true>(std::span<const Arrival>, ArrivalCounters&, std::span<MessageSlot*>, std::size_t&);
extern template void MessageTable::arrivals<false>(std::span<const Arrival>, ArrivalCounters&, std::span<MessageSlot*>, std::size_t&);

}  // namespace farhaul::sdr
