// The two ends of a coded message: ParitySource makes parity at the sender, block by block, just before it is queued;
// Repairer rebuilds losses at the receiver as soon as a block has enough parity, in place.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/time.hpp"
#include "erasure/code.hpp"
#include "erasure/decoder.hpp"
#include "reliable/code_layout.hpp"
#include "reliable/scheme.hpp"
#include "sdr/queue_pair.hpp"

namespace farhaul::reliable {

/// What both ends of a connection derive from the scheme and the packet size, once.
class Coding {
 public:
    /// Errors: kInvalidArgument when the scheme's code does not exist.
    static Result<std::unique_ptr<Coding>> create(const Scheme& scheme, std::uint32_t payload_bytes,
                                                  std::uint32_t packets_per_chunk);

    /// The layout of a message of `length` bytes, which fills the buffer that was posted for it. No blocks for an empty
    /// one.
    CodeLayout layout(std::uint64_t length) const;
    /// Bytes of the parity message that goes with a data message of up to `length` bytes.
    std::uint64_t parity_bytes(std::uint64_t length) const {
        return std::uint64_t{layout(length).parity_symbols()} * symbol_bytes();
    }
    std::uint32_t symbol_bytes() const { return payload_bytes_ * packets_per_symbol_; }
    const erasure::Code& code() const { return code_; }

 private:
    Coding(erasure::Code code, const Scheme& scheme, std::uint32_t payload_bytes, std::uint32_t packets_per_symbol)
        : code_(std::move(code)),
          scheme_(scheme),
          payload_bytes_(payload_bytes),
          packets_per_symbol_(packets_per_symbol) {}
    erasure::Code code_;
    Scheme scheme_;
    std::uint32_t payload_bytes_;
    std::uint32_t packets_per_symbol_;
};

class ParitySource {
 public:
    /// `data` is null on a metadata-only wire.
    ParitySource(const Coding& coding, const std::byte* data, std::uint64_t length);

    const CodeLayout& layout() const { return layout_; }
    /// Bytes of parity symbols from `symbol` on, which are encoded now if they were not; null on a metadata-only wire.
    const std::byte* parity(std::uint32_t symbol, std::uint32_t count);
    /// The symbols [symbol, symbol + count) have been injected.
    void note_injected(std::uint32_t symbol, std::uint32_t count, TimePoint at);
    /// When the last of a block's parity was injected, or never().
    TimePoint block_done_at(std::uint32_t block) const { return block_done_at_[block]; }

    sdr::SendHandle* send = nullptr;  ///< of the parity message, once it is started
    std::uint32_t next = 0;           ///< parity symbols queued so far

 private:
    void encode(std::uint32_t block);

    const Coding& coding_;
    CodeLayout layout_;
    const std::byte* data_;
    std::uint64_t length_;
    std::unique_ptr<std::byte[]> storage_;
    std::vector<bool> encoded_;
    std::vector<TimePoint> block_done_at_;
    std::vector<std::byte*> data_pointers_, parity_pointers_;
};

/// State of a connection's receiving end; one decoder serves all messages.
class Repairer {
 public:
    Repairer(const Coding& coding, sdr::QueuePair& queue_pair);

    /// Rebuilds what can be rebuilt now. Both slots open; `parity_buffer` holds the parity slot's payload (null on a
    /// metadata-only wire). Returns the number of packets rebuilt.
    std::uint64_t repair(sdr::MessageSlot& data, const sdr::MessageSlot& parity, std::byte* parity_buffer,
                         std::uint64_t posted_length);

 private:
    std::uint64_t repair_block(sdr::MessageSlot& data, const sdr::MessageSlot& parity, std::byte* parity_buffer,
                               std::uint32_t block);

    const Coding& coding_;
    sdr::QueuePair& queue_pair_;
    erasure::Decoder decoder_;
    CodeLayout layout_;
    std::vector<std::uint32_t> missing_;  // symbols of the block at hand
    std::vector<std::byte*> data_pointers_, parity_pointers_;
};

}  // namespace farhaul::reliable
