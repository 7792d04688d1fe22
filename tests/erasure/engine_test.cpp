// Every engine that this processor can run gives the same bytes, those of a byte-by-byte reference; and so does the
// GFNI loop over an emulation of its instructions, which proves the loop and its matrices on any processor.
#include "erasure/engine.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include <isa-l/erasure_code.h>

#include "base/random.hpp"
#include "emulated_engine.hpp"

namespace farhaul::erasure {
namespace {

struct Case {
    unsigned rows, columns, stride;
    std::size_t bytes;
    std::size_t offset;  ///< of sources and targets from alignment
    bool add;
};

void compare(const Engine& engine, const Case& c, std::uint64_t seed) {
    Random random(seed);
    std::vector<std::uint8_t> coefficients(c.rows * c.stride);
    for (auto& x : coefficients) x = static_cast<std::uint8_t>(random());
    std::vector<std::byte> tables(coefficients.size() * engine.bytes_per_coefficient);
    engine.prepare(coefficients.data(), coefficients.size(), tables.data());

    const std::size_t pitch = (c.bytes + 127) / 64 * 64 + 64;
    std::vector<std::byte> memory((c.rows + c.columns) * pitch + 128);
    for (auto& byte : memory) byte = static_cast<std::byte>(random());
    std::byte* const base = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 + c.offset;
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> targets;
    for (unsigned i = 0; i < c.columns; ++i) sources.push_back(base + i * pitch);
    for (unsigned i = 0; i < c.rows; ++i) targets.push_back(base + (c.columns + i) * pitch);

    std::vector<std::byte> expected = memory;
    for (unsigned r = 0; r < c.rows; ++r) {
        std::byte* const out = expected.data() + (targets[r] - memory.data());
        for (std::size_t b = 0; b < c.bytes; ++b) {
            unsigned sum = c.add ? std::to_integer<unsigned>(targets[r][b]) : 0;
            for (unsigned j = 0; j < c.columns; ++j) {
                sum ^= gf_mul(coefficients[r * c.stride + j], std::to_integer<unsigned char>(sources[j][b]));
            }
            out[b] = static_cast<std::byte>(sum);
        }
    }
    engine.multiply({tables.data(), c.stride, c.rows, c.columns, sources.data(), targets.data(), c.bytes, c.add});
    EXPECT_TRUE(memory == expected) << engine.name << " rows " << c.rows << " columns " << c.columns << " stride "
                                    << c.stride << " bytes " << c.bytes << " offset " << c.offset
                                    << (c.add ? " add" : "");
}

TEST(Affine, MatrixMultipliesEveryByteByEveryCoefficient) {
    for (unsigned c = 0; c < 256; ++c) {
        const std::uint64_t matrix = affine_matrix(static_cast<std::uint8_t>(c));
        for (unsigned x = 0; x < 256; ++x) {
            ASSERT_EQ(affine_byte(matrix, static_cast<std::uint8_t>(x)),
                      gf_mul(static_cast<unsigned char>(c), static_cast<unsigned char>(x)))
                << c << " * " << x;
        }
    }
}

TEST(Engines, IsalIsAlwaysThere) {
    ASSERT_NE(find_engine("isa-l"), nullptr);
    EXPECT_EQ(find_engine("abacus"), nullptr);
    EXPECT_FALSE(best_engine().name.empty());
}

TEST(Engines, EverySizeAroundTheVectors) {
    std::vector<std::size_t> sizes(66);
    std::iota(sizes.begin(), sizes.end(), 0);
    for (std::size_t edge : {96u, 128u, 192u, 256u, 384u, 512u, 1024u}) {
        for (std::size_t size = edge - 1; size <= edge + 1; ++size) sizes.push_back(size);
    }
    for (const Engine* engine : all_engines()) {
        for (const std::size_t size : sizes) {
            for (const bool add : {false, true}) {
                compare(*engine, {3, 5, 5, size, size % 7, add}, size);
                compare(*engine, {9, 2, 4, size, size % 3, add}, size + 1000);
            }
        }
    }
}

TEST(Engines, EveryNumberOfRows) {
    for (const Engine* engine : all_engines()) {
        for (unsigned rows = 1; rows <= 33; ++rows) {
            compare(*engine, {rows, 3, 3, 300, 0, false}, rows);
            compare(*engine, {rows, 3, 7, 333, 1, true}, rows);
        }
    }
}

TEST(Engines, LargeAlignedTargetsAreWrittenPastTheCachesAndMisalignedOnesAreNot) {
    for (const Engine* engine : engines()) {
        compare(*engine, {8, 4, 4, 70'000, 0, false}, 1);
        compare(*engine, {8, 4, 4, 70'001, 1, false}, 2);
        compare(*engine, {12, 40, 40, 40'000, 0, false}, 3);  // two bands of rows over stretches
        compare(*engine, {2, 4, 4, 20'000, 5, true}, 4);
    }
    emulated512::Vector::streamed = emulated512::Vector::fences = 0;
    compare(kEmulated512, {5, 2, 2, 53'000, 0, false}, 5);
    EXPECT_GT(emulated512::Vector::streamed, 0u);
    EXPECT_EQ(emulated512::Vector::fences, 1u);
    emulated512::Vector::streamed = emulated512::Vector::fences = 0;
    compare(kEmulated512, {5, 2, 2, 53'000, 3, false}, 6);
    EXPECT_EQ(emulated512::Vector::streamed, 0u);
}

TEST(Engines, ExclusiveOr) {
    for (const Engine* engine : all_engines()) {
        Random random(7);
        for (const std::size_t bytes :
             {0u, 1u, 15u, 16u, 17u, 31u, 33u, 63u, 64u, 65u, 127u, 128u, 255u, 256u, 257u, 1000u, 33'000u}) {
            for (const unsigned count : {0u, 1u, 2u, 5u, 33u}) {
                const std::size_t pitch = bytes / 64 * 64 + 128;
                std::vector<std::byte> memory((count + 2) * pitch + 64);
                for (auto& byte : memory) byte = static_cast<std::byte>(random());
                std::byte* const base =
                    memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 + count % 2;
                std::vector<const std::byte*> sources;
                for (unsigned i = 0; i < count; ++i) sources.push_back(base + (i + 1) * pitch);
                std::vector<std::byte> expected = memory;
                for (std::size_t b = 0; b < bytes; ++b) {
                    std::byte sum{};
                    for (const std::byte* source : sources) sum ^= source[b];
                    expected[static_cast<std::size_t>(base - memory.data()) + b] = sum;
                }
                engine->exclusive_or(sources.data(), count, base, bytes);
                EXPECT_TRUE(memory == expected) << engine->name << " " << count << " sources of " << bytes;
            }
        }
    }
}

}  // namespace
}  // namespace farhaul::erasure
