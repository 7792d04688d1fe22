// Frames of the UDP wire, as pure functions over bytes: docs/wire-format-udp.md describes them.
//
// A frame is one UDP payload, little-endian: a header of 24 bytes, then the payload.
//
//   offset size
//   0      8    token: the receiver's name for the connection, random; 0 in a connect request
//   8      4    CRC32C over token, bytes 12..23 and payload; 0 when the connection goes without
//   12     1    type
//   13     1    version of the format; 0 in a connect request and a refusal, whose format never changes
//   14     2    flags: bit 0 = the CRC is there
//   16     4    data: generation.   probes, pings and their replies: sequence number
//   20     4    data: immediate.    probes, pings and their replies: length of the frame, which must be the datagram's
//
// The decoders take bytes from anybody: they check every length and range, and return nothing rather than something
// doubtful.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.hpp"
#include "wire/udp/address.hpp"
#include "wire/udp/parameters.hpp"

namespace farhaul::udp {

/// The version that this code speaks, and the oldest that it can.
inline constexpr std::uint8_t kVersion = 1;
inline constexpr std::uint8_t kOldestVersion = 1;
inline constexpr std::uint32_t kMagic = 0x4c554846;  // "FHUL"
inline constexpr std::uint16_t kFlagChecksum = 1;

enum class FrameType : std::uint8_t {
    kData = 1,    ///< payload for a posted buffer
    kDatagram,    ///< a control datagram of the layer above
    kRequest,     ///< client: I want a connection
    kReply,       ///< server: here is yours
    kRefuse,      ///< server: no, and why
    kProbe,       ///< client: does a frame of this size pass?
    kProbeReply,  ///< server: it did; of the same size, so that both directions are shown
    kConfirm,     ///< client: this is what we use
    kConfirmAck,  ///< server: so do I
    kPing,        ///< either: are you there? Small, or as large as data
    kPong,        ///< of the same size
    kClose,       ///< either: I am done
};
inline constexpr std::uint8_t kLastFrameType = static_cast<std::uint8_t>(FrameType::kClose);

struct FrameHeader {
    std::uint64_t token = 0;
    std::uint32_t crc = 0;
    FrameType type = FrameType::kData;
    std::uint8_t version = kVersion;
    std::uint16_t flags = 0;
    std::uint32_t generation = 0;
    std::uint32_t immediate = 0;
};

inline std::uint64_t frame_token(const std::byte* frame) {
    std::uint64_t token;
    std::memcpy(&token, frame, sizeof(token));
    return token;
}

/// Reads kHeaderBytes bytes, whatever they are.
inline FrameHeader read_header(const std::byte* frame) {
    FrameHeader header;
    std::memcpy(&header.token, frame, 8);
    std::memcpy(&header.crc, frame + 8, 4);
    header.type = static_cast<FrameType>(frame[12]);
    header.version = static_cast<std::uint8_t>(frame[13]);
    std::memcpy(&header.flags, frame + 14, 2);
    std::memcpy(&header.generation, frame + 16, 4);
    std::memcpy(&header.immediate, frame + 20, 4);
    return header;
}

inline void write_header(std::byte* frame, const FrameHeader& header) {
    std::memcpy(frame, &header.token, 8);
    std::memcpy(frame + 8, &header.crc, 4);
    frame[12] = static_cast<std::byte>(header.type);
    frame[13] = static_cast<std::byte>(header.version);
    std::memcpy(frame + 14, &header.flags, 2);
    std::memcpy(frame + 16, &header.generation, 4);
    std::memcpy(frame + 20, &header.immediate, 4);
}

/// The CRC's part that is constant for a connection.
inline std::uint32_t token_crc(std::uint64_t token) { return crc32c(std::as_bytes(std::span(&token, 1))); }

/// The CRC of a contiguous frame of at least kHeaderBytes bytes, given token_crc() of its token.
inline std::uint32_t frame_crc(std::span<const std::byte> frame, std::uint32_t crc_of_token) {
    return crc32c(frame.subspan(12), crc_of_token);
}

enum class FrameCheck : std::uint8_t { kOk, kMalformed, kCorrupt };

/// Checks a whole frame except its token's meaning: length, type, version, flags, CRC. A frame without a CRC passes
/// only with `checksum_optional` and only as data: everything else always has one.
FrameCheck check_frame(std::span<const std::byte> frame, const FrameHeader& header, std::uint32_t crc_of_token,
                       bool checksum_optional);

/// Builds a whole frame with a CRC, padded with zeros to `padded_bytes` (if that is longer).
std::vector<std::byte> build_frame(const FrameHeader& header, std::span<const std::byte> body,
                                   std::size_t padded_bytes = 0);

struct RequestMessage {
    std::uint8_t version_oldest = kOldestVersion;
    std::uint8_t version_newest = kVersion;
    std::uint64_t client_token = 0;
    ConnectParameters parameters;
    std::vector<std::byte> blob;
};

struct ReplyMessage {
    std::uint8_t version = kVersion;
    std::uint64_t server_token = 0;
    std::uint16_t observed_port =
        0;  ///< where the request seemed to come from: another port than its own tells the client of a relay
    ConnectParameters parameters;
    std::array<std::uint16_t, kMaxChannels> ports{};  ///< of the channels, [0] included; 0 beyond parameters.channels
    std::vector<std::byte> blob;
};

struct RefuseMessage {
    std::uint8_t version_oldest = kOldestVersion;
    std::uint8_t version_newest = kVersion;
    std::string reason;
};

struct ConfirmMessage {
    std::uint32_t payload_bytes = 0;
    std::uint8_t channels = 1;
};

/// Bodies: what follows the header. A request's parameters are in range unless its versions do not include ours, in
/// which case they are not read.
std::vector<std::byte> encode(const RequestMessage& message);
std::vector<std::byte> encode(const ReplyMessage& message);
std::vector<std::byte> encode(const RefuseMessage& message);
std::vector<std::byte> encode(const ConfirmMessage& message);
std::optional<RequestMessage> decode_request(std::span<const std::byte> body);
std::optional<ReplyMessage> decode_reply(std::span<const std::byte> body);
std::optional<RefuseMessage> decode_refuse(std::span<const std::byte> body);
std::optional<ConfirmMessage> decode_confirm(std::span<const std::byte> body);

/// What two ends exchange by other means.
struct InfoMessage {
    std::uint8_t version = kVersion;
    std::uint64_t token = 0;
    std::uint64_t host = 0;  ///< equal on two ends that share a loopback interface
    ConnectParameters parameters;
    std::array<std::uint16_t, kMaxChannels> ports{};
    std::vector<Address> addresses;  ///< at most kMaxInfoAddresses, best first; ports are in `ports`
};
inline constexpr std::size_t kMaxInfoAddresses = 5;
inline constexpr std::size_t kInfoBytes = 256;
std::vector<std::byte> encode_info(const InfoMessage& message);
/// Errors: kProtocol with what is wrong.
Result<InfoMessage> decode_info(std::span<const std::byte> info);

}  // namespace farhaul::udp
