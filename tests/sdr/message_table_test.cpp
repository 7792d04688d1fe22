#include "sdr/message_table.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "fake_wire.hpp"

namespace farhaul::sdr {
namespace {

using testing::GuardedBuffer;
using testing::message_bytes;

std::unique_ptr<MessageTable> table_of(MessageTableConfig config) {
    auto table = MessageTable::create(config);
    EXPECT_TRUE(table);
    return std::move(*table);
}

struct Feeder {
    explicit Feeder(MessageTable& table_in) : table(table_in) {}
    /// Packet `index` of message `sequence`, whose bytes are `bytes`.
    Arrival packet(std::uint64_t sequence, const std::vector<std::byte>& bytes, std::uint32_t index,
                   std::uint32_t user = 0) const {
        const auto& layout = table.config().layout;
        const std::uint64_t offset = static_cast<std::uint64_t>(index) * table.config().payload_bytes;
        const auto length =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(table.config().payload_bytes, bytes.size() - offset));
        return {bytes.data() + offset, length,
                layout.encode(static_cast<std::uint32_t>(sequence % layout.message_ids()), index,
                              layout.fragment_of(user, index)),
                static_cast<std::uint32_t>(sequence / layout.message_ids())};
    }
    void give(std::vector<Arrival> batch) {
        std::array<MessageSlot*, 8> slots{};
        table.arrivals<false>(batch, counters, slots, touched);
    }
    MessageTable& table;
    ArrivalCounters counters;
    std::size_t touched = 0;
};

TEST(MessageTable, RejectsWrongConfiguration) {
    EXPECT_FALSE(MessageTable::create({.layout = {10, 18, 5}}));
    EXPECT_FALSE(MessageTable::create({.layout = {10, 20, 4}}));
    EXPECT_FALSE(MessageTable::create({.payload_bytes = 0}));
    EXPECT_FALSE(MessageTable::create({.packets_per_chunk = 0}));
    EXPECT_FALSE(MessageTable::create({.packets_per_chunk = 65}));
    EXPECT_FALSE(MessageTable::create({.generation_bits = 0}));
    EXPECT_FALSE(MessageTable::create({.generation_bits = 33}));
}

TEST(MessageTable, ChunkOfIsExactDivision) {
    for (std::uint32_t d = 1; d <= 64; ++d) {
        auto table = table_of({.layout = {1, 30, 1}, .payload_bytes = 1, .packets_per_chunk = d});
        const std::uint32_t top = (1u << 30) - 1;
        // Every boundary is where a wrong multiplier shows; all small ones, a lattice through the rest, and the end.
        for (std::uint32_t n = 0; n < 5000; ++n) ASSERT_EQ(table->chunk_of(n), n / d);
        for (std::uint32_t q = 0; q < top / d; q += 9973) {
            ASSERT_EQ(table->chunk_of(q * d), q);
            ASSERT_EQ(table->chunk_of(q * d + d - 1), q);
        }
        for (std::uint32_t n = top - 5000; n <= top; ++n) ASSERT_EQ(table->chunk_of(n), n / d) << d;
    }
}

TEST(MessageTable, EveryTailLengthOfEveryChunkSize) {
    for (const std::uint32_t payload : {1u, 3u, 64u})
        for (const std::uint32_t per_chunk : {1u, 2u, 3u, 5u, 16u, 63u, 64u})
            for (std::uint64_t length = 0; length <= 65 * std::min<std::uint64_t>(payload, 4) + 3; ++length) {
                auto table = table_of({.layout = {2, 22, 8}, .payload_bytes = payload, .packets_per_chunk = per_chunk});
                const auto bytes = message_bytes(7, length);
                GuardedBuffer buffer(length);
                auto slot = table->open(5, buffer.data(), length);
                ASSERT_TRUE(slot);
                Feeder feeder(*table);
                const auto packets = static_cast<std::uint32_t>((length + payload - 1) / payload);
                ASSERT_EQ((*slot)->packets(), packets);
                ASSERT_EQ((*slot)->chunks(), (packets + per_chunk - 1) / per_chunk);
                ASSERT_EQ((*slot)->complete(), length == 0);
                std::vector<Arrival> batch;
                for (std::uint32_t i = packets; i-- > 0;) batch.push_back(feeder.packet(5, bytes, i));
                feeder.give(batch);
                ASSERT_TRUE((*slot)->complete()) << payload << " " << per_chunk << " " << length;
                ASSERT_EQ((*slot)->next_incomplete_chunk(0), (*slot)->chunks());
                ASSERT_EQ(feeder.counters.accepted, packets);
                ASSERT_EQ((*slot)->packet_horizon(), packets);
                ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), buffer.data()));
                ASSERT_TRUE(buffer.guards_intact());
                std::uint64_t in_chunks = 0;
                for (std::uint32_t c = 0; c < (*slot)->chunks(); ++c) in_chunks += (*slot)->packets_in_chunk(c);
                ASSERT_EQ(in_chunks, packets);
                // Bits past the end are zero.
                const std::uint32_t chunks = (*slot)->chunks();
                for (std::uint32_t bit = chunks; bit < (chunks + 7) / 8 * 8; ++bit)
                    ASSERT_EQ((*slot)->chunk_bitmap()[bit / 8] >> (bit % 8) & 1, 0);
            }
}

