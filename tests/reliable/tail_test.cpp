// The codes of `auto`: layout, plans, the estimate they follow, and repair with exact payload.
#include <gtest/gtest.h>

#include <set>

#include "pair.hpp"
#include "reliable/loss_estimate.hpp"
#include "reliable/tail_code.hpp"
#include "wire/sim/sim_executor.hpp"
#include "wire/udp/worker_pool.hpp"

namespace farhaul::reliable {
namespace {

using testing::Guarded;
using testing::Pair;
using testing::PairConfig;
using testing::pattern;

TEST(TailLayout, EveryPacketHasOnePlace) {
    Random random(1);
    for (int round = 0; round < 300; ++round) {
        const auto packets = static_cast<std::uint32_t>(random.between(1, random.below(4) == 0 ? 60'000 : 600));
        const auto coded = static_cast<std::uint32_t>(random.between(1, packets));
        const auto layout = TailLayout::make(packets, coded, static_cast<std::uint32_t>(random.between(1, 1u << 17)));
        ASSERT_EQ(layout.coded, coded);
        std::vector<std::uint32_t> filled(layout.blocks, 0);
        for (std::uint32_t packet = layout.first(); packet < packets; ++packet) {
            const std::uint32_t block = layout.block_of(packet), position = layout.position_of(packet);
            ASSERT_LT(block, layout.blocks);
            ASSERT_LT(position, layout.size_of(block));
            ASSERT_EQ(layout.packet_at(block, position), packet);
            ++filled[block];
        }
        for (std::uint32_t block = 0; block < layout.blocks; ++block) {
            ASSERT_EQ(filled[block], layout.size_of(block));
            ASSERT_LE(filled[block], layout.k);
            ASSERT_LE(layout.size_of(block), layout.largest());
        }
        ASSERT_LE(layout.k + layout.most_rows, 255u);
        if (layout.groups == 0) continue;
        ASSERT_EQ(layout.group_end(layout.groups - 1), layout.blocks);
        for (std::uint32_t position : {0u, layout.largest() / 2, layout.largest() - 1}) {
            std::uint32_t having = 0, counted = 0;
            for (std::uint32_t block = 0; block < layout.blocks; ++block) having += position < layout.size_of(block);
            for (std::uint32_t group = 0; group < layout.groups; ++group)
                counted += layout.column_blocks(group, position);
            ASSERT_EQ(having, counted);
        }
    }
}

TEST(TailLayout, ParityFitsTheRoomItIsGiven) {
    for (std::uint32_t packets : {1u, 2u, 31u, 32u, 33u, 227u, 228u, 229u, 3000u, 4000u, 100'000u, 262'144u})
        for (std::uint32_t most : {1u, 5u, 16u, 100u, 4096u, 131'072u}) {
            const auto layout = TailLayout::make(packets, packets, most);
            EXPECT_LE(layout.parity_packets(), most) << packets;
        }
    // A gigabyte of 4 KiB packets has all that the code can give.
    const auto large = TailLayout::make(262'144, 262'144, 131'072);
    EXPECT_EQ(large.k, 228u);
    EXPECT_EQ(large.most_rows, 27u);
    EXPECT_EQ(large.groups, 71u);
}

TEST(TailPlanner, ACautiousSenderSpendsWhatItMay) {
    const LossEstimate nothing;
    TailPlanner planner;
    for (std::uint32_t packets : {32u, 64u, 256u, 500u, 2048u, 4096u, 10'000u, 32'768u, 262'144u}) {
        const auto layout = TailLayout::make(packets, packets, 131'072);
        const auto plan = planner.plan(layout, nothing);
        const double share = plan.packets(layout) / static_cast<double>(packets);
        EXPECT_LE(share, packets >= 256 ? 0.1 : 0.4) << packets;
        EXPECT_GE(share, packets >= 256 ? 0.08 : 0.2) << packets;
        EXPECT_GE(plan.rows, 2u);
    }
    // One packet goes three times.
    const auto one = TailLayout::make(1, 1, 100);
    EXPECT_EQ(planner.plan(one, nothing).packets(one), 2u);
}

TEST(TailPlanner, ParityFollowsTheLoss) {
    const auto layout = TailLayout::make(32'768, 32'768, 131'072);
    TailPlanner planner;
    double before = 0;
    for (const double loss : {0.0, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2}) {
        LossEstimate estimate;
        for (int i = 0; i < 100; ++i) {
            estimate.add_sent(100'000);
            estimate.add_lost(static_cast<std::uint64_t>(loss * 100'000), static_cast<std::uint64_t>(loss * 100'000));
        }
        ASSERT_TRUE(estimate.known());
        EXPECT_GE(estimate.upper(), loss);
        EXPECT_LE(estimate.upper(), loss * 1.5 + 2e-4);
        const double share = planner.plan(layout, estimate).packets(layout) / 32'768.0;
        EXPECT_GE(share, std::max(before, loss));
        before = share;
    }
    EXPECT_LT(before, 0.13);
    // A clean path costs little.
    LossEstimate clean;
    for (int i = 0; i < 100; ++i) clean.add_sent(100'000);
    EXPECT_LT(planner.plan(layout, clean).packets(layout) / 32'768.0, 0.025);
}

TEST(LossEstimate, NoticesAJumpWithinAMessage) {
    LossEstimate estimate;
    for (int i = 0; i < 300; ++i) {
        estimate.add_sent(32'768);
        if (i % 3 == 0) estimate.add_lost(1, 1);
    }
    EXPECT_LT(estimate.upper(), 3e-4);
    estimate.add_sent(32'768);
    estimate.add_lost(328, 326);
    EXPECT_GT(estimate.upper(), 5e-3);
    EXPECT_EQ(estimate.burst(), 1);
    for (int i = 0; i < 300; ++i) estimate.add_sent(32'768);
    EXPECT_LT(estimate.upper(), 3e-4);
}

TEST(LossEstimate, TellsBurstsFromSingleLosses) {
    LossEstimate bursts;
    for (int i = 0; i < 20; ++i) {
        bursts.add_sent(10'000);
        bursts.add_lost(100, 5);
    }
    EXPECT_NEAR(bursts.burst(), 20, 1);
    bursts.take_back_lost(1'000);
    EXPECT_NEAR(bursts.burst(), 20, 1);
}

TEST(TailPlanner, RepairsAreRepeatedAsTheLossAsks) {
    LossEstimate bad, good;
    for (int i = 0; i < 50; ++i) {
        bad.add_sent(10'000);
        bad.add_lost(100, 99);
        good.add_sent(1'000'000);
    }
    EXPECT_EQ(TailPlanner::copies(1, good), 1u);
    EXPECT_EQ(TailPlanner::copies(3000, bad), 4u);
    EXPECT_LT(TailPlanner::copies(1, bad), 4u);
}

void send(Pair& pair, std::size_t length, std::size_t posted, std::uint64_t seed, int writes = 1) {
    for (int i = 0; i < writes; ++i) {
        const auto data = pattern(length, seed + static_cast<std::uint64_t>(i));
        Guarded buffer(posted);
        int done = 0;
        const auto count = [&](auto result) {
            ASSERT_TRUE(result) << result.error().message;
            ++done;
        };
        ASSERT_TRUE(pair.b->receive(buffer.data(), buffer.size(), count));
        ASSERT_TRUE(pair.a->write(data.data(), data.size(), count));
        ASSERT_TRUE(
            pair.loop.run_while([&] { return done < 2; }, pair.loop.now() + Duration::from_milliseconds(10'000)));
        ASSERT_TRUE(buffer.holds(data));
        ASSERT_TRUE(buffer.guards_intact());
        ASSERT_TRUE(buffer.untouched_from(length));
    }
}

// 36 blocks in two groups: rows alone are too few for the worst of them.
TEST(Auto, RowsAndColumnsTogetherRepairWithoutAsking) {
    int unasked = 0;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        PairConfig config = PairConfig::typical(Scheme::kAuto);
        config.seed = seed;
        config.queue_pair.payload_bytes = 64;
        config.queue_pair.max_message_bytes = 64 * 8200;
        config.link.limits.max_payload_bytes = 64;
        config.link.forward.loss.probability = 0.045;
        Pair pair(config);
        send(pair, 64 * 8200 - 17, 64 * 8200 - 17, seed);
        EXPECT_GT(pair.a->counters().packets_rebuilt, 250u);
        unasked += pair.a->counters().packets_resent == 0;
    }
    EXPECT_GE(unasked, 8);
}

TEST(Auto, AMessageShorterThanItsBufferIsRepairedToo) {
    int unasked = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        PairConfig config = PairConfig::typical(Scheme::kAuto);
        config.seed = seed;
        config.link.forward.loss.probability = 0.03;
        Pair pair(config);
        send(pair, 61'001, 99'000, seed);
        unasked += pair.a->counters().packets_resent == 0;
    }
    EXPECT_GE(unasked, 16);
}

// A long Write over a line whose rate is known: only its end is coded, the rest is asked for again.
TEST(Auto, OnlyTheTailIsCoded) {
    PairConfig config = PairConfig::typical(Scheme::kAuto).loss(0.01);
    config.connection.line_rate = config.link.forward.rate;  // about 2,800 packets in flight
    config.queue_pair.max_message_bytes = 8'000'000;
    Pair pair(config);
    send(pair, 30'000'000, 30'000'000, 3);
    const auto counters = pair.a->counters();
    EXPECT_GT(counters.packets_resent, 200u);
    EXPECT_GT(counters.packets_rebuilt, 5u);
    EXPECT_LT(counters.packets_rebuilt, 80u);
    EXPECT_LT(counters.packets_parity, 400u);
    EXPECT_GT(counters.packets_parity, 50u);
}

TEST(Auto, ParityWaitsForItsEncoderAndDataDoesNot) {
    PairConfig config = PairConfig::typical(Scheme::kAuto);
    config.link.hook = [](wire::SimInFlight& packet) {
        const sdr::ImmediateLayout layout;
        if (!packet.datagram && layout.message_id(packet.immediate) % 2 == 0 && layout.packet(packet.immediate) == 7)
            packet.drop = true;
    };
    wire::SimLoop loop;
    wire::SimExecutor slow(loop, 1e8, 1);  // the first rows of 100,000 bytes take 1 ms
    config.connection.executor = &slow;
    Pair pair(config, loop);
    const TimePoint begin = loop.now();
    send(pair, 100'000, 100'000, 1);
    // Clear-to-send 1 ms, encoding 1 ms, half a round trip each way.
    EXPECT_GT(loop.now() - begin, Duration::from_microseconds(3900));
    EXPECT_LT(loop.now() - begin, Duration::from_microseconds(4500));
    EXPECT_EQ(pair.a->counters().packets_rebuilt, 1u);
    EXPECT_EQ(pair.a->counters().packets_resent, 0u);
}

// New data goes first. A tail whose parity it holds up midway is then repaired by asking.
TEST(Auto, ParityThatNewDataHoldsUpDoesNotHoldUpTheRepair) {
    PairConfig config = PairConfig::typical(Scheme::kAuto);
    config.link.forward.rate = BitRate::from_bits_per_second(100'000'000);
    config.link.forward.delay = config.link.backward.delay = Duration::from_milliseconds(20);
    config.queue_pair.initial_rtt = config.connection.initial_rtt = Duration::from_milliseconds(40);
    config.queue_pair.payload_bytes = 64;
    config.queue_pair.max_message_bytes = 64 * 8200;
    config.queue_pair.max_messages = 200;
    config.link.limits.max_payload_bytes = 64;
    // Of the first message every third of the last thousand is lost once: more than the first rows repair.
    auto seen = std::make_shared<std::set<std::uint32_t>>();
    config.link.hook = [seen](wire::SimInFlight& packet) {
        const sdr::ImmediateLayout layout;
        const std::uint32_t index = layout.packet(packet.immediate);
        if (packet.datagram || layout.message_id(packet.immediate) != 0 || index < 7200 || index % 3 != 0) return;
        packet.drop = seen->insert(index).second;
    };
    Pair pair(config);
    const auto first = pattern(64 * 8200, 1), later = pattern(30'000, 2);
    Guarded buffer(first.size());
    std::vector<std::unique_ptr<Guarded>> more;
    TimePoint first_done = TimePoint::never();
    int done = 0;
    ASSERT_TRUE(pair.b->receive(buffer.data(), buffer.size(), [](auto result) { ASSERT_TRUE(result); }));
    for (int i = 0; i < 80; ++i) {
        more.push_back(std::make_unique<Guarded>(later.size()));
        ASSERT_TRUE(pair.b->receive(more.back()->data(), later.size(), [](auto result) { ASSERT_TRUE(result); }));
    }
    ASSERT_TRUE(pair.a->write(first.data(), first.size(), [&](Status status) {
        ASSERT_TRUE(status);
        first_done = pair.loop.now();
    }));
    // Until the first of its parity is out.
    ASSERT_TRUE(pair.loop.run_while([&] { return pair.a->counters().packets_parity < 64 + 64; }));
    const TimePoint begin = pair.loop.now();
    for (int i = 0; i < 80; ++i)
        ASSERT_TRUE(pair.a->write(later.data(), later.size(), [&](Status status) {
            ASSERT_TRUE(status);
            ++done;
        }));
    ASSERT_TRUE(pair.loop.run_while([&] { return done < 80 || first_done == TimePoint::never(); }));
    EXPECT_GT(pair.loop.now() - begin, Duration::from_milliseconds(150));  // the line was busy for so long
    EXPECT_LT(first_done - begin, Duration::from_milliseconds(120));
    EXPECT_TRUE(buffer.holds(first));
}

// Encoding on real threads while Writes end early and the connection goes away.
TEST(Auto, WritesMayEndWhileTheyAreEncoded) {
    std::mutex mutex;
    std::vector<std::function<void()>> posted;
    const auto run_posted = [&] {
        std::vector<std::function<void()>> functions;
        {
            const std::lock_guard lock(mutex);
            functions.swap(posted);
        }
        for (auto& function : functions) function();
    };
    wire::SimLoop loop;
    udp::WorkerPool pool(2, [&](std::function<void()> function) {
        const std::lock_guard lock(mutex);
        posted.push_back(std::move(function));
    });
    PairConfig config = PairConfig::typical(Scheme::kAuto).loss(0.01);
    config.connection.executor = &pool;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        config.seed = seed;
        Pair pair(config, loop);
        auto data = std::make_unique<std::vector<std::byte>>(pattern(90'000, seed));
        Guarded buffer(90'000);
        bool written = false;
        ASSERT_TRUE(pair.b->receive(buffer.data(), buffer.size(), [](auto) {}));
        ASSERT_TRUE(pair.a->write(data->data(), data->size(), [&](Status status) { written = status.has_value(); }));
        for (int i = 0; i < 2000 && !written; ++i) {
            ASSERT_TRUE(loop.run_for(Duration::from_microseconds(20)));
            run_posted();
            if (seed % 4 == 0 && i == 60) break;  // the connection goes in the middle
        }
        if (seed % 4 != 0) {
            ASSERT_TRUE(written);
            ASSERT_TRUE(buffer.holds(*data));
        }
        if (written) data.reset();  // the buffer is the caller's again
    }
}

// Whatever is lost of the first transmission of a block of four and its two parity packets.
class EveryPattern : public ::testing::TestWithParam<Scheme> {};
INSTANTIATE_TEST_SUITE_P(Schemes, EveryPattern,
                         ::testing::Values(Scheme::kGoBackN, Scheme::kSelectiveRepeat, Scheme::kSelectiveRepeatNack,
                                           *parse_scheme("ec:4,2"), *parse_scheme("ec:4,2/chunk"),
                                           *parse_scheme("ec-xor:4,2"), Scheme::kAuto),
                         [](const auto& scheme) {
                             auto name = to_string(scheme.param);
                             for (char& c : name)
                                 if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                             return name;
                         });

TEST_P(EveryPattern, OfABlockOfFourAndTwo) {
    const bool chunks = GetParam().chunk_symbols;
    for (std::uint32_t lost = 0; lost < 64; ++lost) {
        PairConfig config = PairConfig::typical(GetParam());
        config.seed = lost + 1;
        config.queue_pair.packets_per_chunk = chunks ? 2 : 8;
        auto seen = std::make_shared<std::set<std::pair<std::uint32_t, std::uint32_t>>>();
        config.link.hook = [seen, lost, chunks](wire::SimInFlight& packet) {
            const sdr::ImmediateLayout layout;
            const std::uint32_t message = layout.message_id(packet.immediate), index = layout.packet(packet.immediate);
            if (packet.datagram || message > 1 || !seen->insert({message, index}).second) return;
            const std::uint32_t symbol = (chunks ? index / 2 : index) + message * 4;
            packet.drop = symbol < 6 && (lost >> symbol & 1) != 0;
        };
        Pair pair(config);
        const std::size_t length = (chunks ? 8000 : 4000) - lost % 3 * 400;
        send(pair, length, length, lost);
        const std::uint32_t data = lost & 15, parity = lost >> 4;
        const auto counters = pair.a->counters();
        if (GetParam().kind == Scheme::Kind::kErasure || GetParam().kind == Scheme::Kind::kAuto) {
            const bool enough = std::popcount(data) <= 2 - std::popcount(parity);
            EXPECT_EQ(counters.packets_resent == 0, enough || data == 0) << "losses " << lost;
        }
    }
}

}  // namespace
}  // namespace farhaul::reliable
