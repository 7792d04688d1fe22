#include "reliable/ack.hpp"

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace farhaul::reliable {
namespace {

TEST(Ack, RoundTrip) {
    Random random(3);
    for (int round = 0; round < 2000; ++round) {
        AckEncoder encoder(1200);
        const std::uint64_t below = random.below(1ull << 40);
        std::vector<std::uint64_t> ahead(random.below(4));
        for (auto& word : ahead) word = random() & random();
        const AckReport report{static_cast<std::uint32_t>(random()), static_cast<std::uint32_t>(random()),
                               static_cast<std::uint32_t>(random()), static_cast<std::uint32_t>(random()), below};
        encoder.begin(report, ahead);
        std::vector<AckSection> sections;
        std::vector<PacketRun> missing;
        std::uint64_t sequence = below;
        while (random.below(4) != 0 && encoder.begin_section(sequence, 0)) {
            AckSection section{
                sequence, static_cast<std::uint32_t>(0), 0, false, static_cast<std::uint32_t>(missing.size()), 0};
            std::uint32_t position = 0;
            for (std::uint64_t runs = random.below(20); runs > 0; --runs) {
                const PacketRun run{position + static_cast<std::uint32_t>(random.below(3000)),
                                    1 + static_cast<std::uint32_t>(random.below(70))};
                if (!encoder.add_missing(run)) break;
                missing.push_back(run);
                ++section.runs;
                position = run.end() + 1;
            }
            section.end = position + static_cast<std::uint32_t>(random.below(100));
            encoder.end_section(section.end);
            sections.push_back(section);
            sequence += 1 + random.below(5);
        }
        ASSERT_LE(encoder.datagram().size(), 1200u);
        Ack ack;
        ASSERT_TRUE(decode_ack(encoder.datagram(), ack));
        EXPECT_EQ(ack.completed_below, below);
        EXPECT_EQ(ack.event, report.event);
        EXPECT_EQ(ack.probe, report.probe);
        EXPECT_EQ(ack.rebuilt, report.rebuilt);
        EXPECT_EQ(ack.rebuilt_bursts, report.rebuilt_bursts);
        ASSERT_EQ(ack.sections.size(), sections.size());
        for (std::size_t i = 0; i < sections.size(); ++i) {
            EXPECT_EQ(ack.sections[i].sequence, sections[i].sequence);
            EXPECT_EQ(ack.sections[i].end, sections[i].end);
            ASSERT_EQ(ack.sections[i].runs, sections[i].runs);
        }
        ASSERT_EQ(ack.missing.size(), missing.size());
        for (std::size_t i = 0; i < missing.size(); ++i) {
            EXPECT_EQ(ack.missing[i].first, missing[i].first);
            EXPECT_EQ(ack.missing[i].count, missing[i].count);
        }
        for (std::size_t i = 0; i < ahead.size() * 64; ++i) {
            const bool set = i / 64 < ack.completed_ahead.size() && (ack.completed_ahead[i / 64] >> (i % 64) & 1);
            EXPECT_EQ(set, ahead[i / 64] >> (i % 64) & 1);
        }
    }
}

TEST(Ack, FullDatagramSaysSo) {
    AckEncoder encoder(AckEncoder::kMinDatagramBytes);
    encoder.begin({.event = 1, .probe = 1}, {});
    ASSERT_TRUE(encoder.begin_section(0, 0));
    std::uint32_t added = 0;
    while (encoder.add_missing({2 * added, 1})) ++added;
    EXPECT_GT(added, 100u);
    encoder.end_section(2 * added);
    EXPECT_LE(encoder.datagram().size(), AckEncoder::kMinDatagramBytes);
    EXPECT_FALSE(encoder.begin_section(1, 0));
}

TEST(Ack, EveryTruncationAndFlipIsRefusedOrHarmless) {
    AckEncoder encoder(1200);
    const std::uint64_t ahead[] = {5};
    encoder.begin({.event = 9, .probe = 4, .rebuilt = 3, .rebuilt_bursts = 2, .completed_below = 100}, ahead);
    ASSERT_TRUE(encoder.begin_section(101, 0));
    ASSERT_TRUE(encoder.add_missing({3, 2}));
    ASSERT_TRUE(encoder.add_missing({300, 64}));
    encoder.end_section(5000);
    std::vector<std::byte> good(encoder.datagram().begin(), encoder.datagram().end());
    Ack ack;
    for (std::size_t size = 0; size < good.size(); ++size) {
        // Cut behind the fixed part it is an ack without sections; anywhere else it must be refused.
        if (decode_ack(std::span(good).first(size), ack)) {
            EXPECT_TRUE(ack.sections.empty());
        }
    }
    Random random(5);
    for (int i = 0; i < 20'000; ++i) {
        auto bad = good;
        for (std::uint64_t n = 1 + random.below(4); n > 0; --n)
            bad[random.below(bad.size())] ^= static_cast<std::byte>(1u << random.below(8));
        if (!decode_ack(bad, ack)) continue;
        for (const auto& section : ack.sections) {
            ASSERT_LE(section.first, section.end);
            std::uint64_t position = section.first;
            for (const auto& run : ack.missing_of(section)) {
                ASSERT_GE(run.first, position);
                ASSERT_GT(run.count, 0u);
                position = static_cast<std::uint64_t>(run.first) + run.count;
                ASSERT_LE(position, section.end);
            }
        }
    }
}

TEST(Ack, ProbesAndAborts) {
    std::vector<std::byte> bytes;
    encode_probe(77, bytes);
    EXPECT_EQ(decode_probe(bytes), 77u);
    bytes.push_back(std::byte{0});
    EXPECT_EQ(decode_probe(bytes), 0u);
    Error error{ErrorCode::kInvalidArgument, "too long\x1b[2J"}, read;
    encode_abort(error, bytes);
    ASSERT_TRUE(decode_abort(bytes, read));
    EXPECT_EQ(read.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(read.message, "too long?[2J");  // nothing of the peer's reaches a terminal raw
}

}  // namespace
}  // namespace farhaul::reliable
