// Engines from the GFNI loop over an emulation of its instructions: they prove the loop and its matrices on any
// processor.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "erasure/engine.hpp"

namespace farhaul::erasure {

/// GF2P8AFFINEQB on one byte, after the processor's manual: bit i of the result is the parity of byte 7-i of the matrix
/// and x.
inline std::uint8_t affine_byte(std::uint64_t matrix, std::uint8_t x) {
    unsigned result = 0;
    for (unsigned i = 0; i < 8; ++i) {
        const auto row = static_cast<std::uint8_t>(matrix >> (7 - i) * 8);
        result |= static_cast<unsigned>(std::popcount(static_cast<unsigned>(row & x)) & 1) << i;
    }
    return static_cast<std::uint8_t>(result);
}

/// A vector unit of `Bytes` bytes with GFNI, in plain code. Matrices are looked up in tables made from the emulated
/// instruction.
template <std::size_t Bytes, unsigned Unroll>
struct Emulated {
    using Register = std::array<std::uint8_t, Bytes>;
    using Matrix = std::uint64_t;
    static constexpr std::size_t kBytes = Bytes;
    static constexpr unsigned kUnroll = Unroll;
    static inline unsigned streamed = 0, fences = 0;
    static Register load(const std::byte* p) { return load_part(p, Bytes); }
    static void store(std::byte* p, const Register& r) { store_part(p, r, Bytes); }
    static void stream(std::byte* p, const Register& r) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % Bytes, 0u);  // the instruction faults otherwise
        ++streamed;
        store(p, r);
    }
    static void fence() { ++fences; }
    static Register zero() { return {}; }
    static Register exclusive_or(Register a, const Register& b) {
        for (std::size_t i = 0; i < Bytes; ++i) a[i] = static_cast<std::uint8_t>(a[i] ^ b[i]);
        return a;
    }
    static Register load_part(const std::byte* p, std::size_t n) {
        Register r{};
        std::memcpy(r.data(), p, n);
        return r;
    }
    static void store_part(std::byte* p, const Register& r, std::size_t n) { std::memcpy(p, r.data(), n); }
    static Matrix matrix(const std::byte* p) {
        std::uint64_t bits;
        std::memcpy(&bits, p, 8);
        return bits;
    }
    static Register affine(Register r, Matrix m) {
        for (auto& byte : r) byte = affine_byte(m, byte);
        return r;
    }
    static void prefetch(const std::byte*) {}
};

namespace emulated512 {
using Vector = Emulated<64, 2>;
#include "erasure/product_loop.inc"
#include "erasure/xor_loop.inc"
}  // namespace emulated512
namespace emulated256 {
using Vector = Emulated<32, 1>;
#include "erasure/product_loop.inc"
#include "erasure/xor_loop.inc"
}  // namespace emulated256

inline const Engine kEmulated512{"emulated-avx512",         "emulated",           8, detail::affine_prepare,
                                 emulated512::product_loop, emulated512::xor_loop};
inline const Engine kEmulated256{"emulated-avx2",           "emulated",           8, detail::affine_prepare,
                                 emulated256::product_loop, emulated256::xor_loop};

/// Those that this processor can run, and the emulated ones.
inline std::vector<const Engine*> all_engines() {
    std::vector<const Engine*> all(engines().begin(), engines().end());
    all.push_back(&kEmulated512);
    all.push_back(&kEmulated256);
    return all;
}

}  // namespace farhaul::erasure
