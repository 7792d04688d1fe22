#include "wire/udp/frame.hpp"

#include <algorithm>

#include "base/bytes.hpp"

namespace farhaul::udp {

namespace {

void write_parameters(ByteWriter& writer, const ConnectParameters& p) {
    writer.write<std::uint32_t>(p.payload_bytes);
    writer.write<std::uint8_t>(static_cast<std::uint8_t>(p.packets_per_chunk));
    writer.write<std::uint8_t>(p.layout.message_bits);
    writer.write<std::uint8_t>(p.layout.packet_bits);
    writer.write<std::uint8_t>(p.layout.fragment_bits);
    writer.write<std::uint32_t>(p.max_messages);
    writer.write<std::uint64_t>(p.max_message_bytes);
    writer.write<std::uint8_t>(p.checksum ? 1 : 0);
    writer.write<std::uint8_t>(static_cast<std::uint8_t>(p.channels));
    writer.write<std::uint16_t>(0);
}

/// False when the bytes end early or a value is out of range.
bool read_parameters(ByteReader& reader, ConnectParameters& p) {
    p.payload_bytes = reader.read<std::uint32_t>();
    p.packets_per_chunk = reader.read<std::uint8_t>();
    p.layout.message_bits = reader.read<std::uint8_t>();
    p.layout.packet_bits = reader.read<std::uint8_t>();
    p.layout.fragment_bits = reader.read<std::uint8_t>();
    p.max_messages = reader.read<std::uint32_t>();
    p.max_message_bytes = reader.read<std::uint64_t>();
    const auto checksum = reader.read<std::uint8_t>();
    p.channels = reader.read<std::uint8_t>();
    reader.read<std::uint16_t>();
    p.checksum = checksum != 0;
    return reader.ok() && checksum <= 1 && p.validate().has_value();
}

void write_blob(ByteWriter& writer, std::span<const std::byte> blob) {
    writer.write<std::uint16_t>(static_cast<std::uint16_t>(std::min<std::size_t>(blob.size(), kMaxBlobBytes)));
    writer.write_bytes(blob.first(std::min<std::size_t>(blob.size(), kMaxBlobBytes)));
}

bool read_blob(ByteReader& reader, std::vector<std::byte>& blob) {
    const std::uint16_t size = reader.read<std::uint16_t>();
    if (size > kMaxBlobBytes) return false;
    const auto bytes = reader.read_bytes(size);
    blob.assign(bytes.begin(), bytes.end());
    return reader.ok();
}

void write_ports(ByteWriter& writer, const std::array<std::uint16_t, kMaxChannels>& ports) {
    for (const std::uint16_t port : ports) writer.write<std::uint16_t>(port);
}

bool read_ports(ByteReader& reader, std::array<std::uint16_t, kMaxChannels>& ports, std::uint32_t channels) {
    for (std::uint16_t& port : ports) port = reader.read<std::uint16_t>();
    return reader.ok() &&
           std::all_of(ports.begin(), ports.begin() + channels, [](std::uint16_t port) { return port != 0; });
}

/// One address of an info: family, 16 bytes, scope.
void write_address(ByteWriter& writer, const Address& address) {
    std::array<std::byte, 16> bytes{};
    std::uint32_t scope = 0;
    if (address.is_ipv6()) {
        const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address.sockaddr_ptr());
        std::memcpy(bytes.data(), &v6->sin6_addr, 16);
        scope = v6->sin6_scope_id;
    } else {
        std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in*>(address.sockaddr_ptr())->sin_addr, 4);
    }
    writer.write<std::uint8_t>(address.is_ipv6() ? 6 : 4);
    writer.write_bytes(bytes);
    writer.write<std::uint32_t>(scope);
}

std::optional<Address> read_address(ByteReader& reader) {
    const auto family = reader.read<std::uint8_t>();
    const auto bytes = reader.read_bytes(16);
    const auto scope = reader.read<std::uint32_t>();
    if (!reader.ok()) return std::nullopt;
    if (family == 6) {
        sockaddr_in6 v6{};
        v6.sin6_family = AF_INET6;
        std::memcpy(&v6.sin6_addr, bytes.data(), 16);
        v6.sin6_scope_id = scope;
        return Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&v6), sizeof(v6));
    }
    if (family != 4) return std::nullopt;
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    std::memcpy(&v4.sin_addr, bytes.data(), 4);
    return Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&v4), sizeof(v4));
}

}  // namespace

