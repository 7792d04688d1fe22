// Frames, handshake messages and connection infos as bytes.
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "udp_test_support.hpp"

namespace farhaul::udp {
namespace {

FrameCheck check(std::span<const std::byte> frame, bool checksum_optional = false) {
    if (frame.size() < kHeaderBytes) return FrameCheck::kMalformed;
    const FrameHeader header = read_header(frame.data());
    return check_frame(frame, header, token_crc(header.token), checksum_optional);
}

FrameHeader data_header() {
    FrameHeader header;
    header.token = 0x0123456789abcdefull;
    header.generation = 0xa1a2a3a4u;
    header.immediate = 0xb1b2b3b4u;
    return header;
}

TEST(UdpFrame, LayoutIsAsDocumented) {
    const auto frame = build_frame(data_header(), pattern(3, 1));
    ASSERT_EQ(frame.size(), kHeaderBytes + 3);
    const std::vector<unsigned> expected = {0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01};
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(static_cast<unsigned>(frame[i]), expected[i]);
    EXPECT_EQ(static_cast<unsigned>(frame[12]), 1u);
    EXPECT_EQ(static_cast<unsigned>(frame[13]), 1u);
    EXPECT_EQ(static_cast<unsigned>(frame[14]), 1u);
    EXPECT_EQ(static_cast<unsigned>(frame[15]), 0u);
    EXPECT_EQ(static_cast<unsigned>(frame[16]), 0xa4u);
    EXPECT_EQ(static_cast<unsigned>(frame[20]), 0xb4u);
    const FrameHeader header = read_header(frame.data());
    EXPECT_EQ(header.token, data_header().token);
    EXPECT_EQ(header.generation, data_header().generation);
    EXPECT_EQ(header.immediate, data_header().immediate);
    EXPECT_EQ(check(frame), FrameCheck::kOk);
}

TEST(UdpFrame, EveryFlippedBitIsSeen) {
    const auto frame = build_frame(data_header(), pattern(100, 2));
    for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
        auto flipped = frame;
        flipped[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        EXPECT_NE(check(flipped), FrameCheck::kOk) << "bit " << bit;
    }
    for (std::size_t size = 0; size < frame.size(); ++size)
        EXPECT_NE(check(std::span(frame).first(size)), FrameCheck::kOk) << size;
}

TEST(UdpFrame, WithoutChecksumOnlyDataAndOnlyWhereAgreed) {
    FrameHeader header = data_header();
    std::vector<std::byte> frame(kHeaderBytes + 10);
    write_header(frame.data(), header);
    EXPECT_EQ(check(frame, true), FrameCheck::kOk);
    EXPECT_EQ(check(frame, false), FrameCheck::kCorrupt);
    header.type = FrameType::kClose;
    write_header(frame.data(), header);
    EXPECT_EQ(check(frame, true), FrameCheck::kCorrupt);
}

TEST(UdpFrame, TypeVersionFlagsAndSizesAreChecked) {
    FrameHeader header = data_header();
    header.type = static_cast<FrameType>(0);
    EXPECT_EQ(check(build_frame(header, {})), FrameCheck::kMalformed);
    header.type = static_cast<FrameType>(kLastFrameType + 1);
    EXPECT_EQ(check(build_frame(header, {})), FrameCheck::kMalformed);
    header = data_header();
    header.version = 2;
    EXPECT_EQ(check(build_frame(header, {})), FrameCheck::kMalformed);
    header = data_header();
    header.flags = 2;
    EXPECT_EQ(check(build_frame(header, {})), FrameCheck::kMalformed);
    header = data_header();
    header.type = FrameType::kProbe;
    header.immediate = 100;
    EXPECT_EQ(check(build_frame(header, {}, 100)), FrameCheck::kOk);
    EXPECT_EQ(check(build_frame(header, {}, 101)), FrameCheck::kMalformed);
    header.type = FrameType::kRequest;
    header.version = 0;
    EXPECT_EQ(check(build_frame(header, {}, kHandshakeFrameBytes)), FrameCheck::kOk);
    EXPECT_EQ(check(build_frame(header, {}, kHandshakeFrameBytes - 1)), FrameCheck::kMalformed)
        << "could be used to amplify";
}

RequestMessage a_request() {
    RequestMessage request;
    request.client_token = 99;
    request.parameters.payload_bytes = 8192;
    request.parameters.packets_per_chunk = 8;
    request.parameters.layout = {8, 22, 2};
    request.parameters.max_messages = 17;
    request.parameters.max_message_bytes = 123456789012ull;
    request.parameters.checksum = false;
    request.parameters.channels = 3;
    request.blob = pattern(kMaxBlobBytes, 3);
    return request;
}

TEST(UdpFrame, HandshakeMessagesSurvive) {
    const RequestMessage request = a_request();
    const auto got = decode_request(encode(request));
    ASSERT_TRUE(got);
    EXPECT_EQ(got->client_token, 99u);
    EXPECT_EQ(got->parameters, request.parameters);
    EXPECT_EQ(got->blob, request.blob);
    EXPECT_LE(encode(request).size() + kHeaderBytes, kHandshakeFrameBytes);

    ReplyMessage reply;
    reply.server_token = 7;
    reply.parameters = request.parameters;
    reply.ports = {18520, 4, 5};
    reply.blob = pattern(kMaxBlobBytes, 4);
    const auto got_reply = decode_reply(encode(reply));
    ASSERT_TRUE(got_reply);
    EXPECT_EQ(got_reply->server_token, 7u);
    EXPECT_EQ(got_reply->ports, reply.ports);
    EXPECT_EQ(got_reply->blob, reply.blob);
    EXPECT_LE(encode(reply).size() + kHeaderBytes, kHandshakeFrameBytes);

    RefuseMessage refuse;
    refuse.reason = "no\x1b[2J\nway";
    const auto got_refuse = decode_refuse(encode(refuse));
    ASSERT_TRUE(got_refuse);
    EXPECT_EQ(got_refuse->reason, "no?[2J way") << "it is shown on a terminal";

    const auto got_confirm = decode_confirm(encode(ConfirmMessage{1448, 2}));
    ASSERT_TRUE(got_confirm);
    EXPECT_EQ(got_confirm->payload_bytes, 1448u);
    EXPECT_EQ(got_confirm->channels, 2);
}

TEST(UdpFrame, HandshakeValuesOutOfRangeAreRefused) {
    const auto with = [](auto change) {
        RequestMessage request = a_request();
        change(request);
        return decode_request(encode(request)).has_value();
    };
    EXPECT_TRUE(with([](RequestMessage&) {}));
    EXPECT_FALSE(with([](RequestMessage& r) { r.client_token = 0; }));
    EXPECT_FALSE(with([](RequestMessage& r) { r.parameters.payload_bytes = 63; }));
    EXPECT_FALSE(with([](RequestMessage& r) { r.parameters.payload_bytes = kMaxPayloadBytes + 1; }));
    EXPECT_FALSE(with([](RequestMessage& r) { r.parameters.packets_per_chunk = 65; }));
    EXPECT_FALSE(with([](RequestMessage& r) { r.parameters.packets_per_chunk = 0; }));
    EXPECT_FALSE(with([](RequestMessage& r) { r.parameters.layout = {10, 18, 3}; }));
    EXPECT_FALSE(with([](RequestMessage& r) { r.parameters.max_messages = 257; }));
    EXPECT_FALSE(with([](RequestMessage& r) { r.parameters.max_message_bytes = 0; }));
    EXPECT_FALSE(with([](RequestMessage& r) { r.parameters.channels = 0; }));
    EXPECT_FALSE(with([](RequestMessage& r) { r.parameters.channels = kMaxChannels + 1; }));
    EXPECT_FALSE(with([](RequestMessage& r) { r.version_oldest = 2, r.version_newest = 1; }));
    const auto whole = encode(a_request());
    for (std::size_t size = 0; size < whole.size(); ++size)
        EXPECT_FALSE(decode_request(std::span(whole).first(size))) << size;
}

TEST(UdpFrame, RandomBytesNeverPass) {
    Random random(1);
    for (int round = 0; round < 20000; ++round) {
        std::vector<std::byte> bytes(random.below(1300));
        for (auto& byte : bytes) byte = static_cast<std::byte>(random());
        EXPECT_NE(check(bytes), FrameCheck::kOk);
        // The bodies' decoders must also stand without the CRC before them.
        if (bytes.size() > 4) std::memcpy(bytes.data(), &kMagic, 4);
        (void)decode_request(bytes);
        (void)decode_reply(bytes);
        (void)decode_refuse(bytes);
        (void)decode_confirm(bytes);
        EXPECT_FALSE(decode_info(bytes));
    }
}

TEST(UdpFrame, InfoSurvivesAndSaysWhatIsWrong) {
    InfoMessage info;
    info.token = 5;
    info.host = 6;
    info.parameters = a_request().parameters;
    info.ports = {1, 2, 3};
    info.addresses = {loopback(), *parse_address("[2001:db8::1]:1", AddressUse::kConnect)};
    const auto bytes = encode_info(info);
    ASSERT_EQ(bytes.size(), kInfoBytes);
    const auto got = decode_info(bytes);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(got->token, 5u);
    EXPECT_EQ(got->host, 6u);
    EXPECT_EQ(got->parameters, info.parameters);
    EXPECT_EQ(got->ports, info.ports);
    ASSERT_EQ(got->addresses.size(), 2u);
    EXPECT_EQ(got->addresses[1].to_string(), "[2001:db8::1]:0");
    auto changed = bytes;
    changed[100] ^= std::byte{1};
    EXPECT_FALSE(decode_info(changed));
    EXPECT_NE(decode_info(changed).error().message.find("changed"), std::string::npos);
    EXPECT_NE(decode_info(std::span(bytes).first(100)).error().message.find("cut short"), std::string::npos);
}

TEST(UdpAddress, Parsing) {
    const auto text = [](std::string_view in, AddressUse use) {
        auto result = parse_address(in, use);
        return result ? result->to_string() : "error: " + result.error().message;
    };
    EXPECT_EQ(text("127.0.0.1:5", AddressUse::kConnect), "127.0.0.1:5");
    EXPECT_EQ(text("127.0.0.1", AddressUse::kConnect), "127.0.0.1:18520");
    EXPECT_EQ(text("[::1]:7", AddressUse::kConnect), "[::1]:7");
    EXPECT_EQ(text("[::1]", AddressUse::kConnect), "[::1]:18520");
    EXPECT_EQ(text("::1", AddressUse::kConnect), "[::1]:18520");
    EXPECT_EQ(text(":18520", AddressUse::kListen), "[::]:18520");
    EXPECT_EQ(text(":0", AddressUse::kListen), "[::]:0");
    EXPECT_EQ(text("*:9", AddressUse::kListen), "[::]:9");
    for (const std::string_view bad :
         {"", ":5", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:x", "127.0.0.1:", "[::1", "[::1]5", "[::1]:-1"})
        EXPECT_TRUE(text(bad, AddressUse::kConnect).starts_with("error")) << bad;
    EXPECT_TRUE(loopback(5).mapped_to_ipv6().is_mapped_ipv4());
    EXPECT_EQ(loopback(5).mapped_to_ipv6().to_string(), "127.0.0.1:5");
    EXPECT_TRUE(loopback(5).mapped_to_ipv6().is_loopback());
}

TEST(UdpAddress, ErrorsSayWhatToDo) {
    const auto lookup = parse_address("no such host:1", AddressUse::kConnect);
    ASSERT_FALSE(lookup);
    EXPECT_NE(lookup.error().message.find("in numbers"), std::string::npos) << lookup.error().message;
    const auto loop = RealLoop::create().value();
    UdpOptions options;
    options.bind = *parse_address("192.0.2.77:0", AddressUse::kListen);
    const auto bound = UdpEndpoint::open(*loop, options);
    ASSERT_FALSE(bound);
    EXPECT_NE(bound.error().message.find("`ip address`"), std::string::npos) << bound.error().message;

    const auto client = UdpEndpoint::open(*loop, {}).value();
    std::optional<Error> error;
    client->connect(*parse_address("255.255.255.255:9", AddressUse::kConnect), {}, {}, [&](Result<Connected> result) {
        if (!result) error = result.error();
    });
    loop->run_until([&] { return error.has_value(); }, Duration::from_seconds(5));
    ASSERT_TRUE(error);
    EXPECT_TRUE(error->message.find("broadcast") != std::string::npos ||
                error->message.find("no way") != std::string::npos)
        << error->message;
}

TEST(UdpAddress, EveryByteIsSetWhereverItIsMade) {
    alignas(Address) std::array<std::byte, sizeof(Address)> memory;
    memory.fill(std::byte{0xa5});
    const Address& mapped = *new (memory.data()) Address(loopback(5).mapped_to_ipv6());
    EXPECT_TRUE(mapped.is_mapped_ipv4());
    const sockaddr_in6& raw = *reinterpret_cast<const sockaddr_in6*>(mapped.sockaddr_ptr());
    EXPECT_EQ(raw.sin6_scope_id, 0u);
    EXPECT_EQ(raw.sin6_flowinfo, 0u);
}

}  // namespace
}  // namespace farhaul::udp
