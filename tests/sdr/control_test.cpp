// Control records: repeated until acknowledged, never trusted.
#include "sdr/control.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "base/bytes.hpp"
#include "fake_wire.hpp"

namespace farhaul::sdr {
namespace {

using testing::GuardedBuffer;
using testing::Pair;

constexpr QueuePairConfig kSmall{.layout = {4, 20, 8},
                                 .payload_bytes = 64,
                                 .packets_per_chunk = 4,
                                 .max_messages = 16,
                                 .max_message_bytes = 64 * 256};

/// A datagram of records as docs/wire-format.md has it.
struct Datagram {
    std::uint8_t kind = 1;
    std::vector<std::uint64_t> words{};
    std::uint64_t cumulative = 0, stamp = 1, echo = 0;
    std::uint32_t echo_delay_us = 0;
    std::vector<std::vector<std::byte>> records{};
    int count_error = 0;

    Datagram& clear_to_send(std::uint64_t sequence, std::uint64_t message, std::uint64_t length, std::uint32_t tag) {
        std::vector<std::byte> out;
        ByteWriter writer(out);
        writer.write(sequence);
        writer.write(std::uint8_t{1});
        writer.write(message);
        writer.write(length);
        writer.write(tag);
        records.push_back(out);
        return *this;
    }
    Datagram& info(std::uint64_t sequence, std::uint64_t message, std::uint64_t length, std::uint8_t flag = 0,
                   std::uint32_t value = 0) {
        std::vector<std::byte> out;
        ByteWriter writer(out);
        writer.write(sequence);
        writer.write(std::uint8_t{2});
        writer.write(message);
        writer.write(length);
        writer.write(flag);
        writer.write(value);
        records.push_back(out);
        return *this;
    }
    std::vector<std::byte> bytes() const {
        std::vector<std::byte> out;
        ByteWriter writer(out);
        writer.write(kind);
        writer.write(static_cast<std::uint8_t>(words.size()));
        writer.write(static_cast<std::uint16_t>(static_cast<int>(records.size()) + count_error));
        writer.write(cumulative);
        writer.write(stamp);
        writer.write(echo);
        writer.write(echo_delay_us);
        for (const auto word : words) writer.write(word);
        for (const auto& record : records) writer.write_bytes(record);
        return out;
    }
};

TEST(Control, OneOfManyLostDatagramsDelaysByAFewRoundTripsOnly) {
    QueuePairConfig config = kSmall;
    config.initial_rtt = Duration::from_milliseconds(25);
    struct Case {
        std::uint64_t losses, repeats;
        double round_trips;
    };
    // A copy after 1/32 round trip, one 1/8 after that; then 1.5 round trips, then 3.
    for (const auto [losses, repeats, round_trips] :
         {Case{0, 0, 0}, {1, 0, 0.03125}, {3, 1, 1.65625}, {4, 2, 4.65625}}) {
        Pair pair(config);
        pair.wire_a.faults.delay = pair.wire_b.faults.delay = Duration::from_microseconds(12'500);
        pair.open();
        pair.wire_b.drop_datagrams = losses;
        GuardedBuffer buffer(64);
        ASSERT_TRUE(pair.b->post_receive(buffer.data(), 64));
        ASSERT_TRUE(pair.loop.run_until([&] { return pair.a->can_start_send(); }));
        EXPECT_NEAR(pair.loop.now().seconds(), 0.0125 + 0.025 * round_trips, 1e-6);
        EXPECT_EQ(pair.b->counters().control_retransmissions, repeats);
        pair.loop.run_for(Duration::from_milliseconds(1000));
        EXPECT_EQ(pair.b->counters().control_retransmissions, repeats) << "the acknowledgement stops it";
        EXPECT_EQ(pair.b->round_trip(), Duration::from_milliseconds(25));
    }
}

TEST(Control, RoundTripIsMeasuredAndPacesRepeats) {
    Pair pair(kSmall);  // initially 100 ms
    pair.wire_a.faults.delay = pair.wire_b.faults.delay = Duration::from_milliseconds(4);
    pair.open();
    GuardedBuffer buffer(64);
    ASSERT_TRUE(pair.b->post_receive(buffer.data(), 64));
    pair.loop.run_for(Duration::from_milliseconds(50));
    EXPECT_EQ(pair.b->round_trip(), Duration::from_milliseconds(8));
    EXPECT_EQ(pair.a->round_trip(), Duration::from_milliseconds(100)) << "a sent no record";
    pair.wire_b.drop_datagrams = 3;  // the copies too
    ASSERT_TRUE(pair.b->post_receive(buffer.data(), 64));
    const TimePoint before = pair.loop.now();
    pair.loop.run_until([&] { return pair.b->counters().control_retransmissions == 1; });
    EXPECT_EQ(pair.loop.now() - before, Duration::from_microseconds(250 + 1000 + 12'000))
        << "counted from the last copy";
}

TEST(Control, UnacknowledgedRecordsRideAlong) {
    Pair pair(kSmall);
    pair.open();
    pair.wire_b.drop_datagrams = 1;
    GuardedBuffer buffer(64);
    ASSERT_TRUE(pair.b->post_receive(buffer.data(), 64));
    pair.loop.run_for(Duration::from_microseconds(500));
    EXPECT_FALSE(pair.a->can_start_send());
    ASSERT_TRUE(pair.b->post_receive(buffer.data(), 64));
    pair.loop.run_for(Duration::from_milliseconds(2));
    EXPECT_TRUE(pair.a->can_start_send()) << "the first came with the second, long before its time ran out";
    EXPECT_EQ(pair.b->counters().control_retransmissions, 0u);
    EXPECT_EQ(pair.wire_b.datagrams, 2u);
    pair.loop.run_for(Duration::from_milliseconds(500));
    EXPECT_EQ(pair.wire_a.datagrams, 1u) << "one acknowledgement, not acknowledged in turn";
    EXPECT_EQ(pair.wire_b.datagrams, 2u);
}

TEST(Control, AProcessThatWasStoppedForLongDoesNotGiveUp) {
    Pair pair(kSmall);
    pair.open();
    pair.wire_b.drop_datagrams = 1;
    GuardedBuffer buffer(64);
    ASSERT_TRUE(pair.b->post_receive(buffer.data(), 64));
    pair.loop.run_for(Duration::from_microseconds(1));
    pair.loop.jump(Duration::from_seconds(3600));
    pair.loop.run_for(Duration::from_milliseconds(500));
    EXPECT_EQ(pair.events_b.errors, 0);
    EXPECT_TRUE(pair.a->can_start_send());
}

TEST(Control, ALostLengthStillComes) {
    Pair pair(kSmall);
    pair.open();
    GuardedBuffer buffer(640);
    auto slot = pair.b->post_receive(buffer.data(), 640);
    pair.loop.run_for(Duration::from_milliseconds(3));
    pair.wire_a.drop_datagrams = 2;
    const auto bytes = testing::message_bytes(0, 100);
    auto send = pair.a->start_send({.immediate = 77, .length = 100});
    ASSERT_TRUE(pair.a->continue_send(**send, 0, bytes.data(), 100));
    ASSERT_TRUE(pair.a->end_send(**send));
    pair.a->release_send(**send);  // the record outlives the handle
    pair.loop.run_for(Duration::from_milliseconds(5));
    EXPECT_FALSE((*slot)->complete());
    pair.loop.run_for(Duration::from_milliseconds(2000));
    EXPECT_TRUE((*slot)->complete()) << "the tail came before the length, and counts now";
    std::uint32_t value = 0;
    EXPECT_TRUE((*slot)->immediate(&value));
    EXPECT_EQ(value, 77u);
}

TEST(Control, ImmediatesOfEmptyMessagesAtThirtyPercentLoss) {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        SCOPED_TRACE(seed);
        QueuePairConfig config = kSmall;
        config.initial_rtt = Duration::from_milliseconds(2);
        Pair pair(config, seed);
        testing::Faults faults;
        faults.datagram_loss = 0.3;
        faults.duplicate = 0.2;
        faults.reorder = 0.3;
        pair.faults(faults);
        pair.open();
        std::uint64_t posted = 0, started = 0, received = 0;
        pair.events_b.when_progress = [&](MessageSlot& slot) {
            std::uint32_t value = 0;
            if (!slot.immediate(&value)) return;
            EXPECT_EQ(value, slot.sequence() * 3);
            ++received;
            pair.b->complete_receive(slot);
        };
        EXPECT_TRUE(pair.loop.run_until(
            [&] {
                while (posted < 500 && pair.b->post_receive(nullptr, 0, static_cast<std::uint32_t>(posted))) ++posted;
                while (pair.a->can_start_send()) {
                    EXPECT_EQ(pair.a->next_send_tag(), started);
                    auto send = pair.a->start_send({.immediate = static_cast<std::uint32_t>(started * 3)});
                    EXPECT_TRUE(pair.a->end_send(**send));
                    pair.a->release_send(**send);
                    ++started;
                }
                return received == 500;
            },
            Duration::from_seconds(300)));
        EXPECT_EQ(received, 500u);
        EXPECT_EQ(pair.a->counters().malformed_datagrams + pair.b->counters().malformed_datagrams, 0u);
        // All acknowledged: silence.
        pair.loop.run_for(Duration::from_milliseconds(5000));
        const auto datagrams = pair.wire_a.datagrams + pair.wire_b.datagrams;
        pair.loop.run_for(Duration::from_milliseconds(5000));
        EXPECT_EQ(pair.wire_a.datagrams + pair.wire_b.datagrams, datagrams);
        EXPECT_EQ(pair.events_a.errors + pair.events_b.errors, 0);
    }
}

TEST(Control, ManyRecordsAtOnceAreAcknowledgedBehindAGap) {
    QueuePairConfig config = kSmall;
    config.layout = {12, 12, 8};
    config.max_messages = 4096;
    config.max_message_bytes = 64;
    Pair pair(config);
    pair.wire_b.faults.datagram_loss = 0.5;
    pair.open();
    for (std::uint32_t i = 0; i < 1500; ++i) ASSERT_TRUE(pair.b->post_receive(nullptr, 0, i));
    pair.loop.run_for(Duration::from_milliseconds(3000));
    for (std::uint32_t i = 0; i < 1500; ++i) {
        ASSERT_EQ(pair.a->next_send_tag(), i);
        auto send = pair.a->start_send({});
        ASSERT_TRUE(send);
        pair.a->release_send(**send);
    }
    EXPECT_EQ(pair.a->counters().malformed_datagrams, 0u);
}

struct Hostile : ::testing::Test {
    Hostile() : pair(kSmall) {
        pair.open();
        slot = *pair.a->post_receive(buffer.data(), 640);  // a's only record: sequence 0
        pair.loop.run_for(Duration::from_milliseconds(5));
        base = pair.a->counters().malformed_datagrams;
    }
    void give(const std::vector<std::byte>& bytes) { pair.wire_a.sink_->on_datagram(bytes); }
    /// How many were refused since the last call.
    std::uint64_t refused() {
        const std::uint64_t now = pair.a->counters().malformed_datagrams;
        return now - std::exchange(base, now);
    }
    Pair pair;
    GuardedBuffer buffer{640};
    MessageSlot* slot = nullptr;
    std::uint64_t base = 0;
};

TEST_F(Hostile, GarbageIsCountedAndDropped) {
    give({});
    give({std::byte{0}});
    give({std::byte{3}, std::byte{0}});
    EXPECT_EQ(refused(), 3u);
    const auto good = Datagram{.cumulative = 1}.clear_to_send(0, 0, 10, 0).info(1, 0, 640).bytes();
    for (std::size_t cut = 1; cut < good.size(); ++cut)
        give({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(cut)});
    EXPECT_EQ(refused(), good.size() - 1);
    auto longer = good;
    longer.push_back(std::byte{0});
    give(longer);
    EXPECT_EQ(refused(), 1u);
    Datagram count{.cumulative = 1};
    count.clear_to_send(0, 0, 10, 0).count_error = 1;
    give(count.bytes());
    EXPECT_EQ(refused(), 1u);
    give(Datagram{.words = std::vector<std::uint64_t>(17)}.bytes());
    EXPECT_EQ(refused(), 1u);
    give(good);
    EXPECT_EQ(refused(), 0u);
    EXPECT_TRUE(buffer.untouched());
}

TEST_F(Hostile, AcknowledgementsOfWhatWasNeverSentAreRefused) {
    give(Datagram{.cumulative = 2}.bytes());
    give(Datagram{.cumulative = ~0ull}.bytes());
    give(Datagram{.words = {1}, .cumulative = 0}.bytes());
    give(Datagram{.words = {0, 1ull << 63}, .cumulative = 1}.bytes());
    EXPECT_EQ(refused(), 4u);
    // Echoes that cannot be: no measurement, no crash.
    const Duration before = pair.a->round_trip();
    give(Datagram{.cumulative = 1, .echo = ~0ull}.bytes());
    give(Datagram{.cumulative = 1, .echo = 1, .echo_delay_us = ~0u}.bytes());
    EXPECT_EQ(pair.a->round_trip(), before);
}

TEST_F(Hostile, ClearToSendBeyondTheWindowOrContradicting) {
    Datagram d{.cumulative = 1};
    d.clear_to_send(0, 0, 100, 5).clear_to_send(1, 16 + 65'536, 100, 0);
    give(d.bytes());
    EXPECT_EQ(refused(), 1u) << "thousands of turns of the 16 ids ahead, while 0 is next";
    EXPECT_EQ(pair.a->next_send_capacity(), 100u);
    give(Datagram{.cumulative = 1}.clear_to_send(2, 0, 200, 5).bytes());
    give(Datagram{.cumulative = 1}.clear_to_send(3, 0, 100, 6).bytes());
    give(Datagram{.cumulative = 1}.clear_to_send(4, ~0ull, 100, 6).bytes());
    give(Datagram{.cumulative = 1}.clear_to_send(5, 1, ~0ull, 6).bytes());
    give(Datagram{.cumulative = 1}.clear_to_send(6, 1, (64ull << 20) + 1, 6).bytes());
    EXPECT_EQ(refused(), 5u);
    give(Datagram{.cumulative = 1}.clear_to_send(7, 0, 100, 5).bytes());
    EXPECT_EQ(refused(), 0u) << "the same again is no contradiction";
    EXPECT_EQ(pair.a->next_send_capacity(), 100u);
    EXPECT_EQ(pair.a->next_send_tag(), 5u);
    // Records ahead of the window take no memory and are not acknowledged.
    give(Datagram{.cumulative = 1}.clear_to_send(8 + 1024, 1, 100, 0).bytes());
    give(Datagram{.cumulative = 1}.clear_to_send(~0ull, 1, 100, 0).bytes());
    EXPECT_EQ(refused(), 2u);
    ASSERT_TRUE(pair.a->start_send({}));
    EXPECT_FALSE(pair.a->can_start_send());
}

TEST_F(Hostile, MessageInfoThatCannotBe) {
    give(Datagram{.cumulative = 1}.info(0, 0, 641).bytes());
    give(Datagram{.cumulative = 1}.info(1, 1, 10).bytes());
    give(Datagram{.cumulative = 1}.info(2, ~0ull, 10).bytes());
    give(Datagram{.cumulative = 1}.info(3, 0, 10, 2).bytes());
    EXPECT_EQ(refused(), 4u);
    EXPECT_EQ(slot->length(), 640u);
    give(Datagram{.cumulative = 1}.info(3, 0, 10, 1, 99).bytes());
    EXPECT_EQ(refused(), 0u);
    give(Datagram{.cumulative = 1}.info(4, 0, 11).bytes());
    EXPECT_EQ(refused(), 1u) << "another length than announced";
    EXPECT_EQ(slot->length(), 10u);
    pair.a->complete_receive(*slot);
    give(Datagram{.cumulative = 1}.info(5, 0, 10).bytes());
    EXPECT_EQ(refused(), 0u) << "late, not wrong";
}

TEST_F(Hostile, RandomDatagramsNeverHurt) {
    Random random(7);
    const auto good = Datagram{.words = {5, 9}, .cumulative = 1}
                          .clear_to_send(0, 0, 10, 0)
                          .info(1, 0, 64, 1, 3)
                          .clear_to_send(2, 1, 0, 0)
                          .bytes();
    for (int i = 0; i < 200'000; ++i) {
        auto bytes = good;
        for (std::uint64_t n = random.between(1, 4); n > 0; --n)
            bytes[random.below(bytes.size())] = static_cast<std::byte>(random());
        bytes[0] = std::byte{1};
        if (random.chance(0.3)) bytes.resize(random.below(bytes.size()) + 1);
        give(bytes);
    }
    pair.loop.run_for(Duration::from_milliseconds(100));
    EXPECT_TRUE(buffer.untouched());
    EXPECT_GT(refused(), 100'000u);
}

}  // namespace
}  // namespace farhaul::sdr
