// What one run of `sdr bench` is to do: the client decides, and sends it to the server with the handshake.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "app/transfer/session.hpp"
#include "base/result.hpp"
#include "base/units.hpp"
#include "reliable/connection.hpp"
#include "reliable/scheme.hpp"
#include "wire/udp/parameters.hpp"

namespace farhaul::app::bench {

struct Plan {
    bool raw = false;  ///< unreliable messages; `scheme` is not used then
    reliable::Scheme scheme = reliable::Scheme::kSelectiveRepeatNack;
    bool latency = false;  ///< ping-pong instead of a stream
    bool both_ways = false;
    bool validate = false;            ///< payloads carry a pattern that the other side checks
    std::uint64_t bytes = 65536;      ///< per message
    std::uint64_t iterations = 5000;  ///< 0: until the client ends
    std::uint32_t depth = 128;        ///< messages in flight
    std::uint32_t chunk_bytes = 65536;
    BitRate rate;  ///< of each sender
    double rto_rtts = 3;
    std::uint32_t queue_pairs = 1;  ///< that share the receiver's socket: 1 .. kMaxQueuePairs
};

inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 40;
inline constexpr std::uint32_t kMaxDepth = 512;
inline constexpr std::uint32_t kMaxQueuePairs = 64;
/// Buffers of all messages in flight share this much memory: messages beyond it land on each other, as with perftest's
/// single buffer.
inline constexpr std::uint64_t kRegionBytes = 16u << 20;

std::vector<std::byte> encode(const Plan& plan);
/// Errors: kProtocol for anything that is not a plan, or out of range.
Result<Plan> decode_plan(std::span<const std::byte> bytes);

/// Memory for the messages of one direction.
std::uint64_t region_bytes(const Plan& plan);
/// Receives that a receiver of reliable Writes keeps posted: one more than the sender's window, so that no Write waits
/// for a clear-to-send that the end of the one before it caused.
std::uint32_t receives_ahead(const Plan& plan);
sdr::QueuePairConfig queue_pair_config(const Plan& plan, const udp::ConnectParameters& agreed, Duration round_trip,
                                       Duration timeout);
/// `receive_buffer_bytes`: of the socket that all queue pairs share (see sdr::WireLimits).
reliable::ConnectionConfig connection_config(const Plan& plan, Duration round_trip, Duration timeout,
                                             std::uint64_t receive_buffer_bytes);
std::string scheme_name(const Plan& plan);

/// The pattern of message `number`, and whether it is there.
void fill_pattern(std::span<std::byte> message, std::uint64_t number);
bool check_pattern(std::span<const std::byte> message, std::uint64_t number);

}  // namespace farhaul::app::bench
