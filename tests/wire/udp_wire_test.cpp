// The UDP wire over real sockets on loopback.
#include <algorithm>

#include "udp_test_support.hpp"
#include "wire/udp/blast.hpp"

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

TEST(UdpWire, EverySizeAndNoPayload) {
    Pair pair;
    pair.listen(wanting(65000));
    ASSERT_TRUE(pair.connect(wanting(1000)));
    for (std::size_t size = 0; size <= 2100; size += size < 70 ? 1 : 101) {
        const auto data = pattern(size, static_cast<unsigned>(size));
        RecordingSink sink(size, 1000);
        pair.at_server.wire->attach(&sink);
        std::vector<sdr::OutgoingPacket> packets = packets_of(data, 1000);
        if (size == 0) packets.push_back({nullptr, 0, 0, 3, 0});
        ASSERT_EQ(pair.at_client.wire->tx_burst(packets), packets.size());
        ASSERT_TRUE(pair.run_until([&] { return sink.packets == packets.size(); })) << size;
        EXPECT_EQ(sink.buffer, data) << size;
        pair.at_server.wire->attach(nullptr);
    }
}

TEST(UdpWire, ProbingFindsWhatLoopbackCarries) {
    Pair pair;
    pair.listen(wanting(kMaxPayloadBytes));
    ASSERT_TRUE(pair.connect(wanting(kMaxPayloadBytes)));
    EXPECT_EQ(pair.at_client.parameters.payload_bytes, kMaxPayloadBytes);
    RecordingSink sink(kMaxPayloadBytes * 3, kMaxPayloadBytes);
    pair.at_server.wire->attach(&sink);
    transfer(pair, *pair.at_client.wire, sink, pattern(kMaxPayloadBytes * 3, 1), kMaxPayloadBytes);
}