TEST(MessageTable, DuplicatesDoNotRewritePayload) {
    auto table = table_of({.layout = {2, 22, 8}, .payload_bytes = 8, .packets_per_chunk = 4});
    const auto bytes = message_bytes(1, 40);
    const std::vector<std::byte> other(40, std::byte{0x55});
    GuardedBuffer buffer(40);
    ASSERT_TRUE(table->open(0, buffer.data(), 40));
    Feeder feeder(*table);
    feeder.give({feeder.packet(0, bytes, 1), feeder.packet(0, other, 1), feeder.packet(0, bytes, 2)});
    feeder.give({feeder.packet(0, other, 2), feeder.packet(0, bytes, 4)});
    feeder.give({feeder.packet(0, other, 4)});
    EXPECT_EQ(feeder.counters.accepted, 3u);
    EXPECT_EQ(feeder.counters.duplicate, 3u);
    EXPECT_TRUE(std::equal(bytes.begin() + 8, bytes.begin() + 24, buffer.data() + 8));
    EXPECT_TRUE(std::equal(bytes.begin() + 32, bytes.end(), buffer.data() + 32));
}

TEST(MessageTable, WrongSizesAndBoundsAreCountedAndTouchNothing) {
    auto table = table_of({.layout = {2, 22, 8}, .payload_bytes = 16, .packets_per_chunk = 4});
    GuardedBuffer buffer(70);  // 4 full packets and 6 bytes
    auto slot = table->open(0, buffer.data(), 70);
    ASSERT_TRUE(slot);
    ASSERT_TRUE((*slot)->immediate(nullptr) == false);
    ASSERT_TRUE(table->set_length(**slot, 70));
    const std::vector<std::byte> bytes(200, std::byte{1});
    Feeder feeder(*table);
    const auto packet = [&](std::uint32_t index, std::uint32_t length) {
        return Arrival{bytes.data(), length, table->config().layout.encode(0, index, 0), 0};
    };
    feeder.give({packet(0, 17), packet(0, 15), packet(0, 0), packet(4, 16), packet(4, 7), packet(4, 5), packet(4, 0),
                 packet(5, 6), packet(5, 16), packet((1u << 22) - 1, 16), packet(3, 100), packet(0, ~0u)});
    EXPECT_EQ(feeder.counters.out_of_bounds, 12u);
    EXPECT_EQ(feeder.counters.accepted, 0u);
    EXPECT_TRUE(buffer.untouched());
    EXPECT_EQ((*slot)->packet_horizon(), 0u);
    for (std::uint32_t c = 0; c < (*slot)->chunks(); ++c) EXPECT_EQ((*slot)->chunk_packets(c), 0u);
    feeder.give({packet(4, 6)});
    EXPECT_TRUE((*slot)->chunk_complete(1));
    EXPECT_TRUE(buffer.guards_intact());
}

