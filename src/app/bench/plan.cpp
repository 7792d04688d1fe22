#include "app/bench/plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bytes.hpp"

namespace farhaul::app::bench {
namespace {

constexpr std::uint32_t kMagic = 0x32424846;  // "FHB2"
enum Flags : std::uint8_t { kRaw = 1, kLatency = 2, kBothWays = 4, kValidate = 8 };
// A longer Write is cut into messages of this size.
constexpr std::uint64_t kMessageBytes = 4u << 20;
constexpr std::uint64_t kWordStep = 0x9e3779b97f4a7c15ull;

}  // namespace

std::vector<std::byte> encode(const Plan& plan) {
    std::vector<std::byte> out;
    ByteWriter w(out);
    w.write(kMagic);
    w.write(static_cast<std::uint8_t>((plan.raw ? kRaw : 0) | (plan.latency ? kLatency : 0) |
                                      (plan.both_ways ? kBothWays : 0) | (plan.validate ? kValidate : 0)));
    w.write(reliable::encode_scheme(plan.scheme));
    w.write(plan.bytes);
    w.write(plan.iterations);
    w.write(plan.depth);
    w.write(plan.chunk_bytes);
    w.write(plan.rate.bits_per_second());
    w.write(static_cast<std::uint32_t>(std::llround(plan.rto_rtts * 1000)));
    w.write(plan.queue_pairs);
    return out;
}

Result<Plan> decode_plan(std::span<const std::byte> bytes) {
    ByteReader r(bytes);
    if (r.read<std::uint32_t>() != kMagic || !r.ok())
        return fail(ErrorCode::kProtocol, "the peer is not `sdr bench` of this version");
    const auto flags = r.read<std::uint8_t>();
    const auto scheme = reliable::decode_scheme(r.read<std::uint32_t>());
    Plan plan;
    plan.raw = flags & kRaw;
    plan.latency = flags & kLatency;
    plan.both_ways = flags & kBothWays;
    plan.validate = flags & kValidate;
    plan.bytes = r.read<std::uint64_t>();
    plan.iterations = r.read<std::uint64_t>();
    plan.depth = r.read<std::uint32_t>();
    plan.chunk_bytes = r.read<std::uint32_t>();
    plan.rate = BitRate::from_bits_per_second(r.read<std::uint64_t>());
    const auto rto = r.read<std::uint32_t>();
    plan.queue_pairs = r.read<std::uint32_t>();
    if (!r.ok() || !scheme || plan.bytes < 1 || plan.bytes > kMaxMessageBytes || plan.depth < 1 ||
        plan.depth > kMaxDepth || plan.chunk_bytes < 1 || rto < 1000 || rto > 100'000 || plan.queue_pairs < 1 ||
        plan.queue_pairs > kMaxQueuePairs)
        return fail(ErrorCode::kProtocol, "the client's plan is out of range");
    plan.scheme = *scheme;
    plan.rto_rtts = rto / 1000.0;
    return plan;
}

std::uint64_t region_bytes(const Plan& plan) {
    if (plan.validate) return plan.bytes * plan.depth;
    return std::max(plan.bytes, std::min(plan.bytes * plan.depth, kRegionBytes));
}

std::uint32_t receives_ahead(const Plan& plan) { return plan.latency ? 2 : plan.depth + 1; }

sdr::QueuePairConfig queue_pair_config(const Plan& plan, const udp::ConnectParameters& agreed, Duration round_trip,
                                       Duration timeout) {
    sdr::QueuePairConfig config;
    config.layout = agreed.layout;
    config.payload_bytes = agreed.payload_bytes;
    config.packets_per_chunk = std::clamp(plan.chunk_bytes / agreed.payload_bytes, 1u, 64u);
    config.max_message_bytes = plan.raw ? plan.bytes : std::min(plan.bytes, kMessageBytes);
    const std::uint64_t messages =
        plan.raw ? plan.depth : receives_ahead(plan) * ((plan.bytes + kMessageBytes - 1) / kMessageBytes);
    config.max_messages = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(messages, 2, kMaxDepth));
    config.rate_limit = plan.rate;
    config.overhead_bytes = udp::kHeaderBytes + transfer::kIpUdpBytes;
    config.initial_rtt = std::max(round_trip, Duration::from_microseconds(100));
    config.control_timeout = timeout;
    return config;
}

reliable::ConnectionConfig connection_config(const Plan& plan, Duration round_trip, Duration timeout,
                                             std::uint64_t receive_buffer_bytes) {
    reliable::ConnectionConfig config;
    config.scheme = plan.scheme;
    config.rto_rtts = plan.rto_rtts;
    config.initial_rtt = std::max(round_trip, Duration::from_microseconds(100));
    config.peer_timeout = timeout;
    config.keepalive = timeout / 5;
    // Alone, a connection chooses by itself. Several share one socket at the receiver, and what they have in flight
    // together must fit its buffer, of which the kernel's records take the larger part.
    if (plan.queue_pairs > 1 && plan.rate.unlimited() && receive_buffer_bytes > 0)
        config.window_bytes =
            std::clamp<std::uint64_t>(receive_buffer_bytes / 4 / plan.queue_pairs, 16u << 10, 4u << 20);
    return config;
}

std::string scheme_name(const Plan& plan) { return plan.raw ? "raw" : reliable::to_string(plan.scheme); }

void fill_pattern(std::span<std::byte> message, std::uint64_t number) {
    std::uint64_t word = (number + 1) * 0xbf58476d1ce4e5b9ull;
    for (std::size_t at = 0; at < message.size(); at += sizeof word, word += kWordStep)
        std::memcpy(message.data() + at, &word, std::min(sizeof word, message.size() - at));
}

bool check_pattern(std::span<const std::byte> message, std::uint64_t number) {
    std::uint64_t word = (number + 1) * 0xbf58476d1ce4e5b9ull;
    for (std::size_t at = 0; at < message.size(); at += sizeof word, word += kWordStep)
        if (std::memcmp(message.data() + at, &word, std::min(sizeof word, message.size() - at)) != 0) return false;
    return true;
}

}  // namespace farhaul::app::bench
