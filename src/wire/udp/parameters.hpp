// What two ends of a connection agree on. Plain values: the layer above makes its queue pair from them.
#pragma once

#include <cstdint>

#include "base/result.hpp"
#include "sdr/immediate.hpp"

namespace farhaul::udp {

/// Most bytes that the layer above can put into its part of a connect request or reply.
inline constexpr std::uint32_t kMaxBlobBytes = 1024;
/// Bytes of our header before each payload.
inline constexpr std::uint32_t kHeaderBytes = 24;
/// Largest UDP payload over IPv4, and what is left of it for ours.
inline constexpr std::uint32_t kMaxFrameBytes = 65507;
inline constexpr std::uint32_t kMaxPayloadBytes = kMaxFrameBytes - kHeaderBytes;
/// Every handshake frame is padded to this; it fits IPv6's minimum path MTU of 1280.
inline constexpr std::uint32_t kHandshakeFrameBytes = 1200;
/// A payload that needs no probing because the handshake itself has shown that it passes. Also the most bytes of a
/// control datagram.
inline constexpr std::uint32_t kUnprobedPayloadBytes = kHandshakeFrameBytes - kHeaderBytes;
inline constexpr std::uint32_t kMaxChannels = 16;

struct ConnectParameters {
    std::uint32_t payload_bytes = 4096;    ///< wanted, or agreed, payload per packet: 64 .. kMaxPayloadBytes
    std::uint32_t packets_per_chunk = 16;  ///< 1..64
    sdr::ImmediateLayout layout;
    std::uint32_t max_messages = 64;              ///< in flight per direction: 1 .. layout.message_ids()
    std::uint64_t max_message_bytes = 16u << 20;  ///< at least 1
    bool checksum = true;                         ///< CRC32C over every frame; off only when both sides ask for that
    std::uint32_t channels = 1;                   ///< 1 .. kMaxChannels

    bool operator==(const ConnectParameters&) const = default;
    /// kInvalidArgument with the field that is out of range.
    Status validate() const;
};

/// What both can do: the smaller of each limit; `requested`'s packets per chunk and immediate split; a checksum if
/// either wants one.
ConnectParameters negotiate(const ConnectParameters& requested, const ConnectParameters& offered);

}  // namespace farhaul::udp