TEST(MessageTable, ShortMiddlePacketCountsOnlyWhenTheMessageEndsThere) {
    for (const bool ends_there : {true, false})
        for (const bool tail_first : {true, false}) {
            auto table = table_of({.layout = {2, 22, 8}, .payload_bytes = 16, .packets_per_chunk = 4});
            const std::uint64_t length = ends_there ? 5 * 16 + 3 : 7 * 16;
            const auto bytes = message_bytes(3, 5 * 16 + 3);
            GuardedBuffer buffer(160);
            auto slot = table->open(0, buffer.data(), 160);
            ASSERT_TRUE(slot);
            Feeder feeder(*table);
            const Arrival tail = feeder.packet(0, bytes, 5);
            const auto body = [&] {
                for (std::uint32_t i = 0; i < 5; ++i) feeder.give({feeder.packet(0, bytes, i)});
            };
            if (!tail_first) body();
            feeder.give({tail});
            feeder.give({tail});
            EXPECT_EQ((*slot)->chunk_packets(1) & 2, 0u) << "no bit before the length is known";
            if (tail_first) body();
            EXPECT_FALSE((*slot)->complete());
            ASSERT_TRUE(table->set_length(**slot, length));
            EXPECT_EQ((*slot)->complete(), ends_there);
            EXPECT_EQ((*slot)->chunk_packets(1), ends_there ? 3u : 1u);
            if (ends_there) {
                EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), buffer.data()));
            } else {
                // The real packet 5 comes after all, and counts.
                const auto real = message_bytes(3, length);
                feeder.give({feeder.packet(0, real, 5), feeder.packet(0, real, 6)});
                EXPECT_TRUE((*slot)->complete());
                EXPECT_TRUE(std::equal(real.begin() + 80, real.end(), buffer.data() + 80));
            }
            EXPECT_TRUE(buffer.guards_intact());
        }
}

TEST(MessageTable, SetLengthCompletesTheLastChunkAndRefusesContradictions) {
    auto table = table_of({.layout = {2, 22, 8}, .payload_bytes = 10, .packets_per_chunk = 4});
    auto slot = table->open(0, nullptr, 200);
    ASSERT_TRUE(slot);
    Feeder feeder(*table);
    const std::vector<std::byte> bytes(200);
    for (std::uint32_t i = 0; i < 6; ++i) feeder.give({feeder.packet(0, bytes, i)});
    EXPECT_EQ((*slot)->chunks_complete(), 1u);
    EXPECT_EQ(table->set_length(**slot, 201).error().code, ErrorCode::kProtocol);
    ASSERT_TRUE(table->set_length(**slot, 60));
    EXPECT_TRUE((*slot)->complete());
    EXPECT_EQ((*slot)->chunks(), 2u);
    EXPECT_TRUE(table->set_length(**slot, 60));
    EXPECT_EQ(table->set_length(**slot, 50).error().code, ErrorCode::kProtocol);
    table->close(**slot);
    EXPECT_EQ(table->set_length(**slot, 60).error().code, ErrorCode::kClosed);

    // Packets beyond the announced end were taken before: they do not count any more.
    slot = table->open(1, nullptr, 200);
    for (std::uint32_t i = 8; i < 20; ++i) feeder.give({feeder.packet(1, bytes, i)});
    EXPECT_EQ((*slot)->chunks_complete(), 3u);
    ASSERT_TRUE(table->set_length(**slot, 90));
    EXPECT_EQ((*slot)->chunks_complete(), 1u);
    EXPECT_FALSE((*slot)->complete());
    EXPECT_EQ((*slot)->packet_horizon(), 9u);
    EXPECT_EQ((*slot)->chunk_bitmap()[0], 4);
    for (std::uint32_t i = 0; i < 8; ++i) feeder.give({feeder.packet(1, bytes, i)});
    EXPECT_TRUE((*slot)->complete());

    slot = table->open(2, nullptr, 200);
    ASSERT_TRUE(table->set_length(**slot, 0));
    EXPECT_TRUE((*slot)->complete());
    EXPECT_EQ((*slot)->packets(), 0u);
}

