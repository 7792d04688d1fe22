// The parity of one block, built up as its data becomes available: each chunk is added once, in any order, and the
// parity is ready with the last. For data that arrives over time (from a socket, a disk, another sender); with a whole
// block at hand Code::encode is faster.
#pragma once

#include <cstddef>
#include <span>

#include "erasure/code.hpp"

namespace farhaul::erasure {

/// One block at a time; `code` must outlive it. Allocates nothing.
class Accumulator {
 public:
    explicit Accumulator(const Code& code) : code_(&code) {}

    /// Begins a block: parity chunks 0 .. parity.size()-1 of `chunk_bytes` each are built at these addresses, none of
    /// them null. They are in use until the block is complete. Errors: kInvalidArgument.
    Status begin(std::span<std::byte* const> parity, std::size_t chunk_bytes);
    /// Adds data chunks `first`, first + 1, ... Chunks may have fewer than chunk_bytes (1 or more): `last_bytes` is the
    /// size of the last one given. Each of them may be added once. Errors: kInvalidArgument; then nothing was added.
    Status add(unsigned first, std::span<const std::byte* const> chunks, std::size_t last_bytes);

    const Pattern& added() const { return added_; }
    /// Whether the first `data_chunks` (all k, or those that a short block has) were added: the parity is what
    /// Code::encode gives.
    bool complete(unsigned data_chunks) const { return Pattern::first(data_chunks).without(added_).none(); }

 private:
    void add_part(unsigned first, const std::byte* const* chunks, unsigned count, std::size_t offset,
                  std::size_t bytes);

    const Code* code_;
    std::byte* parity_[Pattern::kCapacity] = {};
    unsigned rows_ = 0;
    std::size_t chunk_bytes_ = 0;
    Pattern added_;
};

}  // namespace farhaul::erasure
