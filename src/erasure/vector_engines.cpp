// Our own loops for each instruction set, each compiled for its own target; engine.cpp calls only those that the
// processor has.
#include <algorithm>
#include <bit>
#include <cstring>

#include <emmintrin.h>
#include <immintrin.h>
#include <isa-l/erasure_code.h>

#include "erasure/engine.hpp"

namespace farhaul::erasure {

std::uint64_t affine_matrix(std::uint8_t coefficient) {
    // Bit i of the result is the parity of (byte 7-i of the matrix & x): that byte collects bit i of coefficient * 2^j
    // for each bit j of x.
    std::uint64_t matrix = 0;
    for (unsigned j = 0; j < 8; ++j) {
        const unsigned image = gf_mul(coefficient, static_cast<unsigned char>(1u << j));
        for (unsigned i = 0; i < 8; ++i) matrix |= static_cast<std::uint64_t>(image >> i & 1) << ((7 - i) * 8 + j);
    }
    return matrix;
}

void detail::affine_prepare(const std::uint8_t* coefficients, std::size_t count, std::byte* tables) {
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t matrix = affine_matrix(coefficients[i]);
        std::memcpy(tables + i * 8, &matrix, 8);
    }
}

#if defined(__clang__)
#define FARHAUL_TARGET_END _Pragma("clang attribute pop")
#else
#define FARHAUL_TARGET_END _Pragma("GCC pop_options")
#endif

// --- SSE2: every x86-64 processor ---
namespace {
namespace sse2 {
struct Vector {
    using Register = __m128i;
    static constexpr std::size_t kBytes = 16;
    static Register load(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p)); }
    static void store(std::byte* p, Register r) { _mm_storeu_si128(reinterpret_cast<__m128i_u*>(p), r); }
    static void stream(std::byte* p, Register r) { _mm_stream_si128(std::bit_cast<__m128i*>(p), r); }
    static void fence() { _mm_sfence(); }
    static Register exclusive_or(Register a, Register b) { return _mm_xor_si128(a, b); }
    static Register load_part(const std::byte* p, std::size_t n) {
        std::byte bytes[kBytes] = {};
        std::memcpy(bytes, p, n);
        return load(bytes);
    }
    static void store_part(std::byte* p, Register r, std::size_t n) {
        std::byte bytes[kBytes];
        store(bytes, r);
        std::memcpy(p, bytes, n);
    }
    static void prefetch(const std::byte* p) { __builtin_prefetch(p); }
};
#include "erasure/xor_loop.inc"
}  // namespace sse2
}  // namespace

// --- AVX2 ---
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif
namespace {
namespace avx2 {
struct Vector {
    using Register = __m256i;
    static constexpr std::size_t kBytes = 32;
    static Register load(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)); }
    static void store(std::byte* p, Register r) { _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(p), r); }
    static void stream(std::byte* p, Register r) { _mm256_stream_si256(std::bit_cast<__m256i*>(p), r); }
    static void fence() { _mm_sfence(); }
    static Register exclusive_or(Register a, Register b) { return _mm256_xor_si256(a, b); }
    static Register load_part(const std::byte* p, std::size_t n) {
        std::byte bytes[kBytes] = {};
        std::memcpy(bytes, p, n);
        return load(bytes);
    }
    static void store_part(std::byte* p, Register r, std::size_t n) {
        std::byte bytes[kBytes];
        store(bytes, r);
        std::memcpy(p, bytes, n);
    }
    static void prefetch(const std::byte* p) { __builtin_prefetch(p); }
};
#include "erasure/xor_loop.inc"
}  // namespace avx2
}  // namespace
void detail::xor_avx2(const std::byte* const* sources, unsigned count, std::byte* target, std::size_t bytes) {
    avx2::xor_loop(sources, count, target, bytes);
}
FARHAUL_TARGET_END

// --- AVX2 with GFNI: 16 registers, so one vector of up to eight sums at a time ---
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,gfni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,gfni")
#endif
namespace {
namespace gfni_avx2 {
struct Vector : avx2::Vector {
    static constexpr unsigned kUnroll = 1;
    using Matrix = __m256i;
    static Register zero() { return _mm256_setzero_si256(); }
    static Matrix matrix(const std::byte* p) {
        long long bits;
        std::memcpy(&bits, p, sizeof bits);
        return _mm256_set1_epi64x(bits);
    }
    static Register affine(Register r, Matrix m) { return _mm256_gf2p8affine_epi64_epi8(r, m, 0); }
};
#include "erasure/product_loop.inc"
}  // namespace gfni_avx2
}  // namespace
void detail::gfni_avx2_multiply(const Product& product) { gfni_avx2::product_loop(product); }
FARHAUL_TARGET_END

// --- AVX-512 with GFNI: 32 registers, two vectors of up to eight sums ---
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,gfni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,gfni")
#endif
namespace {
namespace gfni_avx512 {
struct Vector {
    using Register = __m512i;
    using Matrix = __m512i;
    static constexpr std::size_t kBytes = 64;
    static constexpr unsigned kUnroll = 2;
    static Register load(const std::byte* p) { return _mm512_loadu_si512(p); }
    static void store(std::byte* p, Register r) { _mm512_storeu_si512(p, r); }
    static void stream(std::byte* p, Register r) { _mm512_stream_si512(std::bit_cast<__m512i*>(p), r); }
    static void fence() { _mm_sfence(); }
    static Register zero() { return _mm512_setzero_si512(); }
    static Register exclusive_or(Register a, Register b) { return _mm512_xor_si512(a, b); }
    static __mmask64 mask(std::size_t n) { return (std::uint64_t{1} << n) - 1; }  // n < 64
    static Register load_part(const std::byte* p, std::size_t n) {
        return n == kBytes ? load(p) : _mm512_maskz_loadu_epi8(mask(n), p);
    }
    static void store_part(std::byte* p, Register r, std::size_t n) {
        if (n == kBytes) {
            store(p, r);
        } else {
            _mm512_mask_storeu_epi8(p, mask(n), r);
        }
    }
    static void prefetch(const std::byte* p) { __builtin_prefetch(p); }
    static Matrix matrix(const std::byte* p) {
        long long bits;
        std::memcpy(&bits, p, sizeof bits);
        return _mm512_set1_epi64(bits);
    }
    static Register affine(Register r, Matrix m) { return _mm512_gf2p8affine_epi64_epi8(r, m, 0); }
};
#include "erasure/product_loop.inc"
#include "erasure/xor_loop.inc"
}  // namespace gfni_avx512
}  // namespace
void detail::gfni_avx512_multiply(const Product& product) { gfni_avx512::product_loop(product); }
void detail::xor_avx512(const std::byte* const* sources, unsigned count, std::byte* target, std::size_t bytes) {
    gfni_avx512::xor_loop(sources, count, target, bytes);
}
FARHAUL_TARGET_END

void detail::xor_sse2(const std::byte* const* sources, unsigned count, std::byte* target, std::size_t bytes) {
    sse2::xor_loop(sources, count, target, bytes);
}

}  // namespace farhaul::erasure