TEST(UdpWire, Ipv6) {
    UdpOptions options;
    options.bind = *parse_address("[::1]:0", AddressUse::kListen);
    const auto probe = RealLoop::create().value();
    if (!UdpEndpoint::open(*probe, options)) GTEST_SKIP() << "this host has no IPv6";
    Pair pair(options, UdpOptions{});
    pair.listen();
    ASSERT_TRUE(pair.connect(wanting(4096))) << pair.error->message;
    RecordingSink sink(100'000, 4096);
    pair.at_server.wire->attach(&sink);
    transfer(pair, *pair.at_client.wire, sink, pattern(100'000, 1), 4096);
}

TEST(UdpWire, WildcardServerAnswersFromTheAddressThatWasAsked) {
    UdpOptions any;
    Pair pair(any, any);
    pair.listen();
    // 127.0.0.2 is not the address that the kernel would choose as a source.
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(pair.server->local_address().port());
    address.sin_addr.s_addr = htonl(0x7f000002);
    ASSERT_TRUE(
        pair.connect(Address::from_sockaddr(reinterpret_cast<sockaddr*>(&address), sizeof(address)), wanting(1448)))
        << pair.error->message;
    RecordingSink sink(100'000, 1448);
    pair.at_client.wire->attach(&sink);
    transfer(pair, *pair.at_server.wire, sink, pattern(100'000, 1), 1448);
}

TEST(UdpWire, WithoutChecksumWhenBothWantThat) {
    Pair pair;
    pair.listen(wanting(65000, 1, false));
    ASSERT_TRUE(pair.connect(wanting(4096, 1, false)));
    EXPECT_FALSE(pair.at_client.parameters.checksum);
    RecordingSink sink(1'000'000, 4096);
    pair.at_server.wire->attach(&sink);
    transfer(pair, *pair.at_client.wire, sink, pattern(1'000'000, 1), 4096);

    Pair one_sided;
    one_sided.listen(wanting(65000, 1, true));
    ASSERT_TRUE(one_sided.connect(wanting(4096, 1, false)));
    EXPECT_TRUE(one_sided.at_server.parameters.checksum);
}

TEST(UdpWire, SegmentationThatFailsAtRunTimeLosesNothing) {
    Pair pair;
    pair.listen();
    ASSERT_TRUE(pair.connect(wanting(1448)));
    if (!pair.at_client.wire->segmentation_offload()) GTEST_SKIP() << "this kernel has no UDP segmentation";
    // The probe has passed; now the kernel refuses segmentation as it does on devices without checksum offload.
    const int on = 1;
    ASSERT_EQ(setsockopt(pair.client->socket_fd(0), SOL_SOCKET, SO_NO_CHECK, &on, sizeof(on)), 0);
    RecordingSink sink(500'000, 1448);
    pair.at_server.wire->attach(&sink);
    transfer(pair, *pair.at_client.wire, sink, pattern(500'000, 1), 1448);
    EXPECT_FALSE(pair.at_client.wire->segmentation_offload());
    EXPECT_GT(pair.at_client.wire->counters().gso_fallbacks, 0u);
    EXPECT_EQ(pair.at_client.wire->counters().send_errors, 0u);
    EXPECT_EQ(sink.packets, (500'000 + 1447) / 1448u) << "none lost, none twice";
}

TEST(UdpWire, WithoutOffloads) {
    UdpOptions plain = Pair::options();
    plain.gso = plain.gro = false;
    Pair pair(plain, plain);
    pair.listen();
    ASSERT_TRUE(pair.connect(wanting(1448)));
    EXPECT_FALSE(pair.at_client.wire->segmentation_offload());
    RecordingSink sink(500'000, 1448);
    pair.at_server.wire->attach(&sink);
    transfer(pair, *pair.at_client.wire, sink, pattern(500'000, 1), 1448);
}

TEST(UdpWire, ClosedPortIsReportedSoonAndALateListenerIsFound) {
    Pair pair;
    const Address gone = pair.server->local_address();
    pair.server.reset();
    const TimePoint start = RealLoop::clock();
    EXPECT_FALSE(pair.connect(gone, wanting(1448)));
    ASSERT_TRUE(pair.error);
    EXPECT_EQ(pair.error->code, ErrorCode::kPeerGone);
    EXPECT_NE(pair.error->message.find("nobody listens"), std::string::npos) << pair.error->message;
    EXPECT_GE((RealLoop::clock() - start).seconds(), 0.9);
    EXPECT_LT((RealLoop::clock() - start).seconds(), 3.0);

    // Whoever comes up within that second is found.
    pair.error.reset();
    Timer late(
        pair.loop->timers(),
        [](void* self) {
            auto& p = *static_cast<Pair*>(self);
            UdpOptions options = Pair::options();
            options.bind = p.gone;
            p.server = UdpEndpoint::open(*p.loop, options).value();
            p.listen();
        },
        &pair);
    pair.gone = gone;
    late.arm(RealLoop::clock() + Duration::from_milliseconds(300));
    EXPECT_TRUE(pair.connect(gone, wanting(1448))) << pair.error->message;
}

TEST(UdpWire, RefusalReachesTheClient) {
    Pair pair;
    pair.server->listen([](const IncomingRequest&) { return RequestAnswer::refuse("maintenance until noon"); },
                        [](Connected) { FAIL(); });
    EXPECT_FALSE(pair.connect(pair.server->local_address(), wanting(1448)));
    ASSERT_TRUE(pair.error);
    EXPECT_EQ(pair.error->code, ErrorCode::kProtocol);
    EXPECT_NE(pair.error->message.find("maintenance until noon"), std::string::npos);
    EXPECT_EQ(pair.server->counters().requests_refused, 1u);
}

TEST(UdpWire, BadParametersAndTooBigABlobAreRefusedHere) {
    Pair pair;
    pair.listen();
    EXPECT_FALSE(pair.connect(pair.server->local_address(), wanting(10)));
    EXPECT_EQ(pair.error->code, ErrorCode::kInvalidArgument);
    pair.error.reset();
    EXPECT_FALSE(pair.connect(pair.server->local_address(), wanting(1448), pattern(kMaxBlobBytes + 1, 1)));
    EXPECT_EQ(pair.error->code, ErrorCode::kInvalidArgument);
}

TEST(UdpWire, CloseIsToldToThePeer) {
    Pair pair;
    pair.listen();
    ASSERT_TRUE(pair.connect(wanting(1448)));
    RecordingSink sink;
    pair.at_server.wire->attach(&sink);
    // Destroying the wire from inside its own callback is allowed.
    sink.on_error = [&] { pair.at_server.wire.reset(); };
    pair.at_client.wire.reset();
    ASSERT_TRUE(pair.run_until([&] { return !sink.errors.empty(); }, 2));
    EXPECT_EQ(sink.errors[0].code, ErrorCode::kPeerGone);
    EXPECT_NE(sink.errors[0].message.find("closed the connection"), std::string::npos);
    EXPECT_EQ(pair.server->connections(), 0u);
    EXPECT_EQ(pair.client->connections(), 0u);
    pair.run_for(0.3);
    EXPECT_EQ(sink.errors.size(), 1u);
}

TEST(UdpWire, LostCloseIsRepeatedToAPeerThatGoesOn) {
    Pair pair;
    pair.listen();
    bool pass = true;
    TestRelay relay(*pair.loop, pair.server->local_address(),
                    [&](bool, std::vector<std::byte>&) { return pass ? 1 : 0; });
    ASSERT_TRUE(pair.connect(relay.address(), wanting(1448)));
    RecordingSink sink;
    pair.at_client.wire->attach(&sink);
    pass = false;
    pair.at_server.wire.reset();
    pair.run_for(0.6);
    EXPECT_TRUE(sink.errors.empty());
    pass = true;
    const auto data = pattern(1448, 1);
    pair.at_client.wire->tx_burst(packets_of(data, 1448));
    ASSERT_TRUE(pair.run_until([&] { return !sink.errors.empty(); }, 2));
    EXPECT_GE(pair.server->counters().stale, 1u);
}

TEST(UdpWire, VanishedPeerIsNoticedWithinTheTimeout) {
    UdpOptions options = Pair::options();
    options.ping_interval = Duration::from_milliseconds(50);
    options.peer_timeout = Duration::from_milliseconds(400);
    Pair pair(options, options);
    pair.listen();
    bool pass = true;
    TestRelay relay(*pair.loop, pair.server->local_address(),
                    [&](bool, std::vector<std::byte>&) { return pass ? 1 : 0; });
    ASSERT_TRUE(pair.connect(relay.address(), wanting(1448)));
    RecordingSink sink;
    pair.at_client.wire->attach(&sink);
    pair.run_for(0.8);
    EXPECT_TRUE(sink.errors.empty()) << "pings keep an idle connection alive: " << sink.errors[0].message;
    pass = false;
    const TimePoint start = RealLoop::clock();
    ASSERT_TRUE(pair.run_until([&] { return !sink.errors.empty(); }, 5));
    EXPECT_EQ(sink.errors[0].code, ErrorCode::kPeerGone);
    EXPECT_LT((RealLoop::clock() - start).seconds(), 2.0);
    // Of a broken wire nothing is expected.
    const auto data = pattern(1448, 1);
    EXPECT_EQ(pair.at_client.wire->tx_burst(packets_of(data, 1448)), 1u);
}

TEST(UdpWire, PeerWhoseProcessEndedIsGoneAfterTheTimeoutAndNotBefore) {
    UdpOptions options = Pair::options();
    options.ping_interval = Duration::from_milliseconds(100);
    options.peer_timeout = Duration::from_milliseconds(1'500);
    Pair pair(options, options);
    const auto remote = pair.server->local_info(wanting(1448)), local = pair.client->local_info(wanting(1448));
    auto wire = pair.client->create_wire(local, remote);
    ASSERT_TRUE(wire) << wire.error().message;
    RecordingSink sink;
    (*wire)->attach(&sink);
    pair.server.reset();
    const TimePoint start = RealLoop::clock();
    const auto data = pattern(1448, 1);
    ASSERT_TRUE(pair.run_until(
        [&] {
            (*wire)->tx_burst(packets_of(data, 1448));  // each is refused
            return !sink.errors.empty();
        },
        10));
    EXPECT_GE((RealLoop::clock() - start).seconds(), 1.4) << "a refusal alone ends nothing";
    EXPECT_LT((RealLoop::clock() - start).seconds(), 4.0);
    EXPECT_EQ(sink.errors[0].code, ErrorCode::kPeerGone);
    EXPECT_NE(sink.errors[0].message.find("port is closed"), std::string::npos) << sink.errors[0].message;
}

TEST(UdpWire, ForeignStaleMalformedAndCorruptFramesAreCountedAndDropped) {
    Pair pair;
    pair.listen();
    std::vector<std::byte> sample;
    bool flip = false;
    TestRelay relay(*pair.loop, pair.server->local_address(), [&](bool to_server, std::vector<std::byte>& packet) {
        if (to_server && static_cast<FrameType>(packet[12]) == FrameType::kData) {
            sample = packet;
            if (flip) packet[packet.size() / 2] ^= std::byte{4};
        }
        return 1;
    });
    ASSERT_TRUE(pair.connect(relay.address(), wanting(1448)));
    RecordingSink sink(1448, 1448);
    pair.at_server.wire->attach(&sink);
    const auto data = pattern(1448, 1);
    transfer(pair, *pair.at_client.wire, sink, data, 1448);
    ASSERT_EQ(sample.size(), kHeaderBytes + 1448);

    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    const auto send_raw = [&](std::span<const std::byte> bytes) {
        const Address to = pair.server->local_address();
        ASSERT_GE(sendto(fd, bytes.data(), bytes.size(), 0, to.sockaddr_ptr(), to.length()), 0);
    };
    const auto expect_count = [&](std::uint64_t UdpCounters::* counter, std::uint64_t value) {
        EXPECT_TRUE(pair.run_until([&] { return pair.server->counters().*counter == value; }, 2))
            << pair.server->counters().*counter;
    };
    // Foreign: another token, with a right CRC.
    FrameHeader header = read_header(sample.data());
    header.token ^= 1;
    send_raw(build_frame(header, std::span(sample).subspan(kHeaderBytes)));
    expect_count(&UdpCounters::foreign, 1);
    // Malformed: nothing at all, too short, an unknown type, more payload than agreed.
    send_raw({});
    send_raw(std::span(sample).first(23));
    header = read_header(sample.data());
    header.type = static_cast<FrameType>(99);
    send_raw(build_frame(header, {}));
    header.type = FrameType::kData;
    send_raw(build_frame(header, pattern(1449, 1)));
    expect_count(&UdpCounters::malformed, 4);
    // Corrupt: each byte but the token's (which would make it foreign) changed in turn.
    for (std::size_t i = 8; i < sample.size(); i += 97) {
        auto changed = sample;
        changed[i] ^= std::byte{0x10};
        send_raw(changed);
    }
    expect_count(&UdpCounters::corrupt, (sample.size() - 8 + 96) / 97);
    flip = true;
    pair.at_client.wire->tx_burst(packets_of(data, 1448));
    expect_count(&UdpCounters::corrupt, (sample.size() - 8 + 96) / 97 + 1);
    flip = false;
    EXPECT_EQ(sink.packets, 1u);
    EXPECT_EQ(sink.buffer, data);
    // Stale: the connection is over.
    pair.at_server.wire.reset();
    send_raw(sample);
    expect_count(&UdpCounters::stale, 1);
    EXPECT_EQ(sink.packets, 1u);
    ::close(fd);
}

TEST(UdpWire, RestartedPeerIsForeign) {
    Pair pair;
    pair.listen();
    ASSERT_TRUE(pair.connect(wanting(1448)));
    RecordingSink sink(1448, 1448);
    const auto data = pattern(1448, 1);
    // The server's process starts anew on the same port and knows no tokens.
    UdpOptions again = Pair::options();
    again.bind = pair.server->local_address();
    Connected old = std::move(pair.at_server);
    pair.at_server = {};
    pair.server.reset();
    old.wire->attach(&sink);  // harmless: it was closed with its endpoint
    pair.server = UdpEndpoint::open(*pair.loop, again).value();
    pair.listen();
    pair.at_client.wire->tx_burst(packets_of(data, 1448));
    EXPECT_TRUE(pair.run_until([&] { return pair.server->counters().foreign >= 1; }, 2));
    EXPECT_EQ(sink.packets, 0u);
    Connected first = std::move(pair.at_client);
    ASSERT_TRUE(pair.connect(wanting(1448)));
    EXPECT_EQ(pair.server->connections(), 1u);
}

TEST(UdpWire, RelayInTheMiddleWithLossReorderingAndDuplicates) {
    Pair pair;
    pair.listen();
    Random random(1);
    std::vector<std::byte> held[2];
    TestRelay relay(*pair.loop, pair.server->local_address(), [&](bool to_server, std::vector<std::byte>& packet) {
        if (random.chance(0.1)) std::swap(packet, held[to_server]);  // one packet waits for the next chance: reordering
        if (packet.empty() || random.chance(0.2)) return 0;
        return random.chance(0.1) ? 2 : 1;
    });
    ASSERT_TRUE(pair.connect(relay.address(), wanting(1448))) << pair.error->message;
    EXPECT_EQ(pair.at_client.parameters, pair.at_server.parameters);
    RecordingSink sink(200'000, 1448);
    pair.at_server.wire->attach(&sink);
    const auto data = pattern(200'000, 5);
    const auto packets = packets_of(data, 1448);
    // A crude reliability: everything again until all is there.
    ASSERT_TRUE(pair.run_until(
        [&] {
            if (sink.distinct < packets.size()) pair.at_client.wire->tx_burst(packets);
            return sink.distinct == packets.size();
        },
        20));
    EXPECT_EQ(sink.buffer, data);
}

TEST(UdpWire, MtuBlackHoleIsFoundByProbing) {
    Pair pair;
    pair.listen(wanting(65000));
    TestRelay relay(*pair.loop, pair.server->local_address(),
                    [](bool, std::vector<std::byte>& packet) { return packet.size() <= 1472 ? 1 : 0; });
    ASSERT_TRUE(pair.connect(relay.address(), wanting(8192))) << pair.error->message;
    EXPECT_EQ(pair.at_client.parameters.payload_bytes, 1448u);
    EXPECT_EQ(pair.at_server.parameters.payload_bytes, 1448u);
    RecordingSink sink(100'000, 1448);
    pair.at_server.wire->attach(&sink);
    transfer(pair, *pair.at_client.wire, sink, pattern(100'000, 1), 1448);
}

TEST(UdpWire, MtuBlackHoleThatOpensLaterIsNoticed) {
    UdpOptions options = Pair::options();
    options.ping_interval = Duration::from_milliseconds(20);
    Pair pair(options, options);
    pair.listen(wanting(65000));
    std::size_t largest = 65536;
    TestRelay relay(*pair.loop, pair.server->local_address(),
                    [&](bool, std::vector<std::byte>& packet) { return packet.size() <= largest ? 1 : 0; });
    ASSERT_TRUE(pair.connect(relay.address(), wanting(8192)));
    EXPECT_EQ(pair.at_client.parameters.payload_bytes, 8192u);
    const auto data = pattern(8192, 1);
    const auto keep_sending = [&] { pair.at_client.wire->tx_burst(packets_of(data, 8192)); };
    for (int i = 0; i < 20; ++i) {
        keep_sending();
        pair.run_for(0.02);
    }
    EXPECT_EQ(pair.at_client.wire->counters().big_pings_lost, 0u);
    EXPECT_FALSE(pair.at_client.wire->counters().fragmenting);
    largest = 1472;
    ASSERT_TRUE(pair.run_until(
        [&] {
            keep_sending();
            pair.at_server.wire->send_datagram(data.empty() ? std::span<const std::byte>{} : std::span(data).first(10));
            return pair.at_client.wire->counters().fragmenting;
        },
        5));
    EXPECT_GE(pair.at_client.wire->counters().big_pings_lost, kBigPingsToBlackHole - 1);
}

TEST(UdpWire, ManyClientsShareAServer) {
    Pair pair;
    std::vector<Connected> accepted;
    pair.server->listen([](const IncomingRequest&) { return RequestAnswer::accept(ConnectParameters{}); },
                        [&](Connected connected) { accepted.push_back(std::move(connected)); });
    std::vector<Connected> mine;
    constexpr int kClients = 50;
    for (int i = 0; i < kClients; ++i)
        pair.client->connect(pair.server->local_address(), wanting(1448), pattern(4, static_cast<unsigned>(i)),
                             [&](Result<Connected> result) {
                                 ASSERT_TRUE(result) << result.error().message;
                                 mine.push_back(std::move(*result));
                             });
    ASSERT_TRUE(pair.run_until([&] { return mine.size() == kClients && accepted.size() == kClients; }));
    std::vector<std::unique_ptr<RecordingSink>> sinks;
    for (auto& connected : accepted) {
        sinks.push_back(std::make_unique<RecordingSink>());
        connected.wire->attach(sinks.back().get());
    }
    for (auto& connected : mine) connected.wire->send_datagram(pattern(1, 1));
    ASSERT_TRUE(pair.run_until(
        [&] { return std::ranges::all_of(sinks, [](const auto& sink) { return sink->datagrams.size() == 1; }); }));
}

TEST(UdpWire, OutOfBandConnection) {
    UdpOptions options;
    options.channels = 2;
    Pair pair(options, options);
    ConnectParameters a = wanting(4096, 2), b = wanting(8192, 1);
    b.max_messages = 5;
    const auto info_a = pair.server->local_info(a), info_b = pair.client->local_info(b);
    EXPECT_EQ(info_a.size(), UdpEndpoint::kInfoBytes);
    auto wire_a = pair.server->create_wire(info_a, info_b), wire_b = pair.client->create_wire(info_b, info_a);
    ASSERT_TRUE(wire_a) << wire_a.error().message;
    ASSERT_TRUE(wire_b) << wire_b.error().message;
    EXPECT_EQ((*wire_a)->parameters(), (*wire_b)->parameters());
    EXPECT_EQ((*wire_a)->parameters().payload_bytes, 4096u);
    EXPECT_EQ((*wire_a)->parameters().max_messages, 5u);
    RecordingSink sink(100'000, 4096);
    (*wire_a)->attach(&sink);
    transfer(pair, **wire_b, sink, pattern(100'000, 1), 4096);

    EXPECT_FALSE(pair.server->create_wire(info_a, info_b)) << "used already";
    EXPECT_FALSE(pair.server->create_wire(pair.server->local_info(a), pattern(256, 1)));
    const auto own = pair.server->local_info(a);
    EXPECT_FALSE(pair.server->create_wire(own, own));
    b.packets_per_chunk = 2;
    EXPECT_FALSE(pair.server->create_wire(pair.server->local_info(a), pair.client->local_info(b)));
}

TEST(UdpWire, BlastSmoke) {
    BlastOptions options;
    options.duration = Duration::from_milliseconds(50);
    for (const bool offload : {true, false}) {
        options.segmentation_offload = offload;
        const auto bare = run_blast(options);
        const auto wire = run_wire_blast(options);
        ASSERT_TRUE(bare) << bare.error().message;
        ASSERT_TRUE(wire) << wire.error().message;
        EXPECT_GT(bare->bytes_per_second, 1e6);
        EXPECT_GT(wire->bytes_per_second, 1e6);
    }
}

}  // namespace
}  // namespace farhaul::udp
