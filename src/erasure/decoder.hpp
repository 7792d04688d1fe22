// Rebuilds the missing data of blocks, in place. With e chunks missing, e rows of parity give e equations in e
// unknowns: the e x e matrix is inverted (every square part of a Cauchy matrix can be), and each missing chunk becomes
// one product over the k chunks at hand. That matrix is kept for the next block with the same losses: bursts and
// interleaving make patterns recur.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "erasure/code.hpp"

namespace farhaul::erasure {

/// One per thread. `code` must outlive it.
class Decoder {
 public:
    /// Remembers the last `remembered` patterns (at least 1), each at a cost of up to m * k coefficients' tables,
    /// allocated here.
    explicit Decoder(const Code& code, std::size_t remembered = 16);

    /// Rebuilds the data chunks that `present` says are missing and that can be rebuilt, at block.data[i]; a null
    /// pointer there means that this one is not wanted. Present chunks are only read: block.parity[i] must point at
    /// each parity chunk i that `present` names (fewer entries: the others are not here). Returns how many were
    /// rebuilt: 0 when there are too many losses, or none. Parity that is wanted too comes from Code::encode
    /// afterwards. Allocates nothing. Errors: kInvalidArgument for a block that does not fit the code, or null for a
    /// chunk said to be present.
    Result<unsigned> decode(const Block& block, const Pattern& present);

    std::uint64_t hits() const { return hits_; }      ///< blocks whose pattern was remembered
    std::uint64_t misses() const { return misses_; }  ///< blocks whose matrix had to be computed

 private:
    struct Repair {
        Pattern present;           // of the data chunks and of the parity used
        unsigned data_chunks = 0;  // 0: empty
        std::uint64_t last_used = 0;
        std::vector<std::byte> tables;
    };
    const Repair& repair_for(const Pattern& present, unsigned data_chunks, const Pattern& missing);
    void compute(Repair& repair, const Pattern& missing);
    unsigned rebuild_groups(const Block& block, const Pattern& wanted);
    unsigned rebuild_rows(const Block& block, const Pattern& present, const Pattern& missing);

    const Code& code_;
    std::vector<Repair> repairs_;
    std::vector<std::uint8_t> square_, coefficients_;  // scratch of compute()
    std::uint64_t uses_ = 0, hits_ = 0, misses_ = 0;
};

}  // namespace farhaul::erasure