FrameCheck check_frame(std::span<const std::byte> frame, const FrameHeader& header, std::uint32_t crc_of_token,
                       bool checksum_optional) {
    if (frame.size() < kHeaderBytes) return FrameCheck::kMalformed;
    const bool has_crc = (header.flags & kFlagChecksum) != 0;
    if (has_crc) {
        // Checked first: with a wrong CRC, no other field means anything.
        if (frame_crc(frame, crc_of_token) != header.crc) return FrameCheck::kCorrupt;
    } else if (!checksum_optional || header.type != FrameType::kData) {
        return FrameCheck::kCorrupt;  // the flag itself may be the bit that flipped
    }
    const auto type = static_cast<std::uint8_t>(header.type);
    if (type == 0 || type > kLastFrameType || (header.flags & ~kFlagChecksum) != 0) return FrameCheck::kMalformed;
    const bool unversioned = header.type == FrameType::kRequest || header.type == FrameType::kRefuse;
    if (header.version != (unversioned ? 0 : kVersion)) return FrameCheck::kMalformed;
    switch (header.type) {
        case FrameType::kProbe:
        case FrameType::kProbeReply:
        case FrameType::kPing:
        case FrameType::kPong:
            return header.immediate == frame.size() ? FrameCheck::kOk : FrameCheck::kMalformed;
        case FrameType::kRequest:
            // As long as the longest reply, so that a forged request cannot make us send more than it cost.
            return frame.size() == kHandshakeFrameBytes ? FrameCheck::kOk : FrameCheck::kMalformed;
        default:
            return FrameCheck::kOk;
    }
}

std::vector<std::byte> build_frame(const FrameHeader& header, std::span<const std::byte> body,
                                   std::size_t padded_bytes) {
    std::vector<std::byte> frame(std::max(kHeaderBytes + body.size(), padded_bytes));
    FrameHeader complete = header;
    complete.flags |= kFlagChecksum;
    complete.crc = 0;
    write_header(frame.data(), complete);
    if (!body.empty()) std::memcpy(frame.data() + kHeaderBytes, body.data(), body.size());
    complete.crc = frame_crc(frame, token_crc(header.token));
    write_header(frame.data(), complete);
    return frame;
}

std::vector<std::byte> encode(const RequestMessage& message) {
    std::vector<std::byte> body;
    ByteWriter writer(body);
    writer.write<std::uint32_t>(kMagic);
    writer.write<std::uint8_t>(message.version_oldest);
    writer.write<std::uint8_t>(message.version_newest);
    writer.write<std::uint16_t>(0);
    writer.write<std::uint64_t>(message.client_token);
    write_parameters(writer, message.parameters);
    write_blob(writer, message.blob);
    return body;
}

std::optional<RequestMessage> decode_request(std::span<const std::byte> body) {
    ByteReader reader(body);
    RequestMessage message;
    if (reader.read<std::uint32_t>() != kMagic) return std::nullopt;
    message.version_oldest = reader.read<std::uint8_t>();
    message.version_newest = reader.read<std::uint8_t>();
    reader.read<std::uint16_t>();
    message.client_token = reader.read<std::uint64_t>();
    if (!reader.ok() || message.client_token == 0 || message.version_oldest > message.version_newest)
        return std::nullopt;
    if (message.version_oldest > kVersion || message.version_newest < kOldestVersion) return message;
    if (!read_parameters(reader, message.parameters) || !read_blob(reader, message.blob)) return std::nullopt;
    return message;
}

std::vector<std::byte> encode(const ReplyMessage& message) {
    std::vector<std::byte> body;
    ByteWriter writer(body);
    writer.write<std::uint32_t>(kMagic);
    writer.write<std::uint8_t>(message.version);
    writer.write<std::uint8_t>(0);
    writer.write<std::uint16_t>(message.observed_port);
    writer.write<std::uint64_t>(message.server_token);
    write_parameters(writer, message.parameters);
    write_ports(writer, message.ports);
    write_blob(writer, message.blob);
    return body;
}

std::optional<ReplyMessage> decode_reply(std::span<const std::byte> body) {
    ByteReader reader(body);
    ReplyMessage message;
    if (reader.read<std::uint32_t>() != kMagic) return std::nullopt;
    message.version = reader.read<std::uint8_t>();
    reader.read<std::uint8_t>();
    message.observed_port = reader.read<std::uint16_t>();
    message.server_token = reader.read<std::uint64_t>();
    if (!reader.ok() || message.server_token == 0 || message.version < kOldestVersion || message.version > kVersion)
        return std::nullopt;
    if (!read_parameters(reader, message.parameters) ||
        !read_ports(reader, message.ports, message.parameters.channels) || !read_blob(reader, message.blob))
        return std::nullopt;
    return message;
}