TEST(MessageTable, LatePacketsOfEarlierTurnsAreSwallowed) {
    constexpr std::uint32_t kIds = 4;
    auto table = table_of({.layout = {2, 22, 8}, .payload_bytes = 8, .packets_per_chunk = 2});
    Feeder feeder(*table);
    std::vector<GuardedBuffer> buffers;
    for (int i = 0; i < 40; ++i) buffers.emplace_back(32);
    for (std::uint64_t n = 0; n < 40; ++n) {
        const auto bytes = message_bytes(n, 32);
        auto slot = table->open(n, buffers[n].data(), 32);
        ASSERT_TRUE(slot);
        EXPECT_EQ(table->open(n + kIds, nullptr, 1).error().code, ErrorCode::kRetry);
        // From k turns of the id space ago, and from turns that have not come.
        std::uint64_t expected = feeder.counters.stale;
        for (std::uint64_t other = n % kIds; other < 60; other += kIds) {
            if (other == n) continue;
            feeder.give({feeder.packet(other, message_bytes(other, 32), 0)});
            ++expected;
        }
        EXPECT_EQ(feeder.counters.stale, expected);
        EXPECT_TRUE(buffers[n].untouched());
        feeder.give({feeder.packet(n, bytes, 0), feeder.packet(n, bytes, 2)});
        EXPECT_EQ((*slot)->chunk_packets(0), 1u);
        table->close(**slot);
        feeder.give({feeder.packet(n, bytes, 1), feeder.packet(n, bytes, 3)});
        EXPECT_EQ((*slot)->chunk_packets(0), 1u) << "the bitmap stays as it was";
        EXPECT_EQ(buffers[n].data()[8], GuardedBuffer::kFill);
    }
}

TEST(MessageTable, FewGenerationBitsAreMasked) {
    auto table = table_of({.layout = {2, 22, 8}, .payload_bytes = 8, .packets_per_chunk = 2, .generation_bits = 2});
    Feeder feeder(*table);
    auto slot = table->open(4 * 7, nullptr, 8);  // generation 7 = 3 on the wire
    ASSERT_TRUE(slot);
    const auto bytes = message_bytes(0, 8);
    Arrival arrival = feeder.packet(0, bytes, 0);
    arrival.generation = 2;
    feeder.give({arrival});
    EXPECT_EQ(feeder.counters.stale, 1u);
    arrival.generation = 3;
    feeder.give({arrival});
    EXPECT_TRUE((*slot)->complete());
}

TEST(MessageTable, InOrderSlotSwallowsWhatIsNotNext) {
    auto table = table_of({.layout = {2, 22, 8}, .payload_bytes = 8, .packets_per_chunk = 2});
    const auto bytes = message_bytes(0, 36);
    GuardedBuffer buffer(36);
    auto slot = table->open(0, buffer.data(), 36, {.in_order = true});
    ASSERT_TRUE(slot);
    Feeder feeder(*table);
    feeder.give({feeder.packet(0, bytes, 0), feeder.packet(0, bytes, 2), feeder.packet(0, bytes, 3)});
    EXPECT_EQ(feeder.touched, 1u);
    EXPECT_EQ((*slot)->next_in_order(), 1u);
    EXPECT_EQ((*slot)->swallowed_out_of_order(), 2u);
    EXPECT_EQ(feeder.counters.out_of_order, 2u);
    EXPECT_EQ(buffer.data()[16], GuardedBuffer::kFill);
    for (std::uint32_t i = 0; i < 5; ++i) feeder.give({feeder.packet(0, bytes, i)});
    EXPECT_EQ(feeder.counters.duplicate, 1u);
    EXPECT_TRUE((*slot)->complete());
    EXPECT_EQ((*slot)->next_in_order(), 5u);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), buffer.data()));
}

