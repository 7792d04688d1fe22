#include "base/crc32c.hpp"

#include <cstring>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace farhaul {
namespace {

/// Bit by bit, from the definition.
std::uint32_t reference(std::span<const std::byte> bytes, std::uint32_t previous = 0) {
    std::uint32_t crc = ~previous;
    for (const std::byte byte : bytes) {
        crc ^= static_cast<std::uint32_t>(byte);
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed) {
    Random random(seed);
    std::vector<std::byte> bytes(size);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

TEST(Crc32c, KnownValues) {
    // RFC 3720, appendix B.4.
    EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8a9136aau);
    EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
    EXPECT_EQ(crc32c(std::as_bytes(std::span(std::string_view("123456789")))), 0xe3069283u);
    EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32c, EveryLengthAgreesWithTheDefinition) {
    const auto bytes = random_bytes(4200, 1);
    for (std::size_t size = 0; size <= bytes.size(); size += size < 1200 ? 1 : 37) {
        const auto part = std::span(bytes).first(size);
        const std::uint32_t expected = reference(part);
        ASSERT_EQ(detail::crc32c_isal(part, 0), expected) << size;
        if (detail::crc32c_has_folding()) {
            ASSERT_EQ(detail::crc32c_folding(part, 0), expected) << size;
        }
    }
}

TEST(Crc32c, ImplementationsAgreeOnRandomPieces) {
    if (!detail::crc32c_has_folding()) GTEST_SKIP() << "this CPU lacks VPCLMULQDQ";
    const auto bytes = random_bytes(200'000, 2);
    Random random(3);
    for (int round = 0; round < 4000; ++round) {
        const std::size_t at = random.below(64);
        const std::size_t size = random.below(round % 10 == 0 ? bytes.size() - 64 : 20'000);
        const auto previous = static_cast<std::uint32_t>(random());
        const auto part = std::span(bytes).subspan(at, size);
        ASSERT_EQ(detail::crc32c_folding(part, previous), detail::crc32c_isal(part, previous)) << at << " " << size;
    }
}

TEST(Crc32c, Continues) {
    const auto bytes = random_bytes(9000, 4);
    const std::uint32_t whole = crc32c(bytes);
    for (std::size_t cut = 0; cut <= bytes.size(); cut += 123)
        EXPECT_EQ(crc32c(std::span(bytes).subspan(cut), crc32c(std::span(bytes).first(cut))), whole);
}

TEST(Crc32c, SeesEveryFlippedBit) {
    auto bytes = random_bytes(1500, 5);
    const std::uint32_t whole = crc32c(bytes);
    for (std::size_t bit = 0; bit < bytes.size() * 8; bit += 7) {
        bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        EXPECT_NE(crc32c(bytes), whole) << bit;
        bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    }
}

}  // namespace
}  // namespace farhaul
