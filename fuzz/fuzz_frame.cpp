// Frames and handshake messages of the UDP wire, as they come from anybody on the network. The first byte chooses the
// decoder; the CRC is put right first, or nothing would get past it.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "wire/udp/frame.hpp"
#include "wire/udp/handshake.hpp"

using namespace farhaul;
using namespace farhaul::udp;

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

void whole_frame(std::vector<std::byte> frame) {
    if (frame.size() < kHeaderBytes) return;
    const std::uint64_t token = frame_token(frame.data());
    for (const bool optional : {false, true})
        (void)check_frame(frame, read_header(frame.data()), token_crc(token), optional);
    const std::uint32_t crc = frame_crc(frame, token_crc(token));
    std::memcpy(frame.data() + 8, &crc, 4);
    const FrameHeader header = read_header(frame.data());
    if (check_frame(frame, header, token_crc(token), false) != FrameCheck::kOk) return;
    require(static_cast<std::uint8_t>(header.type) >= 1 && static_cast<std::uint8_t>(header.type) <= kLastFrameType);

    // Through the state machines, in the middle of a handshake.
    ClientHandshake::Config config;
    config.client_token = token == 0 ? 1 : token;
    ClientHandshake client(config, [](std::uint32_t, std::span<const std::byte> sent) {
        require(sent.size() >= kHeaderBytes && sent.size() <= kMaxFrameBytes);
        return ClientHandshake::Sent::kOk;
    });
    client.start({});
    client.on_frame({}, 0, header, frame);
    client.on_frame({}, 1, header, frame);
    if (client.state() == ClientHandshake::State::kConnected) require(client.agreed().validate().has_value());
}

void body(std::span<const std::byte> bytes) {
    if (const auto request = decode_request(bytes)) {
        ServerHandshake::Config config;
        config.channels = 2;
        config.ports = {1, 2};
        config.new_token = [] { return std::uint64_t{7}; };
        ServerHandshake server(config);
        const auto answer = server.on_request({}, {}, {}, *request, [](const RequestMessage& message) {
            require(message.parameters.validate().has_value() && message.blob.size() <= kMaxBlobBytes);
            return ServerHandshake::Decision{true, {}, {}, {}};
        });
        require(answer.size() <= kHandshakeFrameBytes);
        if (ServerHandshake::Entry* const entry = server.find(7))
            if (const auto confirm = decode_confirm(bytes)) server.confirm(*entry, *confirm);
    }
    if (const auto reply = decode_reply(bytes))
        require(reply->parameters.validate().has_value() && reply->blob.size() <= kMaxBlobBytes);
    if (const auto refuse = decode_refuse(bytes)) require(refuse->reason.size() <= kMaxBlobBytes);
    if (const auto confirm = decode_confirm(bytes))
        require(confirm->channels >= 1 && confirm->channels <= kMaxChannels);
}

void info(std::vector<std::byte> bytes) {
    if (bytes.size() >= udp::kInfoBytes) {
        const std::uint32_t crc = crc32c(std::span(bytes).first(udp::kInfoBytes - 4));
        std::memcpy(bytes.data() + udp::kInfoBytes - 4, &crc, 4);
    }
    if (const auto decoded = decode_info(bytes)) {
        require(decoded->parameters.validate().has_value() && decoded->addresses.size() <= kMaxInfoAddresses);
        require(encode_info(*decoded).size() == udp::kInfoBytes);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const auto* bytes = reinterpret_cast<const std::byte*>(data + 1);
    switch (data[0] % 3) {
        case 0:
            whole_frame({bytes, bytes + size - 1});
            break;
        case 1:
            body({bytes, size - 1});
            break;
        default:
            info({bytes, bytes + size - 1});
            break;
    }
    return 0;
}
