#include "reliable/connection.hpp"

#include <cstring>

#include <gtest/gtest.h>

#include "pair.hpp"

namespace farhaul::reliable {
namespace {

using testing::Guarded;
using testing::Pair;
using testing::PairConfig;
using testing::pattern;

class EveryScheme : public ::testing::TestWithParam<Scheme> {};
INSTANTIATE_TEST_SUITE_P(Schemes, EveryScheme,
                         ::testing::Values(Scheme::kGoBackN, Scheme::kSelectiveRepeat, Scheme::kSelectiveRepeatNack,
                                           *parse_scheme("ec:8,3"), *parse_scheme("ec-xor:8,4"),
                                           *parse_scheme("ec:4,2/chunk")),
                         [](const auto& scheme) {
                             auto name = to_string(scheme.param);
                             std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
                             return name;
                         });

// Writes `sizes` into buffers of `posted` bytes and checks every byte. Returns the virtual time that it took.
Duration transfer(Pair& pair, const std::vector<std::size_t>& sizes, const std::vector<std::size_t>& posted,
                  Duration limit) {
    std::vector<std::vector<std::byte>> data;
    std::vector<std::unique_ptr<Guarded>> buffers;
    std::size_t written = 0, received = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        data.push_back(pattern(sizes[i], i));
        buffers.push_back(std::make_unique<Guarded>(posted[i]));
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        auto id = pair.b->receive(buffers[i]->data(), posted[i], [&, i](Result<ReceiveResult> result) {
            ASSERT_TRUE(result) << result.error().message;
            EXPECT_EQ(result->length, sizes[i]);
            EXPECT_FALSE(result->early);
            ++received;
        });
        EXPECT_TRUE(id);
    }
    for (std::size_t i = 0; i < sizes.size(); ++i)
        EXPECT_TRUE(pair.a->write(data[i].data(), sizes[i], [&](Status status) {
            EXPECT_TRUE(status) << status.error().message;
            ++written;
        }));
    const TimePoint start = pair.loop.now();
    auto ran = pair.loop.run_while([&] { return written < sizes.size() || received < sizes.size(); }, start + limit);
    EXPECT_TRUE(ran) << ran.error().message << ": " << written << " written, " << received << " received of "
                     << sizes.size();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        EXPECT_TRUE(buffers[i]->holds(data[i])) << "write " << i;
        EXPECT_TRUE(buffers[i]->guards_intact()) << "write " << i;
        EXPECT_TRUE(buffers[i]->untouched_from(sizes[i])) << "write " << i;
    }
    return pair.loop.now() - start;
}

TEST_P(EveryScheme, CleanLinkTakesOneRoundTripAndResendsNothing) {
    Pair pair(PairConfig::typical(GetParam()));
    const Duration took = transfer(pair, {1'000'000}, {1'000'000}, Duration::from_milliseconds(1000));
    // 0.8 ms of injection and 2 ms of round trip; plus the clear-to-send's half a round trip, and one round trip per
    // turn of the slots.
    EXPECT_LT(took, Duration::from_milliseconds(10));
    EXPECT_EQ(pair.a->counters().packets_first, 1000u);
    EXPECT_EQ(pair.a->counters().packets_resent, 0u);
    EXPECT_EQ(pair.a->counters().timeouts, 0u);
}

