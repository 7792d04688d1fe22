// The UDP wire over real sockets on loopback.
#include "udp_test_support.hpp"

namespace farhaul::udp {
namespace {

TEST(UdpWire, TransfersBothWays) {
    Pair pair;
    pair.listen();
    ConnectParameters wanted;
    wanted.payload_bytes = 1448;
    ASSERT_TRUE(pair.connect(pair.server->local_address(), wanted, pattern(100, 1)));
    EXPECT_EQ(pair.at_client.parameters, pair.at_server.parameters);
    EXPECT_EQ(pair.at_client.parameters.payload_bytes, 1448u);
    EXPECT_EQ(pair.at_server.blob, pattern(100, 1));
    auto reversed = pattern(100, 1);
    std::reverse(reversed.begin(), reversed.end());
    EXPECT_EQ(pair.at_client.blob, reversed);

    const auto data = pattern(1'000'001, 2);
    RecordingSink at_server(data.size(), 1448), at_client(data.size(), 1448);
    pair.at_server.wire->attach(&at_server);
    pair.at_client.wire->attach(&at_client);
    const auto packets = packets_of(data, 1448);
    EXPECT_EQ(pair.at_client.wire->tx_burst(packets), packets.size());
    EXPECT_EQ(pair.at_server.wire->tx_burst(packets), packets.size());
    pair.at_client.wire->send_datagram(pattern(10, 3));
    pair.at_server.wire->send_datagram(pattern(1176, 4));
    ASSERT_TRUE(pair.run_until([&] {
        return at_server.packets == packets.size() && at_client.packets == packets.size() &&
               !at_server.datagrams.empty() && !at_client.datagrams.empty();
    })) << at_server.packets
        << " " << at_client.packets << " of " << packets.size();
    EXPECT_EQ(at_server.buffer, data);
    EXPECT_EQ(at_client.buffer, data);
    EXPECT_EQ(at_server.last_generation, 7u);
    EXPECT_EQ(at_server.datagrams[0], pattern(10, 3));
    EXPECT_EQ(at_client.datagrams[0], pattern(1176, 4));
    EXPECT_EQ(pair.server->counters().frames_dropped(), 0u);
}

}  // namespace
}  // namespace farhaul::udp
