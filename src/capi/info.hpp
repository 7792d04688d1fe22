// The block that sdr_qp_info_get() writes: what this side's parameters are, and the wire's own part.
//
// Bytes, little endian: magic "SDRINFO\0" (8) | version (2) | size (2) | CRC32C of all that follows (4) | payload per
// packet (4) | packets per chunk (4) | bits of message id, packet index, fragment (1 each) | flags: 1 sends, 2 receives
// (1) | messages (4) | largest message (8) | zero (24) | the wire's part (UdpEndpoint::kInfoBytes).
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "sdr/queue_pair.hpp"
#include "wire/udp/endpoint.hpp"

namespace farhaul::capi {

inline constexpr std::size_t kInfoHeaderBytes = 64;
inline constexpr std::size_t kInfoBytes = kInfoHeaderBytes + udp::UdpEndpoint::kInfoBytes;

std::vector<std::byte> encode_info(const sdr::QueuePairConfig& config, std::span<const std::byte> wire);

/// The wire's part of `info` if its side fits ours. Errors: kProtocol (damaged, foreign, other version);
/// kInvalidArgument with the parameter that differs.
Result<std::span<const std::byte>> check_info(std::span<const std::byte> info, const sdr::QueuePairConfig& ours);

}  // namespace farhaul::capi