TEST(MessageTable, ImmediateIsRebuiltFromAnyOrderOfFragments) {
    for (const ImmediateLayout layout : {ImmediateLayout{10, 18, 4}, ImmediateLayout{8, 22, 2},
                                         ImmediateLayout{4, 20, 8}, ImmediateLayout{1, 30, 1}}) {
        auto table = table_of({.layout = layout, .payload_bytes = 4, .packets_per_chunk = 16});
        const std::uint64_t length = 4ull * 3 * layout.fragments();
        const auto bytes = message_bytes(0, length);
        auto slot = table->open(0, nullptr, length);
        ASSERT_TRUE(slot);
        Feeder feeder(*table);
        // Fragment f from the third, first or second packet that carries it.
        std::uint32_t value = 0;
        for (std::uint32_t f = 0; f < layout.fragments(); ++f) {
            EXPECT_FALSE((*slot)->immediate(&value));
            feeder.give(
                {feeder.packet(0, bytes, (f + 2) % 3 * layout.fragments() + (layout.fragments() - 1 - f), 0xc0ffee91)});
        }
        ASSERT_TRUE((*slot)->immediate(&value));
        EXPECT_EQ(value, 0xc0ffee91u);
    }
}

TEST(MessageTable, TouchedNamesEachSlotOnce) {
    auto table = table_of({.layout = {3, 21, 8}, .payload_bytes = 4, .packets_per_chunk = 4});
    const auto bytes = message_bytes(0, 64);
    for (std::uint64_t n = 0; n < 4; ++n) ASSERT_TRUE(table->open(n, nullptr, 64));
    Feeder feeder(*table);
    std::vector<Arrival> batch;
    for (std::uint32_t i = 0; i < 16; ++i)
        for (std::uint64_t n = 0; n < 4; ++n) batch.push_back(feeder.packet(n, bytes, i));
    feeder.give(batch);
    EXPECT_EQ(feeder.touched, 4u);
    EXPECT_EQ(feeder.counters.accepted, 64u);
    // No room to report: still taken.
    std::size_t touched = 9;
    table->close(*table->find(0));
    ASSERT_TRUE(table->open(8, nullptr, 64));
    const Arrival one = feeder.packet(8, bytes, 0);
    table->arrivals<false>({&one, 1}, feeder.counters, {}, touched);
    EXPECT_EQ(touched, 0u);
    EXPECT_EQ(table->find(8)->chunk_packets(0), 1u);
}

TEST(MessageTable, TooLongMessageIsRefused) {
    auto table = table_of({.layout = {16, 8, 8}, .payload_bytes = 4, .packets_per_chunk = 4});
    EXPECT_TRUE(table->open(0, nullptr, 1024));
    EXPECT_EQ(table->open(1, nullptr, 1025).error().code, ErrorCode::kInvalidArgument);
}

