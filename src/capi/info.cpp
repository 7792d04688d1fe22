#include "capi/info.hpp"

#include "base/bytes.hpp"
#include "base/crc32c.hpp"

namespace farhaul::capi {

namespace {

constexpr std::uint64_t kMagicWord = 0x004f'464e'4952'4453;  // "SDRINFO\0"
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kChecksummedFrom = 16;
constexpr std::uint8_t kSends = 1;
constexpr std::uint8_t kReceives = 2;

}  // namespace

std::vector<std::byte> encode_info(const sdr::QueuePairConfig& config, std::span<const std::byte> wire) {
    std::vector<std::byte> body;
    ByteWriter writer(body);
    writer.write(config.payload_bytes);
    writer.write(config.packets_per_chunk);
    writer.write(config.layout.message_bits);
    writer.write(config.layout.packet_bits);
    writer.write(config.layout.fragment_bits);
    writer.write(
        static_cast<std::uint8_t>((config.send_enable ? kSends : 0) | (config.receive_enable ? kReceives : 0)));
    writer.write(config.max_messages);
    writer.write(config.max_message_bytes);
    body.resize(kInfoHeaderBytes - kChecksummedFrom);
    body.insert(body.end(), wire.begin(), wire.end());

    std::vector<std::byte> info;
    ByteWriter head(info);
    head.write(kMagicWord);
    head.write(kVersion);
    head.write(static_cast<std::uint16_t>(kInfoBytes));
    head.write(crc32c(body));
    head.write_bytes(body);
    return info;
}

Result<std::span<const std::byte>> check_info(std::span<const std::byte> info, const sdr::QueuePairConfig& ours) {
    ByteReader reader(info);
    const auto magic = reader.read<std::uint64_t>();
    const auto version = reader.read<std::uint16_t>();
    const auto size = reader.read<std::uint16_t>();
    const auto checksum = reader.read<std::uint32_t>();
    if (!reader.ok() || magic != kMagicWord)
        return fail(ErrorCode::kProtocol,
                    "this is not what sdr_qp_info_get() wrote: exchange that block, all {} bytes of it", kInfoBytes);
    if (version != kVersion || size != kInfoBytes || info.size() != kInfoBytes)
        return fail(
            ErrorCode::kProtocol,
            "the peer's information has version {} and {} bytes, ours {} and {}: use the same library on both sides",
            version, size, kVersion, kInfoBytes);
    if (checksum != crc32c(info.subspan(kChecksummedFrom)))
        return fail(ErrorCode::kProtocol, "the peer's information was damaged on the way: its checksum is wrong");
    const auto payload = reader.read<std::uint32_t>();
    const auto packets_per_chunk = reader.read<std::uint32_t>();
    const sdr::ImmediateLayout layout{reader.read<std::uint8_t>(), reader.read<std::uint8_t>(),
                                      reader.read<std::uint8_t>()};
    const auto flags = reader.read<std::uint8_t>();
    if (payload != ours.payload_bytes)
        return fail(ErrorCode::kInvalidArgument,
                    "the peer's packets have {} bytes of payload, ours {}: use the same `mtu` on both sides", payload,
                    ours.payload_bytes);
    if (packets_per_chunk != ours.packets_per_chunk)
        return fail(ErrorCode::kInvalidArgument,
                    "the peer's chunks have {} packets, ours {}: use the same chunk size on both sides",
                    packets_per_chunk, ours.packets_per_chunk);
    if (layout != ours.layout)
        return fail(ErrorCode::kInvalidArgument,
                    "the peer splits immediates {}+{}+{}, we {}+{}+{}: use the same split on both sides",
                    layout.message_bits, layout.packet_bits, layout.fragment_bits, ours.layout.message_bits,
                    ours.layout.packet_bits, ours.layout.fragment_bits);
    const bool we_send = ours.send_enable && (flags & kReceives) != 0;
    const bool peer_sends = ours.receive_enable && (flags & kSends) != 0;
    if (!we_send && !peer_sends)
        return fail(ErrorCode::kInvalidArgument,
                    "neither side could send to the other: one needs `send_enable` and the other `recv_enable`");
    return info.subspan(kInfoHeaderBytes);
}

}  // namespace farhaul::capi
