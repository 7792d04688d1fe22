// The inner loops of coding: products of a matrix over GF(2^8) with vectors of bytes, and exclusive or. The field is
// that of ISA-L, x^8 + x^4 + x^3 + x^2 + 1 (0x11d); every engine gives the same bytes.
//
// ISA-L's loops are the default. It has no kernels for GFNI before 2.31; where the processor has GFNI our own loop
// (product_loop.inc) multiplies 32 or 64 bytes by one instruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace farhaul::erasure {

/// target[r][0..bytes) = sum over c of coefficient(r, c) * source[c][0..bytes), or added to what is there.
struct Product {
    const std::byte* tables;  ///< as prepared by the same engine, row after row
    unsigned stride;          ///< coefficients from one row to the next, at least `columns`
    unsigned rows, columns;
    const std::byte* const* sources;  ///< `columns` of them, any alignment
    std::byte* const* targets;        ///< `rows` of them, any alignment, overlapping neither each other nor a source
    std::size_t bytes;                ///< up to 1 GiB
    bool add;
};

struct Engine {
    std::string_view name;              ///< of the matrix products: `isa-l`, `gfni-avx512`, `gfni-avx2`
    std::string_view xor_name;          ///< of the exclusive or: `avx512`, `avx2`, `sse2`
    std::size_t bytes_per_coefficient;  ///< of the tables
    void (*prepare)(const std::uint8_t* coefficients, std::size_t count, std::byte* tables);
    void (*multiply)(const Product& product);
    /// target = exclusive or of the sources (zeros when there is none).
    void (*exclusive_or)(const std::byte* const* sources, unsigned count, std::byte* target, std::size_t bytes);
};

/// The fastest engine for this processor. FARHAUL_CODING=isa-l|gfni-avx2|gfni-avx512 in the environment picks another,
/// if it can run here.
const Engine& best_engine();
/// Every engine that this processor can run, the fastest first. ISA-L's is always there.
std::span<const Engine* const> engines();
/// Null when there is no such engine or this processor cannot run it.
const Engine* find_engine(std::string_view name);

/// The 8x8 bit matrix by which GF2P8AFFINEQB multiplies a byte by `coefficient`.
std::uint64_t affine_matrix(std::uint8_t coefficient);

// The parts that engines are made of.
namespace detail {
void affine_prepare(const std::uint8_t* coefficients, std::size_t count, std::byte* tables);
void gfni_avx512_multiply(const Product& product);
void gfni_avx2_multiply(const Product& product);
void xor_avx512(const std::byte* const* sources, unsigned count, std::byte* target, std::size_t bytes);
void xor_avx2(const std::byte* const* sources, unsigned count, std::byte* target, std::size_t bytes);
void xor_sse2(const std::byte* const* sources, unsigned count, std::byte* target, std::size_t bytes);
}  // namespace detail

}  // namespace farhaul::erasure
