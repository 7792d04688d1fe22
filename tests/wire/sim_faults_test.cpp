#include "sim_support.hpp"

namespace farhaul::wire {
namespace {

sdr::OutgoingPacket packet_with(std::uint32_t immediate, const std::byte* payload = nullptr,
                                std::uint32_t length = 100) {
    return {.payload = payload, .length = length, .immediate = immediate, .generation = 0, .channel = 0};
}
SimLinkConfig one_millisecond() { return plain_link(BitRate::from_gigabits(1), Duration::from_milliseconds(1)); }

TEST(SimFaults, AKilledEndpointIsSilentAndDeaf) {
    Pair pair(one_millisecond());
    const auto first = packet_with(1), second = packet_with(2);
    pair.first->tx_burst({&first, 1});
    pair.first->kill();
    EXPECT_EQ(pair.first->tx_burst({&second, 1}), 1u) << "its protocol code must not wait for room that never comes";
    pair.first->send_datagram(as_bytes(std::string("dead")));
    pair.second->send_datagram(as_bytes(std::string("are you there")));
    pair.second->tx_burst({&second, 1});
    ASSERT_TRUE(pair.loop.run());
    ASSERT_EQ(pair.at_second.packets.size(), 1u) << "what was on the line arrives";
    EXPECT_EQ(pair.at_second.packets[0].immediate, 1u);
    EXPECT_TRUE(pair.at_second.datagrams.empty());
    EXPECT_TRUE(pair.at_first.datagrams.empty());
    EXPECT_TRUE(pair.at_first.packets.empty());
    EXPECT_TRUE(pair.at_second.errors.empty());
}

TEST(SimFaults, APausedEndpointFindsEverythingWaitingWhenItResumes) {
    Pair pair(one_millisecond());
    pair.second->pause();
    for (std::uint32_t i = 0; i < 5; ++i)
        pair.loop.call_after(Duration::from_milliseconds(i), [&pair, i] {
            const auto packet = packet_with(i);
            pair.first->tx_burst({&packet, 1});
            pair.first->send_datagram(as_bytes(std::to_string(i)));
        });
    const auto refused = packet_with(9);
    EXPECT_EQ(pair.second->tx_burst({&refused, 1}), 0u);
    pair.loop.call_after(Duration::from_milliseconds(50), [&] { pair.second->resume(); });
    ASSERT_TRUE(pair.loop.run());
    ASSERT_EQ(pair.at_second.packets.size(), 5u);
    ASSERT_EQ(pair.at_second.datagrams.size(), 5u);
    for (std::uint32_t i = 0; i < 5; ++i) {
        EXPECT_EQ(pair.at_second.packets[i].immediate, i);
        EXPECT_EQ(pair.at_second.packets[i].at.nanoseconds(), 50'000'000);
        EXPECT_EQ(pair.at_second.datagrams[i].second, std::to_string(i));
    }
    EXPECT_EQ(pair.at_second.writable_calls, 1);
}

TEST(SimFaults, AHookMayLookChangeDelayAndDrop) {
    auto config = one_millisecond();
    config.limits.carries_payload = true;
    config.tx_backlog = Duration::from_milliseconds(1);
    config.hook = [](SimInFlight& flying) {
        if (flying.datagram) {
            flying.bytes[0] = std::byte{'X'};
            return;
        }
        if (flying.immediate == 1) flying.drop = true;
        if (flying.immediate == 2) flying.extra_delay = Duration::from_milliseconds(10);
        if (flying.immediate == 3) {
            flying.immediate = 33;
            flying.generation = 5;
            flying.bytes[0] = std::byte{7};
            flying.length = 1;
        }
    };
    Pair pair(config);
    const std::vector<std::byte> payload(100, std::byte{1});
    for (std::uint32_t i = 0; i < 5; ++i) {
        const auto packet = packet_with(i, payload.data());
        ASSERT_EQ(pair.first->tx_burst({&packet, 1}), 1u);
    }
    pair.first->send_datagram(as_bytes(std::string("hello")));
    ASSERT_TRUE(pair.loop.run());
    ASSERT_EQ(pair.at_second.packets.size(), 4u);
    EXPECT_EQ(pair.at_second.packets[0].immediate, 0u);
    EXPECT_EQ(pair.at_second.packets[1].immediate, 33u);
    EXPECT_EQ(pair.at_second.packets[1].generation, 5u);
    EXPECT_EQ(pair.at_second.packets[1].payload, std::vector<std::byte>{std::byte{7}});
    EXPECT_EQ(pair.at_second.packets[2].immediate, 4u);
    EXPECT_EQ(pair.at_second.packets[3].immediate, 2u);
    EXPECT_GE(pair.at_second.packets[3].at.nanoseconds(), 11'000'000);
    EXPECT_EQ(pair.first->counters().dropped_by_hook, 1u);
    ASSERT_EQ(pair.at_second.datagrams.size(), 1u);
    EXPECT_EQ(pair.at_second.datagrams[0].second, "Xello");
}

TEST(SimFaults, ForeignPacketsCanBeInjected) {
    auto config = one_millisecond();
    config.limits.carries_payload = true;
    Pair pair(config);
    const std::vector<std::byte> payload(10, std::byte{3});
    pair.second->inject_packet(77, 4, payload, 0, Duration::from_milliseconds(2));
    pair.second->inject_datagram(as_bytes(std::string("forged")));
    pair.second->inject_packet(78, 4, std::vector<std::byte>(5'000));
    ASSERT_TRUE(pair.loop.run());
    ASSERT_EQ(pair.at_second.packets.size(), 1u) << "one that is too long for the wire cannot come in";
    EXPECT_EQ(pair.at_second.packets[0].immediate, 77u);
    EXPECT_EQ(pair.at_second.packets[0].payload, payload);
    EXPECT_EQ(pair.at_second.packets[0].at.nanoseconds(), 2'000'000);
    ASSERT_EQ(pair.at_second.datagrams.size(), 1u);
    EXPECT_EQ(pair.at_second.datagrams[0].second, "forged");
}

TEST(SimFaults, AfterARestartPacketsOfTheOldConnectionAreForeign) {
    Pair pair(one_millisecond());
    const auto old = packet_with(1), young = packet_with(2);
    pair.first->tx_burst({&old, 1});
    pair.first->send_datagram(as_bytes(std::string("old")));
    pair.second->send_datagram(as_bytes(std::string("old")));
    pair.first->kill();
    pair.first->restart();
    pair.first->tx_burst({&young, 1});
    pair.first->send_datagram(as_bytes(std::string("new")));
    ASSERT_TRUE(pair.loop.run());
    ASSERT_EQ(pair.at_second.packets.size(), 1u);
    EXPECT_EQ(pair.at_second.packets[0].immediate, 2u);
    ASSERT_EQ(pair.at_second.datagrams.size(), 1u);
    EXPECT_EQ(pair.at_second.datagrams[0].second, "new");
    EXPECT_TRUE(pair.at_first.datagrams.empty());
    EXPECT_EQ(pair.second->counters().foreign, 2u);
    EXPECT_EQ(pair.first->counters().foreign, 1u);
}

TEST(SimFaults, ADetachedSinkHearsNothing) {
    Pair pair(one_millisecond());
    const auto packet = packet_with(1);
    pair.first->tx_burst({&packet, 1});
    pair.second->attach(nullptr);
    ASSERT_TRUE(pair.loop.run());
    EXPECT_TRUE(pair.at_second.packets.empty());
    EXPECT_EQ(pair.second->counters().undeliverable, 1u);
}

TEST(SimFaults, ThePathReportsItsErrors) {
    Pair pair(one_millisecond());
    pair.first->report_error({ErrorCode::kPeerGone, "nobody listens there"});
    ASSERT_EQ(pair.at_first.errors.size(), 1u);
    EXPECT_EQ(pair.at_first.errors[0], "nobody listens there");
}

TEST(SimFaults, ManyPairsShareOneLoop) {
    SimLoop loop;
    SimNetwork network(loop);
    std::vector<std::unique_ptr<RecordingSink>> sinks;
    std::vector<SimWire*> senders;
    for (std::uint32_t i = 0; i < 20; ++i) {
        auto ends = network.connect(plain_link(BitRate::from_gigabits(1), Duration::from_milliseconds(i)), i);
        ASSERT_TRUE(ends);
        sinks.push_back(std::make_unique<RecordingSink>(loop));
        ends->second->attach(sinks.back().get());
        senders.push_back(ends->first);
    }
    for (std::uint32_t i = 0; i < 20; ++i) {
        const auto packet = packet_with(i, nullptr, 125);
        senders[i]->tx_burst({&packet, 1});
    }
    ASSERT_TRUE(loop.run());
    for (std::uint32_t i = 0; i < 20; ++i) {
        ASSERT_EQ(sinks[i]->packets.size(), 1u);
        EXPECT_EQ(sinks[i]->packets[0].at.nanoseconds(), 1'000'000 * std::int64_t{i} + 1'000);
    }
}

}  // namespace
}  // namespace farhaul::wire