TEST_P(EveryScheme, EverySizeAroundEveryUnit) {
    for (std::size_t unit : {1000u, 8000u, 100'000u}) {
        std::vector<std::size_t> sizes;
        for (std::size_t i = 0; i <= 65; ++i) sizes.push_back(unit - 32 + i);
        Pair pair(PairConfig::typical(GetParam()).loss(0.01));
        transfer(pair, sizes, sizes, Duration::from_milliseconds(60'000));
    }
    std::vector<std::size_t> tiny;
    for (std::size_t i = 0; i <= 65; ++i) tiny.push_back(i);
    Pair pair(PairConfig::typical(GetParam()).loss(0.01));
    transfer(pair, tiny, tiny, Duration::from_milliseconds(60'000));
}

TEST_P(EveryScheme, ShorterThanPosted) {
    Pair pair(PairConfig::typical(GetParam()).loss(0.02));
    transfer(pair, {0, 1, 999, 1000, 1001, 50'000, 100'000, 100'001, 350'000, 0, 7},
             {0, 10, 5000, 1001, 250'000, 100'000, 300'000, 100'001, 1'000'000, 1'000'000, 8},
             Duration::from_milliseconds(60'000));
}

TEST_P(EveryScheme, ManyTurnsOfATinyIdSpace) {
    PairConfig config = PairConfig::typical(GetParam()).loss(0.02);
    config.queue_pair.layout = {2, 22, 8};
    config.queue_pair.max_messages = 4;
    Pair pair(config);
    transfer(pair, std::vector<std::size_t>(600, 3001), std::vector<std::size_t>(600, 3001),
             Duration::from_milliseconds(120'000));
}

TEST_P(EveryScheme, LastChunkLostAndNothingFollows) {
    // The first transmission of the last packets of the message is lost, whatever their number.
    for (std::uint32_t tail : {1u, 3u, 9u, 100u}) {
        PairConfig config = PairConfig::typical(GetParam());
        auto seen = std::make_shared<std::vector<int>>(100, 0);
        config.link.hook = [seen, tail](wire::SimInFlight& packet) {
            if (packet.datagram) return;
            const std::uint32_t index = sdr::ImmediateLayout{}.packet(packet.immediate);
            if (index >= 100 - tail && (*seen)[index]++ == 0) packet.drop = true;
        };
        Pair pair(config);
        const Duration took = transfer(pair, {100'000}, {100'000}, Duration::from_milliseconds(1000));
        if (GetParam() == Scheme::kSelectiveRepeatNack || GetParam().coded()) {
            EXPECT_LT(took, Duration::from_milliseconds(6)) << tail;  // CTS 1 ms + round trip 2 + repair 2 + detection
        } else {
            EXPECT_LT(took, Duration::from_milliseconds(13)) << tail;  // ... + RTO 6, from the last ack with gbn
        }
        EXPECT_LE(pair.a->counters().packets_resent, tail);
    }
}

TEST_P(EveryScheme, ALostRetransmissionIsResentToo) {
    PairConfig config = PairConfig::typical(GetParam());
    auto seen = std::make_shared<int>(0);
    config.link.hook = [seen](wire::SimInFlight& packet) {
        if (!packet.datagram && sdr::ImmediateLayout{}.packet(packet.immediate) == 50 && (*seen)++ < 3)
            packet.drop = true;
    };
    Pair pair(config);
    transfer(pair, {100'000}, {100'000}, Duration::from_milliseconds(1000));
    if (!GetParam().coded()) {  // parity makes up for it
        EXPECT_EQ(*seen, 4);
    }
}

TEST_P(EveryScheme, BothDirectionsAtOnce) {
    Pair pair(PairConfig::typical(GetParam()).loss(0.01));
    const auto to_b = pattern(2'000'000, 1), to_a = pattern(1'500'000, 2);
    Guarded at_b(to_b.size()), at_a(to_a.size());
    int done = 0;
    const auto count = [&](auto result) {
        ASSERT_TRUE(result) << result.error().message;
        ++done;
    };
    ASSERT_TRUE(pair.a->receive(at_a.data(), at_a.size(), count));
    ASSERT_TRUE(pair.b->receive(at_b.data(), at_b.size(), count));
    ASSERT_TRUE(pair.a->write(to_b.data(), to_b.size(), count));
    ASSERT_TRUE(pair.b->write(to_a.data(), to_a.size(), count));
    ASSERT_TRUE(pair.loop.run_while([&] { return done < 4; }, TimePoint{} + Duration::from_milliseconds(60'000)));
    EXPECT_EQ(std::memcmp(at_b.data(), to_b.data(), to_b.size()), 0);
    EXPECT_EQ(std::memcmp(at_a.data(), to_a.data(), to_a.size()), 0);
    EXPECT_TRUE(at_a.guards_intact() && at_b.guards_intact());
}

TEST_P(EveryScheme, ImmediatesArriveWithTheirWrites) {
    Pair pair(PairConfig::typical(GetParam()).loss(0.05));
    const std::size_t sizes[] = {0, 1, 1000, 7000, 8000, 9001, 250'000};
    std::vector<std::vector<std::byte>> data;
    std::vector<std::unique_ptr<Guarded>> buffers;
    std::size_t done = 0;
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
        data.push_back(pattern(sizes[i], i));
        buffers.push_back(std::make_unique<Guarded>(sizes[i]));
        ASSERT_TRUE(pair.b->receive(
            buffers[i]->data(), sizes[i],
            [&, i](Result<ReceiveResult> result) {
                ASSERT_TRUE(result);
                EXPECT_EQ(result->immediate, 0xDEADBEE0u + static_cast<std::uint32_t>(i));
                ++done;
            },
            true));
        ASSERT_TRUE(pair.a->write(data[i].data(), sizes[i], {}, 0xDEADBEE0u + static_cast<std::uint32_t>(i)));
    }
    ASSERT_TRUE(pair.loop.run_while([&] { return done < std::size(sizes); },
                                    TimePoint{} + Duration::from_milliseconds(60'000)));
}

TEST_P(EveryScheme, PeerThatDiesGivesAnErrorInTime) {
    PairConfig config = PairConfig::typical(GetParam());
    config.connection.peer_timeout = Duration::from_milliseconds(500);
    Pair pair(config);
    const auto data = pattern(1'000'000, 1);
    std::vector<std::byte> buffer(data.size());
    int failed = 0;
    ASSERT_TRUE(
        pair.b->receive(buffer.data(), buffer.size(), [&](Result<ReceiveResult> result) { failed += !result; }));
    ASSERT_TRUE(pair.a->write(data.data(), data.size(), [&](Status status) {
        failed += !status;
        if (!status) {
            EXPECT_EQ(status.error().code, ErrorCode::kPeerGone);
        }
    }));
    pair.loop.call_after(Duration::from_microseconds(1500), [&] { pair.wire_b->kill(); });
    auto ran = pair.loop.run_while([&] { return failed < 1; }, TimePoint{} + Duration::from_milliseconds(700));
    EXPECT_TRUE(ran) << ran.error().message;
    EXPECT_FALSE(pair.a->write(data.data(), data.size(), {}));
    // No endless trickle: the simulation runs dry.
    pair.loop.set_event_budget(pair.loop.events() + 100'000);
    EXPECT_TRUE(pair.loop.run_for(Duration::from_milliseconds(60'000)));
    const auto sent = pair.wire_a->counters().packets_sent + pair.wire_a->counters().datagrams_sent;
    EXPECT_TRUE(pair.loop.run_for(Duration::from_milliseconds(60'000)));
    EXPECT_EQ(pair.wire_a->counters().packets_sent + pair.wire_a->counters().datagrams_sent, sent);
}

TEST_P(EveryScheme, ReceiverNoticesAWriterThatDiesMidway) {
    PairConfig config = PairConfig::typical(GetParam());
    config.connection.peer_timeout = Duration::from_milliseconds(500);
    Pair pair(config);
    const auto data = pattern(1'000'000, 1);
    std::vector<std::byte> buffer(data.size());
    bool failed = false;
    ASSERT_TRUE(pair.b->receive(buffer.data(), buffer.size(), [&](Result<ReceiveResult> result) { failed = !result; }));
    ASSERT_TRUE(pair.a->write(data.data(), data.size(), {}));
    // 50 us into the injection: the first message is partly there.
    pair.loop.call_after(Duration::from_microseconds(1050), [&] { pair.wire_a->kill(); });
    auto ran = pair.loop.run_while([&] { return !failed; }, TimePoint{} + Duration::from_milliseconds(700));
    EXPECT_TRUE(ran) << ran.error().message;
}

TEST_P(EveryScheme, ALinkThatGoesDownAndComesBack) {
    PairConfig config = PairConfig::typical(GetParam());
    const auto change = [](int at_ms, bool up) {
        link::LinkChange c;
        c.at = Duration::from_milliseconds(at_ms);
        c.up = up;
        return c;
    };
    config.link.forward_schedule = config.link.backward_schedule = {change(2, false), change(3002, true)};
    Pair pair(config);
    transfer(pair, {5'000'000}, {5'000'000}, Duration::from_milliseconds(9'000));
    EXPECT_FALSE(pair.a->failed());
    // While nothing came back the sender did not keep sending at full pace.
    EXPECT_LT(pair.a->counters().packets_resent, 20'000u);
}

TEST_P(EveryScheme, WholeBlocksLostInARow) {
    PairConfig config = PairConfig::typical(GetParam());
    auto count = std::make_shared<int>(0);
    config.link.hook = [count](wire::SimInFlight& packet) {
        if (!packet.datagram && (*count)++ >= 100 && *count < 900) packet.drop = true;  // ten messages' worth
    };
    Pair pair(config);
    transfer(pair, std::vector<std::size_t>(30, 100'000), std::vector<std::size_t>(30, 100'000),
             Duration::from_milliseconds(10'000));
}

TEST_P(EveryScheme, WriteLongerThanTheBufferFailsOnBothSides) {
    Pair pair(PairConfig::typical(GetParam()));
    const auto data = pattern(300'000, 1);
    Guarded buffer(250'000);
    std::optional<Error> at_a, at_b;
    ASSERT_TRUE(pair.b->receive(buffer.data(), buffer.size(), [&](Result<ReceiveResult> result) {
        if (!result) at_b = result.error();
    }));
    ASSERT_TRUE(pair.a->write(data.data(), data.size(), [&](Status status) {
        if (!status) at_a = status.error();
    }));
    ASSERT_TRUE(pair.loop.run_while([&] { return !at_a || !at_b; }, TimePoint{} + Duration::from_milliseconds(1000)));
    EXPECT_EQ(at_a->code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(buffer.guards_intact());
}

TEST_P(EveryScheme, ReceiverMayFinishEarly) {
    PairConfig config = PairConfig::typical(GetParam());
    const std::uint32_t every = GetParam().coded() ? 2 : 10;  // beyond what parity repairs
    config.link.hook = [every](wire::SimInFlight& packet) {
        if (!packet.datagram && sdr::ImmediateLayout{}.packet(packet.immediate) % every == 1 &&
            packet.generation == 0 && sdr::ImmediateLayout{}.message_id(packet.immediate) == 0)
            packet.drop = true;  // can never complete
    };
    Pair pair(config);
    const auto first = pattern(100'000, 1), second = pattern(100'000, 2);
    Guarded one(100'000), two(100'000);
    bool early = false, written = false, second_done = false;
    auto id =
        pair.b->receive(one.data(), one.size(), [&](Result<ReceiveResult> result) { early = result && result->early; });
    ASSERT_TRUE(id);
    ASSERT_TRUE(pair.b->receive(two.data(), two.size(),
                                [&](Result<ReceiveResult> result) { second_done = result && !result->early; }));
    ASSERT_TRUE(pair.a->write(first.data(), first.size(), [&](Status status) { written = status.has_value(); }));
    ASSERT_TRUE(pair.a->write(second.data(), second.size(), {}));
    ASSERT_TRUE(pair.loop.run_for(Duration::from_milliseconds(20)));
    EXPECT_FALSE(written);
    ASSERT_TRUE(pair.b->finish_early(*id));
    EXPECT_FALSE(early) << "callbacks never run from inside a call";
    std::memset(one.data(), 0x5A, one.size());  // the buffer is ours again
    ASSERT_TRUE(pair.loop.run_while([&] { return !early || !written || !second_done; },
                                    TimePoint{} + Duration::from_milliseconds(100)));
    ASSERT_TRUE(pair.loop.run_for(Duration::from_milliseconds(100)));
    for (std::size_t i = 0; i < one.size(); ++i) ASSERT_EQ(one.data()[i], std::byte{0x5A});
    EXPECT_FALSE(pair.b->finish_early(*id));
}

TEST_P(EveryScheme, DestroyedWithEverythingInFlight) {
    for (int after_us = 0; after_us < 6000; after_us += 250) {
        PairConfig config = PairConfig::typical(GetParam()).loss(0.1);
        Pair pair(config);
        const auto data = pattern(500'000, 1);
        std::vector<std::byte> buffer(data.size());
        ASSERT_TRUE(pair.b->receive(buffer.data(), buffer.size(), {}));
        ASSERT_TRUE(pair.a->write(data.data(), data.size(), {}));
        ASSERT_TRUE(pair.loop.run_for(Duration::from_microseconds(after_us)));
        (after_us % 500 == 0 ? pair.a : pair.b).reset();
        ASSERT_TRUE(pair.loop.run_for(Duration::from_milliseconds(50)));
    }
}

TEST_P(EveryScheme, ACallbackMayDestroyTheConnection) {
    Pair pair(PairConfig::typical(GetParam()));
    const auto data = pattern(5000, 1);
    std::vector<std::byte> buffer(data.size());
    ASSERT_TRUE(pair.b->receive(buffer.data(), buffer.size(), [&](Result<ReceiveResult>) { pair.b.reset(); }));
    ASSERT_TRUE(pair.a->write(data.data(), data.size(), [&](Status) { pair.a.reset(); }));
    ASSERT_TRUE(pair.loop.run_for(Duration::from_milliseconds(1000)));
    EXPECT_FALSE(pair.b);
}

TEST_P(EveryScheme, WriteTimeoutHolds) {
    PairConfig config = PairConfig::typical(GetParam());
    config.connection.write_timeout = Duration::from_milliseconds(300);
    Pair pair(config);
    const auto data = pattern(5000, 1);
    std::optional<Error> error;
    ASSERT_TRUE(pair.a->write(data.data(), data.size(), [&](Status status) {  // nothing is posted
        if (!status) error = status.error();
    }));
    ASSERT_TRUE(pair.loop.run_while([&] { return !error; }, TimePoint{} + Duration::from_milliseconds(400)));
    EXPECT_EQ(error->code, ErrorCode::kTimeout);
}

TEST_P(EveryScheme, IdleConnectionWithKeepaliveNoticesAGonePeer) {
    PairConfig config = PairConfig::typical(GetParam());
    config.connection.keepalive = Duration::from_milliseconds(100);
    config.connection.peer_timeout = Duration::from_milliseconds(500);
    Pair pair(config);
    ASSERT_TRUE(pair.loop.run_for(Duration::from_milliseconds(5000)));
    EXPECT_FALSE(pair.a->failed() || pair.b->failed());
    pair.wire_b->kill();
    ASSERT_TRUE(pair.loop.run_for(Duration::from_milliseconds(700)));
    EXPECT_TRUE(pair.a->failed());
}

// --- what a single scheme promises ---

TEST(Connection, NullPointersAreRefusedAndHarmNothing) {
    Pair pair(PairConfig::typical(Scheme::kAuto));
    EXPECT_EQ(pair.a->write(nullptr, 10, {}).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(pair.b->receive(nullptr, 10, {}).error().code, ErrorCode::kInvalidArgument);
    int done = 0;
    ASSERT_TRUE(pair.b->receive(nullptr, 0, [&](auto result) { done += result.has_value(); }));
    ASSERT_TRUE(pair.a->write(nullptr, 0, [&](Status status) { done += status.has_value(); }));
    ASSERT_TRUE(pair.loop.run_while([&] { return done < 2; }));
}

TEST(SelectiveRepeatNack, ReorderingWithoutLossResendsNothing) {
    // Displacement up to 64 packets (0.77 ms at 1 Gbit/s), 17% of the packets.
    PairConfig config = PairConfig::typical(Scheme::kSelectiveRepeatNack);
    config.link.forward.rate = config.link.backward.rate = BitRate::from_gigabits(1);
    config.link.forward.delay = config.link.backward.delay = Duration::from_microseconds(12'500);
    config.link.forward.reorder_probability = 0.17;
    config.link.forward.reorder_delay = Duration::from_microseconds(770);
    config.queue_pair.payload_bytes = 1448;
    config.queue_pair.initial_rtt = config.connection.initial_rtt = Duration::from_milliseconds(25);
    Pair pair(config);
    transfer(pair, std::vector<std::size_t>(200, 100'000), std::vector<std::size_t>(200, 100'000),
             Duration::from_milliseconds(60'000));
    EXPECT_EQ(pair.a->counters().packets_resent, 0u);
}

TEST(SelectiveRepeatNack, JitterCostsLittle) {
    for (int jitter_ms : {1, 10, 30}) {
        PairConfig config = PairConfig::typical(Scheme::kSelectiveRepeatNack);
        config.link.forward.jitter = config.link.backward.jitter = Duration::from_milliseconds(jitter_ms);
        config.link.forward.rate = config.link.backward.rate = BitRate::from_gigabits(1);
        // What a handshake over such a link measures on average.
        config.connection.initial_rtt = Duration::from_milliseconds(2 + jitter_ms);
        Pair pair(config);
        transfer(pair, std::vector<std::size_t>(300, 100'000), std::vector<std::size_t>(300, 100'000),
                 Duration::from_milliseconds(60'000));
        const auto counters = pair.a->counters();
        EXPECT_LT(counters.packets_resent, counters.packets_first / 20) << jitter_ms << " ms";
    }
}

TEST(SelectiveRepeat, ResendsOnlyWhatIsMissing) {
    PairConfig config = PairConfig::typical(Scheme::kSelectiveRepeat);
    config.link.forward.loss.probability = 0.01;
    Pair pair(config);
    transfer(pair, std::vector<std::size_t>(100, 100'000), std::vector<std::size_t>(100, 100'000),
             Duration::from_milliseconds(60'000));
    const auto lost = pair.wire_a->counters().packets_lost;
    EXPECT_GT(lost, 50u);
    EXPECT_EQ(pair.a->counters().packets_resent, lost);
}

TEST(Connection, NamesWhatIsWrongWithItsConfiguration) {
    PairConfig config = PairConfig::typical(Scheme::kSelectiveRepeat);
    Pair pair(config);
    wire::SimLoop loop;
    wire::SimNetwork network(loop);
    auto wires = network.connect(config.link, 1);
    ASSERT_TRUE(wires);
    config.connection.rto_rtts = 0;
    EXPECT_FALSE(Connection::create(loop, *wires->first, config.queue_pair, config.connection));
    config.connection.rto_rtts = 3;
    config.queue_pair.packets_per_chunk = 65;
    EXPECT_FALSE(Connection::create(loop, *wires->first, config.queue_pair, config.connection));
}

TEST(Connection, GarbageDatagramsAreCountedAndHarmless) {
    PairConfig config = PairConfig::typical(Scheme::kSelectiveRepeatNack);
    Pair pair(config);
    Random random(11);
    for (int i = 0; i < 2000; ++i) {
        std::vector<std::byte> garbage(1 + random.below(300));
        for (auto& byte : garbage) byte = static_cast<std::byte>(random());
        garbage[0] = static_cast<std::byte>(random.below(4));
        if (garbage.size() > 1)
            garbage[1] = static_cast<std::byte>(random.below(3));  // acks, probes and what else there is
        pair.wire_a->inject_datagram(garbage,
                                     Duration::from_microseconds(static_cast<std::int64_t>(random.below(5000))));
    }
    // An abort notice among them would be honoured: those bytes are kind 3.
    transfer(pair, {400'000}, {400'000}, Duration::from_milliseconds(5000));
    EXPECT_GT(pair.a->counters().malformed, 0u);
}

}  // namespace
}  // namespace farhaul::reliable
