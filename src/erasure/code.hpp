// Erasure codes over the chunks (or packets) of one block: k data chunks and m parity chunks made from them.
// Systematic: data goes as it is.
//
//   kReedSolomon  any k of the k+m chunks give the data back (MDS). Parity i = sum over j of data j / ((k+i) xor j) in
//   GF(2^8): the
//                 Cauchy matrix that ISA-L's gf_gen_cauchy1_matrix makes. With m = 1 it is the plain exclusive or of
//                 the data. Row i depends on k alone: the first rows of a code with more parity are the code with less.
//   kXor          parity i is the exclusive or of the data chunks j with j mod m == i: one loss per group is repaired.
//
// A block may be short, at the end of a message: fewer than k data chunks, the last of them shorter than the others.
// What is missing counts as zeros that are neither stored nor read.
//
// A code repairs what is known to be missing. It detects nothing: a flipped bit in one chunk comes out as wrong bits in
// every chunk that is rebuilt with it. Integrity is the business of checksums, above or below.
//
// Code is immutable and may be used by many threads; decoding keeps state (decoder.hpp), as does building parity up
// (accumulator.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "erasure/engine.hpp"
#include "erasure/pattern.hpp"

namespace farhaul::erasure {

enum class Kind : std::uint8_t { kXor, kReedSolomon };

struct Parameters {
    Kind kind = Kind::kReedSolomon;
    unsigned k = 0;  ///< data chunks, at least 1
    unsigned m = 0;  ///< parity chunks, at least 1; k + m at most 255; m at most k for kXor
    bool operator==(const Parameters&) const = default;
};

/// Whether such a code exists. Errors: kInvalidArgument with the limits.
Status validate(const Parameters& parameters);
/// `ec(32,8)` or `xor(32,8)`.
std::string to_string(const Parameters& parameters);

inline constexpr std::size_t kMostChunkBytes = std::size_t{1} << 30;

/// Where the chunks of a block are. Pointers need no alignment (64 is fastest); no two chunks overlap.
struct Block {
    std::size_t chunk_bytes = 0;         ///< of every chunk but the last of the data; 1 .. kMostChunkBytes
    std::size_t last_bytes = 0;          ///< of the last data chunk, 1 .. chunk_bytes
    std::span<std::byte* const> data;    ///< 1 .. k of them; fewer than k: the rest are zeros
    std::span<std::byte* const> parity;  ///< up to m of them; null: not wanted (encode) or not here (decode)
};

class Code {
 public:
    /// Errors: kInvalidArgument as `validate`.
    static Result<Code> create(const Parameters& parameters, const Engine& engine = best_engine());

    const Parameters& parameters() const { return parameters_; }
    unsigned k() const { return parameters_.k; }
    unsigned m() const { return parameters_.m; }
    const Engine& engine() const { return *engine_; }

    /// Writes block.parity[i] = parity chunk `first_parity` + i, from all of block.data. Null entries are skipped.
    /// Allocates nothing. Errors: kInvalidArgument for a block that does not fit the code.
    Status encode(const Block& block, unsigned first_parity = 0) const;

    /// The data chunks among the first `data_chunks` that are not in `present` but can be rebuilt from what is.
    /// For Reed-Solomon all or none of those missing.
    Pattern repairable(const Pattern& present, unsigned data_chunks) const;
    Pattern repairable(const Pattern& present) const { return repairable(present, k()); }
    /// Whether every data chunk is present or can be rebuilt.
    bool recoverable(const Pattern& present, unsigned data_chunks) const;
    bool recoverable(const Pattern& present) const { return recoverable(present, k()); }

    /// Row `parity` of the coding matrix: k coefficients.
    std::span<const std::uint8_t> row(unsigned parity) const { return std::span(matrix_).subspan(parity * k(), k()); }
    /// Checks the shape of a block. Errors: kInvalidArgument.
    Status check(const Block& block, unsigned first_parity = 0) const;

 private:
    friend class Accumulator;
    Code(const Parameters& parameters, const Engine& engine);
    bool is_exclusive_or() const { return parameters_.kind == Kind::kXor || parameters_.m == 1; }
    const std::byte* tables(unsigned parity) const {
        return tables_.data() + std::size_t{parity} * parameters_.k * engine_->bytes_per_coefficient;
    }
    void encode_groups(const Block& block, unsigned first_parity) const;
    void encode_rows(const Block& block, unsigned first_parity, unsigned rows, std::byte* const* parity) const;

    Parameters parameters_;
    const Engine* engine_;
    std::vector<std::uint8_t> matrix_;  // m rows of k
    std::vector<std::byte> tables_;     // the same, prepared by the engine
};

}  // namespace farhaul::erasure
