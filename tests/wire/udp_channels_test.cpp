// Several channels with and without threads, and what needs a network of its own: a small MTU, a full socket, a host
// that does not answer.
#include <cstdlib>
#include <thread>

#include <sched.h>

#include "udp_test_support.hpp"

namespace farhaul::udp {
namespace {

class UdpChannels : public ::testing::TestWithParam<bool> {};

TEST_P(UdpChannels, SeveralSockets) {
    UdpOptions options = Pair::options();
    options.channels = 3;
    options.receive_threads = GetParam();
    Pair pair(options, options);
    pair.listen(wanting(65000, 8));
    ASSERT_TRUE(pair.connect(pair.server->local_address(), wanting(4096, 4)));
    EXPECT_EQ(pair.at_client.parameters.channels, 3u);
    EXPECT_EQ(pair.at_server.wire->limits().concurrent_channels, GetParam());
    const auto data = pattern(2'000'000, 1);
    RecordingSink sink(data.size(), 4096);
    if (GetParam()) sink.on_data = [&] { pair.at_server.wire->wake(); };
    pair.at_server.wire->attach(&sink);
    transfer(pair, *pair.at_client.wire, sink, data, 4096, 3);
    EXPECT_GT(sink.channel_packets[0], 100u);
    EXPECT_GT(sink.channel_packets[1], 100u);
    EXPECT_GT(sink.channel_packets[2], 100u);
    if (GetParam()) {
        EXPECT_GT(sink.polls, 0);
        EXPECT_LE(static_cast<std::uint64_t>(sink.polls), sink.packets);
    }
}
INSTANTIATE_TEST_SUITE_P(ThreadsOffAndOn, UdpChannels, ::testing::Bool());

TEST(UdpChannelThreads, NothingIsDeliveredAfterDetachingUnderFire) {
    UdpOptions options = Pair::options();
    options.channels = 2;
    options.receive_threads = true;
    Pair pair(options, options);
    pair.listen(wanting(65000, 2));
    ASSERT_TRUE(pair.connect(pair.server->local_address(), wanting(1024, 2)));
    const auto data = pattern(64 * 1024, 1);
    const auto packets = packets_of(data, 1024, 2);
    for (int round = 0; round < 100; ++round) {
        auto sink = std::make_unique<RecordingSink>(data.size(), 1024);
        pair.at_server.wire->attach(sink.get());
        pair.at_client.wire->tx_burst(packets);
        pair.loop->run_once(Duration{});
        pair.at_server.wire->quiesce();
        pair.at_server.wire->attach(nullptr);
        sink.reset();  // a thread that still used it would be caught by the sanitizers
    }
    // And the connection itself, while packets are on their way.
    RecordingSink last(data.size(), 1024);
    pair.at_server.wire->attach(&last);
    pair.at_client.wire->tx_burst(packets);
    pair.at_server.wire.reset();
    const std::uint64_t seen = last.packets;
    pair.run_for(0.05);
    EXPECT_EQ(last.packets, seen);
}

TEST(UdpRelay, OneChannelIsUsedBehindARelay) {
    UdpOptions options = Pair::options();
    options.channels = 2;
    Pair pair(options, options);
    pair.listen(wanting(65000, 2));
    TestRelay relay(*pair.loop, pair.server->local_address(), nullptr);
    // The relay forwards one port. The second channel must not go past it, although on this host it could.
    ASSERT_TRUE(pair.connect(relay.address(), wanting(1448, 2)));
    EXPECT_EQ(pair.at_client.parameters.channels, 1u);
    EXPECT_EQ(pair.at_server.parameters.channels, 1u);
}

/// Runs `body` on a thread in a network namespace of its own, after `commands`. False when this user may not make one.
bool in_namespace(const char* commands, const std::function<void()>& body) {
    bool made = false;
    std::thread([&] {
        made = unshare(CLONE_NEWNET) == 0 && std::system(commands) == 0;
        if (made) body();
    }).join();
    return made;
}

TEST(UdpNamespace, MtuBelowThePacketIsSurvivedByFragmentation) {
    const bool made = in_namespace("ip link set lo mtu 1500 up", [] {
        Pair pair;
        const auto remote = pair.server->local_info(wanting(8192)), local = pair.client->local_info(wanting(8192));
        auto to = pair.client->create_wire(local, remote), from = pair.server->create_wire(remote, local);
        ASSERT_TRUE(to && from);
        RecordingSink sink(200'000, 8192), other;
        (*from)->attach(&sink);
        (*to)->attach(&other);
        transfer(pair, **to, sink, pattern(200'000, 1), 8192);
        EXPECT_TRUE((*to)->counters().fragmenting);
        EXPECT_GT((*to)->counters().too_big, 0u);
        EXPECT_EQ((*to)->counters().send_errors, 0u);
        EXPECT_TRUE(other.errors.empty());

        // With a handshake the size is found instead, and nothing is fragmented.
        pair.listen(wanting(65000));
        ASSERT_TRUE(pair.connect(wanting(8192)));
        EXPECT_EQ(pair.at_client.parameters.payload_bytes, 1448u);
    });
    if (!made) GTEST_SKIP() << "may not make a network namespace";
}

TEST(UdpNamespace, AFullChannelMakesOthersRepeatNothing) {
    // As below: nobody answers for 10.9.0.2, so packets stay charged to their socket.
    const bool made = in_namespace(
        "ip link set lo up && ip link add v0 type veth peer name v1 && ip addr add 10.9.0.1/24 dev v0 && ip link set "
        "v0 up && ip link set v1 up",
        [] {
            UdpOptions options;
            options.channels = 3;
            options.advertise = *parse_address("10.9.0.2:18520", AddressUse::kConnect);
            Pair pair(options, options);
            auto wire = pair.client->create_wire(pair.client->local_info(wanting(1448, 3)),
                                                 pair.server->local_info(wanting(1448, 3)));
            ASSERT_TRUE(wire) << wire.error().message;
            RecordingSink sink;
            (*wire)->attach(&sink);
            const auto data = pattern(60 * 1448, 1);
            const auto packets = packets_of(data, 1448, 3);
            // The middle one takes a few packets only.
            const int small = 4096, big = 1 << 20;
            setsockopt(pair.client->socket_fd(1), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
            std::size_t taken = 0;
            std::uint64_t before = 0;
            // Until the kernel has seen that the new interface is up, packets are dropped instead.
            ASSERT_TRUE(pair.run_until(
                [&] {
                    before = (*wire)->counters().packets_sent;
                    taken = (*wire)->tx_burst(packets);
                    return taken < packets.size();
                },
                10));
            EXPECT_GT((*wire)->counters().packets_sent - before, taken) << "other channels go on";
            setsockopt(pair.client->socket_fd(1), SOL_SOCKET, SO_SNDBUF, &big, sizeof(big));
            const auto rest = std::span(packets).subspan(taken);
            EXPECT_EQ((*wire)->tx_burst(rest), rest.size());
            EXPECT_EQ((*wire)->counters().packets_sent - before, packets.size());
            // Sent on purpose, they are sent again.
            EXPECT_EQ((*wire)->tx_burst(rest), rest.size());
            EXPECT_EQ((*wire)->counters().packets_sent - before, packets.size() + rest.size());
        });
    if (!made) GTEST_SKIP() << "may not make a network namespace";
}

TEST(UdpNamespace, FullSocketThenUnreachableHost) {
    // Nobody answers for 10.9.0.2: packets wait in the neighbour's queue, charged to the socket, until the kernel gives
    // up on it.
    const bool made = in_namespace(
        "ip link set lo up && ip link add v0 type veth peer name v1 && ip addr add 10.9.0.1/24 dev v0 && ip link set "
        "v0 up && ip link set v1 up",
        [] {
            UdpOptions options;
            options.socket_buffer_bytes = 32 << 10;
            options.advertise = *parse_address("10.9.0.2:18520", AddressUse::kConnect);
            options.peer_timeout = Duration::from_milliseconds(4'000);
            Pair pair(options, options);
            auto wire = pair.client->create_wire(pair.client->local_info(wanting(1448)),
                                                 pair.server->local_info(wanting(1448)));
            ASSERT_TRUE(wire) << wire.error().message;
            RecordingSink sink;
            (*wire)->attach(&sink);
            const auto data = pattern(1'000'000, 1);
            const auto packets = packets_of(data, 1448);
            // Until the kernel has seen that the new interface is up, packets are dropped instead.
            EXPECT_TRUE(pair.run_until([&] { return (*wire)->tx_burst(packets) < packets.size(); }, 10));
            EXPECT_GT((*wire)->counters().would_block, 0u);
            EXPECT_TRUE(pair.run_until([&] { return sink.writable > 0; }, 10)) << "never woken";
            EXPECT_TRUE(pair.run_until(
                [&] {
                    (*wire)->send_datagram(std::span(data).first(100));
                    return !sink.errors.empty();
                },
                20));
            ASSERT_FALSE(sink.errors.empty());
            EXPECT_EQ(sink.errors[0].code, ErrorCode::kPeerGone);
            EXPECT_NE(sink.errors[0].message.find("cannot be reached"), std::string::npos) << sink.errors[0].message;
        });
    if (!made) GTEST_SKIP() << "may not make a network namespace";
}

}  // namespace
}  // namespace farhaul::udp