std::vector<std::byte> encode(const RefuseMessage& message) {
    std::vector<std::byte> body;
    ByteWriter writer(body);
    writer.write<std::uint32_t>(kMagic);
    writer.write<std::uint8_t>(message.version_oldest);
    writer.write<std::uint8_t>(message.version_newest);
    writer.write<std::uint16_t>(0);
    write_blob(writer, std::as_bytes(std::span(message.reason)));
    return body;
}

std::optional<RefuseMessage> decode_refuse(std::span<const std::byte> body) {
    ByteReader reader(body);
    RefuseMessage message;
    if (reader.read<std::uint32_t>() != kMagic) return std::nullopt;
    message.version_oldest = reader.read<std::uint8_t>();
    message.version_newest = reader.read<std::uint8_t>();
    reader.read<std::uint16_t>();
    std::vector<std::byte> text;
    if (!read_blob(reader, text)) return std::nullopt;
    for (const std::byte byte : text) {
        const char c = static_cast<char>(byte);
        // It goes to a terminal: nothing that could move the cursor.
        message.reason.push_back(c == '\n' || c == '\t'                              ? ' '
                                 : static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?'
                                                                                     : c);
    }
    return message;
}

std::vector<std::byte> encode(const ConfirmMessage& message) {
    std::vector<std::byte> body;
    ByteWriter writer(body);
    writer.write<std::uint32_t>(message.payload_bytes);
    writer.write<std::uint8_t>(message.channels);
    writer.write<std::uint8_t>(0);
    writer.write<std::uint16_t>(0);
    return body;
}

std::optional<ConfirmMessage> decode_confirm(std::span<const std::byte> body) {
    ByteReader reader(body);
    ConfirmMessage message;
    message.payload_bytes = reader.read<std::uint32_t>();
    message.channels = reader.read<std::uint8_t>();
    if (!reader.ok() || message.payload_bytes < 64 || message.payload_bytes > kMaxPayloadBytes ||
        message.channels < 1 || message.channels > kMaxChannels)
        return std::nullopt;
    return message;
}

std::vector<std::byte> encode_info(const InfoMessage& message) {
    std::vector<std::byte> info;
    ByteWriter writer(info);
    writer.write<std::uint32_t>(kMagic);
    writer.write<std::uint8_t>(message.version);
    writer.write<std::uint8_t>(static_cast<std::uint8_t>(std::min(message.addresses.size(), kMaxInfoAddresses)));
    writer.write<std::uint16_t>(0);
    writer.write<std::uint64_t>(message.token);
    writer.write<std::uint64_t>(message.host);
    write_parameters(writer, message.parameters);
    write_ports(writer, message.ports);
    for (std::size_t i = 0; i < message.addresses.size() && i < kMaxInfoAddresses; ++i)
        write_address(writer, message.addresses[i]);
    info.resize(kInfoBytes - 4);
    writer.write<std::uint32_t>(crc32c(info));
    return info;
}

Result<InfoMessage> decode_info(std::span<const std::byte> info) {
    if (info.size() < kInfoBytes)
        return fail(ErrorCode::kProtocol, "connection info of {} bytes is cut short: it has {}", info.size(),
                    kInfoBytes);
    info = info.first(kInfoBytes);
    ByteReader reader(info);
    InfoMessage message;
    if (reader.read<std::uint32_t>() != kMagic)
        return fail(
            ErrorCode::kProtocol,
            "these bytes are not the connection info of a UDP endpoint: pass on what the peer exported, unchanged");
    ByteReader tail(info.subspan(kInfoBytes - 4));
    if (tail.read<std::uint32_t>() != crc32c(info.first(kInfoBytes - 4)))
        return fail(ErrorCode::kProtocol,
                    "the connection info was changed on its way: pass on what the peer exported, unchanged");
    message.version = reader.read<std::uint8_t>();
    const auto count = reader.read<std::uint8_t>();
    reader.read<std::uint16_t>();
    message.token = reader.read<std::uint64_t>();
    message.host = reader.read<std::uint64_t>();
    if (message.version < kOldestVersion || message.version > kVersion)
        return fail(ErrorCode::kProtocol,
                    "the peer speaks version {} of the wire format, we speak {} to {}: update the older side",
                    message.version, kOldestVersion, kVersion);
    if (message.token == 0 || count > kMaxInfoAddresses || !read_parameters(reader, message.parameters) ||
        !read_ports(reader, message.ports, message.parameters.channels))
        return fail(ErrorCode::kProtocol, "the connection info has values out of range");
    for (std::size_t i = 0; i < count; ++i) {
        auto address = read_address(reader);
        if (!address) return fail(ErrorCode::kProtocol, "the connection info has an address of an unknown family");
        message.addresses.push_back(*address);
    }
    return message;
}

}  // namespace farhaul::udp
