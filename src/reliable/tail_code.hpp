// The codes behind `auto`: layouts that both ends derive alike, parity at the sender, repair at the receiver.
// tail_layout.hpp says which packet belongs where.
//
// Data and parity travel as a pair of messages. A message that fills its posted buffer and is coded whole uses the
// parity packets from 0 on: both ends know its layout. Any other uses those from TailCoding::explicit_base() on, and
// the parity message's immediate says how many packets are coded; the length comes from the data message's own
// announcement. So a receiver never rebuilds by a layout that it only guessed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/executor.hpp"
#include "base/time.hpp"
#include "erasure/code.hpp"
#include "erasure/decoder.hpp"
#include "plan/tail_layout.hpp"
#include "reliable/loss_estimate.hpp"
#include "sdr/queue_pair.hpp"

namespace farhaul::reliable {

/// What is the same for all messages of a connection.
class TailCoding {
 public:
    /// max_packets: most that a message of this connection can have (its layout's).
    TailCoding(std::uint32_t payload_bytes, std::uint32_t max_packets)
        : payload_bytes_(payload_bytes), most_parity_(max_packets / 2) {}

    std::uint32_t payload_bytes() const { return payload_bytes_; }
    std::uint32_t packets_of(std::uint64_t length) const {
        return static_cast<std::uint32_t>((length + payload_bytes_ - 1) / payload_bytes_);
    }
    /// Of a message that fills its buffer.
    TailLayout whole(std::uint64_t posted_length) const {
        const std::uint32_t packets = packets_of(posted_length);
        return TailLayout::make(packets, packets, most_parity_);
    }
    /// Of any other, or one that is coded in part; it has no more parity than the whole buffer's.
    TailLayout part(std::uint64_t length, std::uint32_t coded, std::uint64_t posted_length) const {
        return TailLayout::make(packets_of(length), coded, explicit_base(posted_length));
    }
    std::uint32_t explicit_base(std::uint64_t posted_length) const { return whole(posted_length).parity_packets(); }
    /// The parity message's immediate for such a layout. `shorter`: than the buffer, so that the length matters.
    static std::uint32_t immediate_of(std::uint32_t coded, bool shorter);
    /// Bytes of the parity message that goes with a buffer.
    std::uint64_t parity_bytes(std::uint64_t posted_length) const {
        return std::uint64_t{explicit_base(posted_length)} * 2 * payload_bytes_;
    }
    /// Made when first asked for; the reference stays valid.
    const erasure::Code& rows(std::uint32_t k);
    /// Exclusive or over the blocks of a group.
    const erasure::Code& columns(std::uint32_t blocks);

 private:
    std::uint32_t payload_bytes_;
    std::uint32_t most_parity_;
    std::map<std::uint32_t, erasure::Code> rows_, columns_;
};

/// Parity of one message at its sender. Encoded by an Executor beside the injection, or on the spot where there is
/// none.
class TailParity {
 public:
    /// `data` is null on a metadata-only wire, and stays valid until this object is gone. `base`: number of its first
    /// parity packet. `ready` is called on the loop's thread when more parity is encoded.
    TailParity(TailCoding& coding, const TailLayout& layout, TailPlan plan, std::uint32_t base, const std::byte* data,
               std::uint64_t length, Executor* executor, void (*ready)(void*), void* context);
    /// Waits for encoding that is under way, which reads the data.
    ~TailParity();
    TailParity(const TailParity&) = delete;
    TailParity& operator=(const TailParity&) = delete;

    const TailLayout& layout() const { return layout_; }

    struct Run {
        std::uint32_t first = 0;  ///< number of a parity packet in its message
        std::uint32_t count = 0;  ///< 0: none that is ready
        const std::byte* data = nullptr;
    };
    /// What to send next: at most `most` packets that are encoded.
    Run next(std::uint32_t most);
    void note_queued(std::uint32_t count) { queued_ += count; }
    void note_injected(std::uint32_t count, TimePoint at) {
        injected_ += count;
        injected_at_ = at;
    }
    bool started() const { return injected_ > 0; }
    bool all_queued() const { return queued_ == planned_; }
    /// When the latest of it was injected, once started().
    TimePoint injected_at() const { return injected_at_; }

    sdr::SendHandle* send = nullptr;  ///< of the parity message, once it is started

 private:
    struct Work;
    bool encoded(std::uint32_t index) const;

    TailLayout layout_;
    TailPlan plan_;
    std::uint32_t base_;
    std::uint32_t payload_bytes_;
    std::uint32_t planned_;
    std::uint32_t queued_ = 0, injected_ = 0;
    TimePoint injected_at_;
    std::shared_ptr<Work> work_;  // null on a metadata-only wire without an executor
};

/// Repair at the receiver. One serves all messages of a connection.
class TailRepairer {
 public:
    TailRepairer(TailCoding& coding, sdr::QueuePair& queue_pair) : coding_(coding), queue_pair_(queue_pair) {}

    struct Outcome {
        std::uint32_t packets = 0;  ///< rebuilt
        std::uint32_t bursts = 0;   ///< runs of neighbours that they were
    };
    /// Rebuilds what can be rebuilt now. Both slots open; `parity_buffer` holds the parity slot's payload (null on a
    /// metadata-only wire), `posted_length` is that of the data slot's buffer.
    Outcome repair(sdr::MessageSlot& data, const sdr::MessageSlot& parity, std::byte* parity_buffer,
                   std::uint64_t posted_length);

 private:
    bool find_layout(const sdr::MessageSlot& data, const sdr::MessageSlot& parity, std::uint64_t posted_length);
    void count_rows(const sdr::MessageSlot& parity);
    bool solve_blocks(sdr::MessageSlot& data, const sdr::MessageSlot& parity, std::byte* parity_buffer);
    bool solve_columns(sdr::MessageSlot& data, const sdr::MessageSlot& parity, std::byte* parity_buffer,
                       std::uint32_t group);
    bool decode_block(sdr::MessageSlot& data, const sdr::MessageSlot& parity, std::byte* parity_buffer,
                      std::uint32_t block);
    bool decode_column(sdr::MessageSlot& data, std::byte* column, std::uint32_t group, std::uint32_t position,
                       std::uint32_t block);
    std::size_t last_bytes(const sdr::MessageSlot& data, std::uint32_t last_packet) const;
    void rebuilt(sdr::MessageSlot& data, std::uint32_t packet);

    TailCoding& coding_;
    sdr::QueuePair& queue_pair_;
    std::map<std::uint32_t, erasure::Decoder> row_decoders_, column_decoders_;
    TailLayout layout_;
    std::uint32_t base_ = 0;
    std::vector<std::uint32_t> missing_;                // packets, ascending
    std::vector<std::uint32_t> rebuilt_;                // packets, as they came
    std::vector<std::uint32_t> rows_;                   // that came, by block
    std::vector<std::vector<std::uint32_t>> unsolved_;  // positions missing, by block
    std::vector<std::uint32_t> blocks_unsolved_;
    std::vector<std::uint32_t> seen_, owner_;  // by position: blocks of a group that miss it, the last such
    std::vector<std::byte*> data_pointers_, parity_pointers_;
};

}  // namespace farhaul::reliable