/// The plain version and the atomic one are the same function: any batch, cut anywhere, against a model of one packet
/// at a time.
TEST(MessageTable, AgreesWithAModelOnRandomBatches) {
    const testing::Seeds seeds(1500);
    for (std::uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
        SCOPED_TRACE(fmt::format("seed {0}; replay with: FARHAUL_SEED={0}", seed));
        Random random(seed);
        const auto per_chunk = static_cast<std::uint32_t>(random.between(1, 64));
        const auto payload = static_cast<std::uint32_t>(random.between(1, 9));
        const MessageTableConfig config{.layout = {2, 22, 8},
                                        .payload_bytes = payload,
                                        .packets_per_chunk = per_chunk,
                                        .claim_before_copy = seed % 3 == 0};
        auto table = table_of(config);
        const bool atomic = random.chance(0.5);
        struct Model {
            std::uint64_t sequence;
            std::vector<std::byte> bytes;
            GuardedBuffer buffer;
            std::vector<bool> in;
            MessageSlot* slot;
        };
        std::vector<Model> models;
        for (std::uint64_t n = 4; n < 7; ++n) {
            const std::uint64_t length = random.below(150 * payload);
            models.push_back({n, message_bytes(n, length), GuardedBuffer(length),
                              std::vector<bool>((length + payload - 1) / payload), nullptr});
            auto slot = table->open(n, models.back().buffer.data(), length);
            ASSERT_TRUE(slot);
            models.back().slot = *slot;
        }
        Feeder feeder(*table);
        const std::vector<std::byte> junk(64, std::byte{0xaa});
        std::uint64_t given = 0, expected = 0;
        for (int round = 0; round < 12; ++round) {
            std::vector<Arrival> batch;
            const std::uint64_t size = random.below(80);
            Model* model = &models[random.below(3)];
            std::uint32_t next = 0;
            for (std::uint64_t i = 0; i < size; ++i) {
                if (random.chance(0.1)) model = &models[random.below(3)];
                if (random.chance(0.1)) next = static_cast<std::uint32_t>(random.below(160));
                Arrival arrival{junk.data(), payload,
                                config.layout.encode(static_cast<std::uint32_t>(model->sequence % 4), next, 0), 1};
                if (next < model->in.size()) {
                    arrival = feeder.packet(model->sequence, model->bytes, next);
                    if (random.chance(0.05)) {
                        arrival.payload = junk.data();
                        arrival.generation = static_cast<std::uint32_t>(random.below(3)) == 1 ? 0 : 2;
                    } else {
                        if (!model->in[next]) ++expected;
                        model->in[next] = true;
                    }
                } else if (arrival.length == payload - 1 && next == model->in.size()) {
                    arrival.length = payload + 1;
                }
                batch.push_back(arrival);
                ++next;
            }
            given += size;
            std::array<MessageSlot*, 8> slots{};
            if (atomic)
                table->arrivals<true>(batch, feeder.counters, slots, feeder.touched);
            else
                table->arrivals<false>(batch, feeder.counters, slots, feeder.touched);
            for (const Model& m : models) {
                std::uint32_t complete = 0, horizon = 0;
                for (std::uint32_t c = 0; c < m.slot->chunks(); ++c) {
                    std::uint64_t bits = 0;
                    for (std::uint32_t i = 0; i < m.slot->packets_in_chunk(c); ++i)
                        if (m.in[c * per_chunk + i]) bits |= 1ull << i, horizon = c * per_chunk + i + 1;
                    ASSERT_EQ(m.slot->chunk_packets(c), bits);
                    const bool full = static_cast<std::uint32_t>(std::popcount(bits)) == m.slot->packets_in_chunk(c);
                    ASSERT_EQ(m.slot->chunk_complete(c), full);
                    complete += full;
                }
                ASSERT_EQ(m.slot->chunks_complete(), complete);
                ASSERT_EQ(m.slot->packet_horizon(), horizon);
                ASSERT_TRUE(m.buffer.guards_intact());
                for (std::uint64_t i = 0; i < m.bytes.size(); ++i)
                    ASSERT_EQ(m.buffer.data()[i], m.in[i / payload] ? m.bytes[i] : GuardedBuffer::kFill);
            }
        }
        const ArrivalCounters& c = feeder.counters;
        ASSERT_EQ(c.accepted, expected);
        ASSERT_EQ(c.accepted + c.duplicate + c.stale + c.out_of_bounds + c.out_of_order, given);
    }
}

}  // namespace
}  // namespace farhaul::sdr
