// The semantics of a queue pair, one by one, over the fake wire.
#include "sdr/queue_pair.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "fake_wire.hpp"

namespace farhaul::sdr {
namespace {

using testing::Faults;
using testing::GuardedBuffer;
using testing::message_bytes;
using testing::Pair;

constexpr QueuePairConfig kSmall{.layout = {4, 20, 8},
                                 .payload_bytes = 64,
                                 .packets_per_chunk = 4,
                                 .max_messages = 8,
                                 .max_message_bytes = 64 * 256};

/// Starts, queues and ends a whole message.
SendHandle* send_all(QueuePair& queue_pair, const std::vector<std::byte>& bytes,
                     std::optional<std::uint32_t> immediate = {}) {
    auto send = queue_pair.start_send({.immediate = immediate, .length = bytes.size()});
    EXPECT_TRUE(send) << send.error().message;
    EXPECT_TRUE(queue_pair.continue_send(**send, 0, bytes.data(), bytes.size()));
    EXPECT_TRUE(queue_pair.end_send(**send));
    return *send;
}

TEST(QueuePair, RejectsWrongConfiguration) {
    Pair pair(kSmall);
    const auto make = [&](auto change) {
        QueuePairConfig config = kSmall;
        change(config);
        auto made = QueuePair::create(pair.loop, pair.wire_a, config, nullptr);
        return made ? std::string() : made.error().message;
    };
    EXPECT_EQ(make([](auto&) {}), "");
    EXPECT_NE(make([](auto& c) { c.payload_bytes = 0; }).find("payload_bytes"), std::string::npos);
    EXPECT_NE(make([](auto& c) { c.payload_bytes = 65537; }).find("payload_bytes"), std::string::npos);
    EXPECT_NE(make([](auto& c) { c.packets_per_chunk = 65; }).find("packets_per_chunk"), std::string::npos);
    EXPECT_NE(make([](auto& c) { c.max_messages = 17; }).find("max_messages"), std::string::npos);
    EXPECT_NE(make([](auto& c) { c.max_messages = 0; }).find("max_messages"), std::string::npos);
    EXPECT_NE(make([](auto& c) { c.max_message_bytes = (1ull << 26) + 1; }).find("max_message_bytes"),
              std::string::npos);
    EXPECT_NE(make([](auto& c) { c.layout.fragment_bits = 3; }).find("split"), std::string::npos);
    pair.wire_a.limits_.max_datagram_bytes = 100;
    EXPECT_NE(make([](auto&) {}).find("datagrams"), std::string::npos);
}

TEST(QueuePair, OrderBasedMatchingAndBackPressureByClearToSend) {
    Pair pair(kSmall);
    pair.open();
    EXPECT_FALSE(pair.a->can_start_send());
    EXPECT_EQ(pair.a->start_send({}).error().code, ErrorCode::kRetry);
    std::vector<GuardedBuffer> buffers;
    std::vector<MessageSlot*> slots;
    for (std::uint64_t i = 0; i < 8; ++i) buffers.emplace_back(100 * (i + 1));
    for (std::uint32_t i = 0; i < 8; ++i) {
        auto slot = pair.b->post_receive(buffers[i].data(), buffers[i].length(), 100 + i);
        ASSERT_TRUE(slot);
        slots.push_back(*slot);
    }
    EXPECT_EQ(pair.b->post_receive(buffers[0].data(), 1).error().code, ErrorCode::kRetry);
    pair.loop.run_for(Duration::from_milliseconds(3));
    EXPECT_EQ(pair.events_a.clear_to_send, 1);
    EXPECT_EQ(pair.wire_b.datagrams, 1u) << "eight records share one datagram";
    std::vector<std::vector<std::byte>> bytes;
    for (std::uint32_t i = 0; i < 8; ++i) {
        EXPECT_EQ(pair.a->next_send_capacity(), 100u * (i + 1));
        EXPECT_EQ(pair.a->next_send_tag(), 100 + i);
        bytes.push_back(message_bytes(i, 100 * (i + 1)));
        SendHandle* send = send_all(*pair.a, bytes[i]);
        EXPECT_EQ(send->sequence(), i);
        EXPECT_EQ(send->tag(), 100 + i);
        EXPECT_TRUE(pair.a->injected(*send));
        pair.a->release_send(*send);
    }
    EXPECT_FALSE(pair.a->can_start_send());
    pair.loop.run_for(Duration::from_milliseconds(3));
    for (std::size_t i = 0; i < 8; ++i) {
        EXPECT_TRUE(slots[i]->complete());
        EXPECT_TRUE(std::equal(bytes[i].begin(), bytes[i].end(), buffers[i].data()));
        EXPECT_TRUE(buffers[i].guards_intact());
    }
    EXPECT_EQ(pair.events_b.progress, 60) << "one call per packet: this wire brings them one by one";
}

TEST(QueuePair, MisuseIsAnErrorAndHarmless) {
    Pair pair(kSmall);
    pair.open();
    GuardedBuffer buffer(1000);
    EXPECT_EQ(pair.b->post_receive(buffer.data(), 64 * 256 + 1).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(pair.b->post_receive(nullptr, 10).error().code, ErrorCode::kInvalidArgument);
    auto slot = pair.b->post_receive(buffer.data(), 1000);
    ASSERT_TRUE(slot);
    pair.loop.run_for(Duration::from_milliseconds(3));
    EXPECT_EQ(pair.a->start_send({.length = 1001}).error().code, ErrorCode::kInvalidArgument);
    auto send = pair.a->start_send({});
    ASSERT_TRUE(send);
    const auto bytes = message_bytes(0, 4096);
    const auto code = [&](std::uint64_t offset, const std::byte* data, std::uint64_t length) {
        return pair.a->continue_send(**send, offset, data, length).error().code;
    };
    EXPECT_EQ(code(1, bytes.data(), 64), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(0, bytes.data(), 1001), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(1024, bytes.data(), 1), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(960, bytes.data(), 41), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(64, bytes.data(), ~0ull), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(~0ull - 63, bytes.data(), 64), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(0, nullptr, 64), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(pair.a->continue_send(**send, 960, bytes.data(), 40));
    EXPECT_EQ(code(0, bytes.data(), 63), ErrorCode::kInvalidArgument) << "a range behind it was queued";
    EXPECT_TRUE(pair.a->continue_send(**send, 0, bytes.data(), 0));
    EXPECT_TRUE(pair.a->end_send(**send));
    EXPECT_EQ(pair.a->end_send(**send).error().code, ErrorCode::kClosed);
    EXPECT_EQ(code(0, bytes.data(), 64), ErrorCode::kClosed);
    EXPECT_TRUE(pair.a->continue_send(**send, 0, bytes.data(), 64, true));
    pair.a->release_send(**send);
    pair.a->release_send(**send);
    EXPECT_EQ(code(0, bytes.data(), 64), ErrorCode::kClosed);
    pair.loop.run_for(Duration::from_milliseconds(3));
    pair.b->complete_receive(**slot);
    pair.b->complete_receive(**slot);
    EXPECT_TRUE(pair.b->post_receive(buffer.data(), 1000));
    EXPECT_TRUE(buffer.guards_intact());
    EXPECT_EQ(pair.wire_b.quiesced, 1u);

    QueuePairConfig one_way = kSmall;
    one_way.send_enable = false;
    auto receiver = QueuePair::create(pair.loop, pair.wire_a, one_way, nullptr);
    ASSERT_TRUE(receiver);
    EXPECT_EQ((*receiver)->start_send({}).error().code, ErrorCode::kInvalidArgument);
    one_way = kSmall;
    one_way.receive_enable = false;
    receiver->reset();
    auto sender = QueuePair::create(pair.loop, pair.wire_a, one_way, nullptr);
    EXPECT_EQ((*sender)->post_receive(buffer.data(), 1).error().code, ErrorCode::kInvalidArgument);
}

/// Messages of every tail, with and without a longer buffer, whole or streamed in any order of chunks, with an
/// immediate.
TEST(QueuePair, EveryLengthAndImmediateArrives) {
    for (const ImmediateLayout layout :
         {ImmediateLayout{4, 20, 8}, ImmediateLayout{10, 18, 4}, ImmediateLayout{8, 22, 2}})
        for (const bool spare : {false, true})
            for (const bool known : {false, true}) {
                QueuePairConfig config = kSmall;
                config.layout = layout;
                config.payload_bytes = 5;
                Pair pair(config);
                pair.open();
                for (std::uint64_t length = 0; length <= 90; ++length) {
                    SCOPED_TRACE(
                        fmt::format("length {} spare {} known {} split {}", length, spare, known, layout.message_bits));
                    GuardedBuffer buffer(length + (spare ? 37 : 0));
                    auto slot = pair.b->post_receive(buffer.data(), buffer.length());
                    ASSERT_TRUE(slot);
                    ASSERT_TRUE(pair.loop.run_until([&] { return pair.a->can_start_send(); }));
                    const auto bytes = message_bytes(length, length);
                    const auto user = static_cast<std::uint32_t>(0xdeadbeef * (length + 1));
                    auto send =
                        pair.a->start_send({.immediate = user, .length = known ? std::optional(length) : std::nullopt});
                    ASSERT_TRUE(send);
                    const std::uint64_t half = length / 10 * 5;
                    if (known) {  // the rear first
                        ASSERT_TRUE(pair.a->continue_send(**send, half, bytes.data() + half, length - half));
                        ASSERT_TRUE(pair.a->continue_send(**send, 0, bytes.data(), half));
                    } else {
                        ASSERT_TRUE(pair.a->continue_send(**send, 0, bytes.data(), half));
                        ASSERT_TRUE(pair.a->continue_send(**send, half, bytes.data() + half, length - half));
                    }
                    ASSERT_TRUE(pair.a->end_send(**send));
                    pair.loop.run_for(Duration::from_milliseconds(2));
                    ASSERT_EQ((*slot)->length(), length);
                    ASSERT_TRUE((*slot)->complete());
                    std::uint32_t value = 0;
                    ASSERT_TRUE((*slot)->immediate(&value));
                    ASSERT_EQ(value, user);
                    ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), buffer.data()));
                    ASSERT_TRUE(buffer.guards_intact());
                    pair.b->complete_receive(**slot);
                    pair.a->release_send(**send);
                }
                EXPECT_EQ(pair.b->counters().malformed_datagrams, 0u);
                EXPECT_EQ(pair.b->counters().arrivals.out_of_bounds, 0u);
            }
}

TEST(QueuePair, AMessageThatNeedsNoRecordSendsNone) {
    Pair pair(kSmall);
    pair.open();
    GuardedBuffer buffer(64 * 16);
    ASSERT_TRUE(pair.b->post_receive(buffer.data(), buffer.length()));
    pair.loop.run_for(Duration::from_milliseconds(3));
    const auto before = pair.wire_a.datagrams;
    const auto bytes = message_bytes(0, 64 * 16);
    send_all(*pair.a, bytes, 7);
    pair.loop.run_for(Duration::from_milliseconds(50));
    EXPECT_EQ(pair.wire_a.datagrams, before);
}

TEST(QueuePair, TheLengthGoesOutBeforeTheData) {
    Pair pair(kSmall);
    pair.open();
    GuardedBuffer buffer(64 * 16);
    auto slot = pair.b->post_receive(buffer.data(), buffer.length());
    pair.loop.run_for(Duration::from_milliseconds(3));
    bool known_first = false;
    pair.events_b.when_progress = [&](MessageSlot& s) {
        if (s.packet_horizon() == 0) known_first = s.length_announced();
    };
    const auto bytes = message_bytes(0, 100);
    send_all(*pair.a, bytes);
    pair.loop.run_for(Duration::from_milliseconds(3));
    EXPECT_TRUE(known_first);
    EXPECT_TRUE((*slot)->complete());
}

TEST(QueuePair, EarlyCompleteLeavesTheBufferAlone) {
    Pair pair(kSmall);
    pair.open();
    GuardedBuffer buffer(640);
    auto slot = pair.b->post_receive(buffer.data(), 640);
    pair.loop.run_for(Duration::from_milliseconds(3));
    const auto bytes = message_bytes(0, 640);
    SendHandle* send = send_all(*pair.a, bytes);
    pair.b->complete_receive(**slot);
    pair.loop.run_for(Duration::from_milliseconds(3));
    EXPECT_TRUE(buffer.untouched());
    EXPECT_EQ(pair.b->counters().arrivals.stale, 10u);
    EXPECT_EQ(pair.events_b.progress, 0);
    pair.a->release_send(*send);
    // The next message is not disturbed.
    slot = pair.b->post_receive(buffer.data(), 640);
    pair.loop.run_for(Duration::from_milliseconds(3));
    send_all(*pair.a, bytes);
    pair.loop.run_for(Duration::from_milliseconds(3));
    EXPECT_TRUE((*slot)->complete());
}

TEST(QueuePair, APacketDelayedByWholeTurnsOfTheIdSpaceIsNotTaken) {
    QueuePairConfig config = kSmall;
    config.layout = {2, 22, 8};
    config.max_messages = 4;
    Pair pair(config);
    pair.open();
    // The first packet of every third message stays away for k turns.
    int kept = 0;
    pair.wire_a.filter = [&](const OutgoingPacket& packet) {
        const std::uint32_t id = config.layout.message_id(packet.immediate);
        if (config.layout.packet(packet.immediate) != 0 || (packet.generation * 4 + id) % 3 != 0) return true;
        ++kept;
        std::vector<std::byte> payload(packet.payload, packet.payload + packet.length);
        for (int k = 1; k < 5; ++k)
            pair.loop.after(Duration::from_milliseconds(3 * 4 * k + 1), [&pair, packet, payload] {
                const Arrival arrival{payload.data(), packet.length, packet.immediate, packet.generation};
                pair.wire_b.sink_->on_arrivals(0, {&arrival, 1});
            });
        return false;
    };
    for (std::uint64_t n = 0; n < 300; ++n) {
        GuardedBuffer buffer(256);
        auto slot = pair.b->post_receive(buffer.data(), 256);
        ASSERT_TRUE(slot);
        ASSERT_TRUE(pair.loop.run_until([&] { return pair.a->can_start_send(); }));
        const auto bytes = message_bytes(n, 256);
        SendHandle* send = send_all(*pair.a, bytes);
        pair.loop.run_for(Duration::from_milliseconds(2));
        const bool held = n % 3 == 0;
        ASSERT_EQ((*slot)->chunk_packets(0), held ? 14u : 15u) << n;
        ASSERT_TRUE(std::equal(bytes.begin() + (held ? 64 : 0), bytes.end(), buffer.data() + (held ? 64 : 0)));
        if (held) {
            ASSERT_EQ(buffer.data()[5], GuardedBuffer::kFill);
        }
        pair.a->release_send(*send);
        pair.b->complete_receive(**slot);
    }
    pair.loop.run_for(Duration::from_milliseconds(100));
    EXPECT_EQ(pair.b->counters().arrivals.stale, static_cast<std::uint64_t>(kept) * 4);
}

TEST(QueuePair, UrgentRangesGoFirstAndSendsInOrder) {
    QueuePairConfig config = kSmall;
    config.rate_limit = BitRate::from_bits_per_second(64 * 8 * 1000);  // a packet per millisecond
    Pair pair(config);
    pair.wire_a.keep_sent = true;
    pair.open();
    std::vector<GuardedBuffer> buffers(2, GuardedBuffer(256));
    for (auto& buffer : buffers) ASSERT_TRUE(pair.b->post_receive(buffer.data(), 256));
    pair.loop.run_for(Duration::from_milliseconds(3));
    const auto bytes = message_bytes(0, 256);
    auto first = pair.a->start_send({});
    auto second = pair.a->start_send({});
    ASSERT_TRUE(pair.a->continue_send(**second, 0, bytes.data(), 128));
    ASSERT_TRUE(pair.a->continue_send(**first, 64, bytes.data(), 128));
    ASSERT_TRUE(pair.a->continue_send(**first, 0, bytes.data(), 64));
    ASSERT_TRUE(pair.a->continue_send(**second, 192, bytes.data(), 64, true));
    EXPECT_EQ(pair.a->send_queue_packets(), 5u) << "one packet went at once";
    pair.loop.run_for(Duration::from_milliseconds(20));
    std::vector<std::pair<std::uint32_t, std::uint32_t>> order;
    for (const auto& packet : pair.wire_a.sent)
        order.emplace_back(config.layout.message_id(packet.immediate), config.layout.packet(packet.immediate));
    const std::vector<std::pair<std::uint32_t, std::uint32_t>> expected{{1, 0}, {1, 3}, {0, 1}, {0, 2}, {0, 0}, {1, 1}};
    EXPECT_EQ(order, expected);
    EXPECT_EQ(pair.events_a.injected, 4);
}

TEST(QueuePair, RateLimitIsKeptAndUsed) {
    for (const double gigabits : {0.001, 0.1, 1.0, 40.0, 400.0}) {
        QueuePairConfig config = kSmall;
        config.payload_bytes = 1024;
        config.overhead_bytes = 60;
        config.max_message_bytes = 1u << 20;
        config.rate_limit = BitRate::from_gigabits(gigabits);
        Pair pair(config);
        pair.wire_a.limits_.carries_payload = pair.wire_b.limits_.carries_payload = false;
        pair.wire_b.faults.delay = Duration::from_microseconds(1);
        std::vector<TimePoint> times;
        pair.wire_a.filter = [&](const OutgoingPacket&) {
            times.push_back(pair.loop.now());
            return false;
        };
        pair.open();
        ASSERT_TRUE(pair.b->post_receive(nullptr, 1u << 20));
        pair.loop.run_for(Duration::from_milliseconds(3));
        auto send = pair.a->start_send({});
        const TimePoint start = pair.loop.now();
        ASSERT_TRUE(pair.a->continue_send(**send, 0, nullptr, 1u << 20));
        ASSERT_TRUE(pair.loop.run_until([&] { return pair.a->injected(**send); }));
        ASSERT_EQ(times.size(), 1024u);
        // Never further ahead of the line than a quantum and a packet; in the end not behind it.
        for (std::size_t i = 0; i < times.size(); ++i) {
            const Duration line = config.rate_limit.time_for(i * 1084);
            const Duration ahead = line - (times[i] - start);
            ASSERT_LE(ahead, std::min(Duration::from_microseconds(200), config.rate_limit.time_for(65536)) +
                                 config.rate_limit.time_for(1084) + Duration::from_nanoseconds(2));
            ASSERT_GE(ahead, -Duration::from_nanoseconds(2)) << i << " at " << gigabits;
        }
    }
}

TEST(QueuePair, BackPressureAndLowWaterDoNotRecurse) {
    QueuePairConfig config = kSmall;
    config.max_message_bytes = 64u << 14;
    Pair pair(config);
    pair.wire_a.limits_.carries_payload = pair.wire_b.limits_.carries_payload = false;
    pair.open();
    auto slot = pair.b->post_receive(nullptr, 64u << 14);
    pair.loop.run_for(Duration::from_milliseconds(3));
    auto send = pair.a->start_send({});
    std::uint64_t next = 0;
    int depth = 0, deepest = 0;
    pair.events_a.when_low = [&] {
        deepest = std::max(deepest, ++depth);
        if (next < 64u << 14) {
            next += 256;  // first: the call may lead back here
            ASSERT_TRUE(pair.a->continue_send(**send, next - 256, nullptr, 256));
        }
        --depth;
    };
    pair.wire_a.faults.partial_burst = 0.3;
    pair.events_a.when_low();
    ASSERT_TRUE(pair.loop.run_until([&] { return next == 64u << 14 && pair.a->injected(**send); }));
    EXPECT_LE(deepest, 2) << "the test's own call, and one from inside it";
    ASSERT_TRUE(pair.a->end_send(**send));
    pair.loop.run_for(Duration::from_milliseconds(3));
    EXPECT_TRUE((*slot)->complete()) << (*slot)->chunks_complete() << " of " << (*slot)->chunks();
    EXPECT_EQ(pair.a->counters().packets_sent, 1u << 14);
    EXPECT_EQ(pair.b->counters().arrivals.accepted, 1u << 14);
    EXPECT_EQ(pair.events_a.injected, 1 << 12);
}

TEST(QueuePair, ReleaseInsideOnInjectedDropsTheRest) {
    Pair pair(kSmall);
    pair.open();
    GuardedBuffer buffer(640), other(640);
    ASSERT_TRUE(pair.b->post_receive(buffer.data(), 640));
    auto second_slot = pair.b->post_receive(other.data(), 640);
    pair.loop.run_for(Duration::from_milliseconds(3));
    const auto bytes = message_bytes(0, 640);
    auto first = pair.a->start_send({});
    auto second = pair.a->start_send({});
    bool once = false;
    pair.events_a.when_injected = [&](SendHandle& send, std::uint64_t, std::uint64_t) {
        if (&send != *first || std::exchange(once, true)) return;
        // Queued from inside: goes out after this call.
        EXPECT_TRUE(pair.a->continue_send(**first, 128, bytes.data(), 512));
        EXPECT_TRUE(pair.a->continue_send(**first, 64, bytes.data(), 64, true));
        EXPECT_TRUE(pair.a->continue_send(**second, 0, bytes.data(), 640));
        pair.a->release_send(**first);
    };
    ASSERT_TRUE(pair.a->continue_send(**first, 0, bytes.data(), 64));
    EXPECT_EQ(pair.a->send_queue_packets(), 0u);
    pair.loop.run_for(Duration::from_milliseconds(3));
    EXPECT_EQ(pair.a->counters().packets_sent, 11u);
    EXPECT_TRUE((*second_slot)->complete());
}

TEST(QueuePair, ASendReleasedInOnInjectedIsNotNamedAgain) {
    Pair pair(kSmall);
    pair.open();
    GuardedBuffer buffer(640), other(640);
    ASSERT_TRUE(pair.b->post_receive(buffer.data(), 640));
    ASSERT_TRUE(pair.b->post_receive(other.data(), 640));
    pair.loop.run_for(Duration::from_milliseconds(3));
    const auto bytes = message_bytes(0, 640);
    auto first = pair.a->start_send({});
    auto second = pair.a->start_send({});
    // The wire takes nothing of the first burst, so that all ranges go in one burst when it is writable again.
    pair.wire_a.faults.partial_burst = 1;
    ASSERT_TRUE(pair.a->continue_send(**first, 0, bytes.data(), 64));
    pair.wire_a.faults.partial_burst = 0;
    ASSERT_EQ(pair.a->send_queue_packets(), 1u);
    for (std::uint64_t at = 64; at < 256; at += 64)
        ASSERT_TRUE(pair.a->continue_send(**first, at, bytes.data() + at, 64));
    ASSERT_TRUE(pair.a->continue_send(**second, 0, bytes.data(), 64));
    int of_first = 0, of_second = 0;
    pair.events_a.when_injected = [&](SendHandle& send, std::uint64_t, std::uint64_t) {
        if (&send != *first) {
            ++of_second;
            return;
        }
        ++of_first;
        pair.a->release_send(send);
    };
    const auto bursts = pair.wire_a.bursts;
    pair.loop.run_for(Duration::from_milliseconds(3));
    EXPECT_EQ(pair.wire_a.bursts, bursts + 1);
    EXPECT_EQ(of_first, 1);
    EXPECT_EQ(of_second, 1);
}

TEST(QueuePair, ChannelsAreUsedInTurnAndArrivalsOfOtherThreadsWaitForPoll) {
    QueuePairConfig config = kSmall;
    Pair pair(config);
    pair.wire_a.limits_.channels = pair.wire_b.limits_.channels = 3;
    pair.wire_b.limits_.concurrent_channels = true;
    pair.wire_a.keep_sent = true;
    pair.open();
    GuardedBuffer buffer(640);
    auto slot = pair.b->post_receive(buffer.data(), 640);
    pair.loop.run_for(Duration::from_milliseconds(3));
    const auto bytes = message_bytes(0, 640);
    send_all(*pair.a, bytes);
    for (std::uint32_t i = 0; i < 10; ++i) EXPECT_EQ(pair.wire_a.sent[i].channel, i % 3);
    pair.loop.run_for(Duration::from_milliseconds(3));
    EXPECT_TRUE((*slot)->complete());
    EXPECT_EQ(pair.events_b.progress, 0);
    pair.wire_b.sink_->poll();
    EXPECT_EQ(pair.events_b.progress, 1);
    pair.wire_b.sink_->poll();
    EXPECT_EQ(pair.events_b.progress, 1);
    EXPECT_EQ(pair.b->counters().arrivals.accepted, 10u);
}

TEST(QueuePair, DatagramsOfTheLayerAbovePassThrough) {
    Pair pair(kSmall);
    pair.open();
    EXPECT_EQ(pair.a->max_datagram_bytes(), 1199u);
    const auto bytes = message_bytes(0, 1199);
    pair.a->send_datagram(bytes);
    pair.a->send_datagram({});
    pair.a->send_datagram(message_bytes(0, 1200));
    pair.loop.run_for(Duration::from_milliseconds(3));
    ASSERT_EQ(pair.events_b.datagrams.size(), 2u);
    EXPECT_EQ(pair.events_b.datagrams[0], bytes);
    EXPECT_TRUE(pair.events_b.datagrams[1].empty());
}

TEST(QueuePair, AVanishedPeerIsReportedOnceAndInTime) {
    QueuePairConfig config = kSmall;
    config.control_timeout = Duration::from_milliseconds(2'000);
    Pair pair(config);
    pair.open();
    pair.wire_b.drop_datagrams = 1'000'000;
    GuardedBuffer buffer(640);
    auto slot = pair.b->post_receive(buffer.data(), 640);
    pair.loop.run_for(Duration::from_milliseconds(1'990));
    EXPECT_EQ(pair.events_b.errors, 0);
    pair.loop.run_for(Duration::from_milliseconds(20));
    EXPECT_EQ(pair.events_b.errors, 1);
    EXPECT_EQ(pair.events_b.code, ErrorCode::kPeerGone);
    const auto datagrams = pair.wire_b.datagrams;
    EXPECT_LT(datagrams, 20u);
    pair.loop.run_for(Duration::from_milliseconds(100'000));
    EXPECT_EQ(pair.wire_b.datagrams, datagrams) << "no endless trickle";
    EXPECT_EQ(pair.b->post_receive(buffer.data(), 640).error().code, ErrorCode::kClosed);
    EXPECT_EQ(pair.b->start_send({}).error().code, ErrorCode::kClosed);
    pair.b->abort({ErrorCode::kIo, "again"});
    pair.loop.run_for(Duration::from_milliseconds(10));
    EXPECT_EQ(pair.events_b.errors, 1);
    pair.b->complete_receive(**slot);
}

TEST(QueuePair, AbortAndWireErrorsAreReportedFromTheLoop) {
    Pair pair(kSmall);
    pair.open();
    GuardedBuffer buffer(640);
    ASSERT_TRUE(pair.b->post_receive(buffer.data(), 640));
    pair.loop.run_for(Duration::from_milliseconds(3));
    auto send = pair.a->start_send({});
    pair.wire_a.sink_->on_wire_error({ErrorCode::kPeerGone, "port closed"});
    EXPECT_EQ(pair.events_a.errors, 0);
    const auto bytes = message_bytes(0, 640);
    EXPECT_EQ(pair.a->continue_send(**send, 0, bytes.data(), 640).error().code, ErrorCode::kClosed);
    EXPECT_EQ(pair.a->end_send(**send).error().code, ErrorCode::kClosed);
    pair.loop.run_for(Duration::from_milliseconds(1));
    EXPECT_EQ(pair.events_a.errors, 1);
    EXPECT_EQ(pair.events_a.error, "port closed");
    pair.a->release_send(**send);
}

TEST(QueuePair, DestroyedWithOperationsInFlight) {
    for (int when = 0; when < 12; ++when) {
        Pair pair(kSmall);
        pair.wire_a.faults.partial_burst = 0.5;
        pair.open();
        GuardedBuffer buffer(64 * 200);
        ASSERT_TRUE(pair.b->post_receive(buffer.data(), buffer.length()));
        pair.loop.run_for(Duration::from_milliseconds(3));
        const auto bytes = message_bytes(0, 64 * 200);
        auto send = pair.a->start_send({.immediate = 1});
        ASSERT_TRUE(pair.a->continue_send(**send, 0, bytes.data(), bytes.size()));
        pair.loop.run_for(Duration::from_microseconds(when * 100));
        (when % 2 == 0 ? pair.a : pair.b).reset();
        GuardedBuffer after = buffer;
        pair.loop.run_for(Duration::from_milliseconds(50));
        if (when % 2 == 1) {
            EXPECT_TRUE(std::equal(buffer.data(), buffer.data() + buffer.length(), after.data()));
        }
        pair.a.reset();
        pair.b.reset();
        pair.loop.run_for(Duration::from_milliseconds(50));
        EXPECT_TRUE(buffer.guards_intact());
    }
}

TEST(QueuePair, DestroyedInsideTheErrorCallback) {
    Pair pair(kSmall);
    pair.open();
    struct Destroyer final : QueuePairListener {
        std::unique_ptr<QueuePair>* victim = nullptr;
        void on_queue_pair_error(const Error& error) override {
            victim->reset();
            EXPECT_EQ(error.message, "enough");
        }
    } destroyer;
    destroyer.victim = &pair.a;
    pair.a->set_listener(&destroyer);
    pair.a->abort({ErrorCode::kIo, "enough"});
    pair.loop.run_for(Duration::from_milliseconds(1));
    EXPECT_EQ(pair.a, nullptr);
}

}  // namespace
}  // namespace farhaul::sdr
