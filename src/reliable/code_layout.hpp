// Which packets of a message make up which block of a code, and where a block's parity travels.
//
// A coded message is a pair: the data message, and right behind it in the order of messages a parity message, whose
// packets land in memory of the receiver's own. The unit of coding is a symbol: one packet, or the packets of a chunk.
// The last symbol of a message may be short.
//
//   contiguous    block b is the symbols [b*k, (b+1)*k); its parity symbols are b*m .. b*m + m-1: a submessage as
//   published interleaved   symbol s of the coded part is in block s mod B: a burst of losses hits many blocks once.
//   Parity symbol r of block b is
//                 r*B + b, so that parity goes out row by row, and each row helps every block.
//
// Symbols before `first` are not coded (interleaved only).
#pragma once

#include <algorithm>
#include <cstdint>

namespace farhaul::reliable {

struct CodeLayout {
    std::uint32_t symbols = 0;  ///< of the data message
    std::uint32_t first = 0;    ///< first coded symbol
    std::uint32_t k = 0;        ///< most data symbols of a block
    std::uint32_t m = 0;        ///< parity symbols of a block
    std::uint32_t packets_per_symbol = 1;
    bool interleaved = false;

    std::uint32_t coded() const { return symbols - first; }
    std::uint32_t blocks() const { return k == 0 ? 0 : (coded() + k - 1) / k; }
    std::uint32_t parity_symbols() const { return blocks() * m; }
    std::uint32_t block_of(std::uint32_t symbol) const {
        return interleaved ? (symbol - first) % blocks() : (symbol - first) / k;
    }
    std::uint32_t position_of(std::uint32_t symbol) const {
        return interleaved ? (symbol - first) / blocks() : (symbol - first) % k;
    }
    std::uint32_t symbol_at(std::uint32_t block, std::uint32_t position) const {
        return first + (interleaved ? position * blocks() + block : block * k + position);
    }
    /// Data symbols of a block.
    std::uint32_t size_of(std::uint32_t block) const {
        return interleaved ? (coded() - block + blocks() - 1) / blocks() : std::min(k, coded() - block * k);
    }
    std::uint32_t parity_at(std::uint32_t block, std::uint32_t row) const {
        return interleaved ? row * blocks() + block : block * m + row;
    }
    std::uint32_t parity_block(std::uint32_t parity) const { return interleaved ? parity % blocks() : parity / m; }
    std::uint32_t parity_row(std::uint32_t parity) const { return interleaved ? parity / blocks() : parity % m; }
};

}  // namespace farhaul::reliable
