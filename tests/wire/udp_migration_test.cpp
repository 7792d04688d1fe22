// A peer whose address changes under way: relays that are restarted, address translators that forget.
#include "udp_test_support.hpp"

namespace farhaul::udp {
namespace {

/// A client behind a relay, both ends with sinks, and the last data frame that went to the server.
struct Behind {
    explicit Behind(const UdpOptions& options = Pair::options(), bool checksum = true)
        : pair(options, options),
          relay(*pair.loop, pair.server->local_address(), [this](bool to_server, std::vector<std::byte>& packet) {
              if (to_server && static_cast<FrameType>(packet.at(12)) == FrameType::kData) recorded = packet;
              return pass ? 1 : 0;
          }) {
        pair.listen(wanting(65000, 1, checksum));
        EXPECT_TRUE(pair.connect(relay.address(), wanting(1448, 1, checksum)));
        pair.at_client.wire->attach(&at_client);
        pair.at_server.wire->attach(&at_server);
    }
    void send_both_ways() {
        pair.at_client.wire->tx_burst(packets_of(data, 1448));
        pair.at_server.wire->tx_burst(packets_of(data, 1448));
        pair.at_client.wire->send_datagram(std::span(data).first(10));
    }
    bool both_heard_within(double seconds) {
        const std::uint64_t client_before = at_client.packets, server_before = at_server.packets;
        const TimePoint until = RealLoop::clock() + Duration::from_seconds(seconds);
        TimePoint next;
        return pair.run_until(
                   [&] {
                       if (RealLoop::clock() >= next) {
                           send_both_ways();
                           next = RealLoop::clock() + Duration::from_milliseconds(5);
                       }
                       return (at_client.packets > client_before && at_server.packets > server_before) ||
                              RealLoop::clock() > until;
                   },
                   seconds + 1) &&
               at_client.packets > client_before && at_server.packets > server_before;
    }
    Pair pair;
    bool pass = true;
    std::vector<std::byte> recorded;
    TestRelay relay;
    std::vector<std::byte> data = pattern(1448, 1);
    RecordingSink at_client, at_server;
};

TEST(UdpMigration, TheConnectionFollowsAPeerToItsNewPort) {
    for (const bool checksum : {true, false}) {
        UdpOptions options = Pair::options();
        options.ping_interval = Duration::from_milliseconds(100);
        options.peer_timeout = Duration::from_milliseconds(3'000);
        Behind behind(options, checksum);
        ASSERT_TRUE(behind.both_heard_within(1));
        EXPECT_EQ(behind.pair.at_server.wire->counters().migrations, 0u);
        for (std::uint64_t round = 1; round <= 3; ++round) {
            const Address before = behind.pair.at_server.wire->peer();
            // Longer than any patience with "port unreachable" would be, and shorter than the timeout.
            behind.relay.change_ports();
            behind.pass = false;
            for (int i = 0; i < 12; ++i) {
                behind.send_both_ways();
                behind.pair.run_for(0.1);
            }
            behind.pass = true;
            ASSERT_TRUE(behind.both_heard_within(1)) << "checksum " << checksum;
            EXPECT_EQ(behind.pair.at_server.wire->counters().migrations, round);
            EXPECT_FALSE(behind.pair.at_server.wire->peer() == before);
            EXPECT_EQ(behind.pair.at_client.wire->counters().migrations, 0u);
            EXPECT_FALSE(behind.pair.at_server.wire->counters().fragmenting) << "a pause is no black hole";
            EXPECT_FALSE(behind.pair.at_client.wire->counters().fragmenting);
        }
        EXPECT_TRUE(behind.at_client.errors.empty() && behind.at_server.errors.empty());
    }
}

TEST(UdpMigration, AServerThatOnlySendsFindsItsPeerAgain) {
    UdpOptions options = Pair::options();
    options.ping_interval = Duration::from_milliseconds(50);
    options.peer_timeout = Duration::from_milliseconds(3'000);
    Behind behind(options);
    behind.relay.change_ports();
    // Nothing comes from the client but its pings, once it hears nothing.
    const std::uint64_t before = behind.at_client.packets;
    EXPECT_TRUE(behind.pair.run_until([&] {
        behind.pair.at_server.wire->tx_burst(packets_of(behind.data, 1448));
        return behind.at_client.packets > before;
    }));
    EXPECT_EQ(behind.pair.at_server.wire->counters().migrations, 1u);
}

TEST(UdpMigration, RecordedAndForgedFramesMoveNothing) {
    Behind behind;
    ASSERT_TRUE(behind.both_heard_within(1));
    const Address before = behind.pair.at_server.wire->peer();
    const int thief = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const Address server = behind.pair.server->local_address();
    const auto shout = [&](std::span<const std::byte> frame) {
        sendto(thief, frame.data(), frame.size(), 0, server.sockaddr_ptr(), server.length());
    };
    FrameHeader forged = read_header(behind.recorded.data());
    forged.type = FrameType::kPong;
    forged.immediate = kHeaderBytes;
    std::size_t asked = 0, stolen = 0;
    for (int i = 0; i < 200; ++i) {
        shout(behind.recorded);
        // Whoever cannot hear must guess the number.
        forged.generation = static_cast<std::uint32_t>(i);
        shout(build_frame(forged, {}));
        behind.pair.at_server.wire->tx_burst(packets_of(behind.data, 1448));
        behind.pair.run_for(0.001);
        std::array<std::byte, 2048> got;
        for (ssize_t size; (size = recv(thief, got.data(), got.size(), 0)) > 0;)
            ++(static_cast<FrameType>(got[12]) == FrameType::kPing ? asked : stolen);
    }
    EXPECT_GE(asked, 1u);
    EXPECT_LE(asked, 20u) << "a stranger is asked now and then, not with each frame";
    EXPECT_EQ(stolen, 0u);
    EXPECT_EQ(behind.pair.at_server.wire->counters().migrations, 0u);
    EXPECT_TRUE(behind.pair.at_server.wire->peer() == before);
    ::close(thief);
    EXPECT_TRUE(behind.both_heard_within(1));
}

TEST(UdpMigration, FingerprintsTellAddressesApart) {
    std::set<std::uint64_t> seen;
    std::size_t count = 0;
    for (const char* text : {"10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1", "[::1]:1", "[::1]:2", "[2001:db8::1]:1",
                             "[2001:db8:0:1::]:1", "[2001:db8:1::1]:1"}) {
        seen.insert(parse_address(text, AddressUse::kConnect)->fingerprint());
        ++count;
    }
    EXPECT_EQ(seen.size(), count);
    EXPECT_EQ(Address{}.fingerprint(), 0u);
}

}  // namespace
}  // namespace farhaul::udp
