#include "app/transfer/session.hpp"

#include <algorithm>
#include <bit>

#include <nlohmann/json.hpp>

namespace farhaul::app::transfer {

Window choose_window(BitRate rate, bool loopback, std::uint64_t memory) {
    constexpr std::uint64_t kLeast = 16u << 20;
    std::uint64_t bytes = memory;
    if (!rate.unlimited())
        bytes = std::max(kLeast, 4 * rate.bytes_in(Duration::from_milliseconds(100)));
    else if (loopback)
        bytes = kLeast;
    bytes = std::clamp<std::uint64_t>(bytes, 2 * kMinBlockBytes, std::max<std::uint64_t>(memory, 2 * kMinBlockBytes));
    Window window;
    window.block_bytes =
        static_cast<std::uint32_t>(std::clamp<std::uint64_t>(std::bit_floor(bytes / 32), kMinBlockBytes, 4u << 20));
    window.blocks =
        static_cast<std::uint32_t>(std::clamp<std::uint64_t>(bytes / window.block_bytes, kMinBlocks, kMaxBlocks));
    return window;
}

BitRate default_rate(const udp::Address& peer) { return peer.is_loopback() ? BitRate{} : BitRate::from_gigabits(1); }

sdr::QueuePairConfig queue_pair_config(const Offer& offer, const udp::ConnectParameters& agreed, std::uint32_t blocks,
                                       BitRate rate, Duration round_trip, Duration timeout) {
    sdr::QueuePairConfig config;
    config.layout = agreed.layout;
    config.payload_bytes = agreed.payload_bytes;
    config.packets_per_chunk = std::clamp(offer.chunk_bytes / agreed.payload_bytes, 1u, 64u);
    config.max_messages = blocks;
    config.max_message_bytes = offer.block_bytes;
    config.rate_limit = rate;
    config.overhead_bytes = udp::kHeaderBytes + kIpUdpBytes;
    config.initial_rtt = std::max(round_trip, Duration::from_microseconds(100));
    config.control_timeout = timeout;
    return config;
}

reliable::ConnectionConfig connection_config(const Offer& offer, Duration round_trip, Duration timeout) {
    reliable::ConnectionConfig config;
    config.scheme = offer.scheme;
    config.rto_rtts = offer.rto_rtts;
    config.initial_rtt = std::max(round_trip, Duration::from_microseconds(100));
    config.peer_timeout = timeout;
    config.keepalive = timeout / 5;
    return config;
}

udp::UdpOptions udp_options(Duration timeout, std::uint32_t channels) {
    udp::UdpOptions options;
    options.channels = channels;
    options.connect_timeout = timeout;
    options.peer_timeout = timeout;
    options.ping_interval = std::min(Duration::from_milliseconds(1000), timeout / 5);
    return options;
}

int exit_code_of(Outcome outcome) {
    switch (outcome) {
        case Outcome::kOk:
            return kExitOk;
        case Outcome::kNoSpace:
            return kExitNoSpace;
        case Outcome::kIntegrity:
            return kExitIntegrity;
        default:
            return kExitFailure;
    }
}

int exit_code_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::kTimeout:
        case ErrorCode::kPeerGone:
            return kExitPeer;
        case ErrorCode::kCorrupt:
            return kExitIntegrity;
        default:
            return kExitFailure;
    }
}

std::string to_line(const TransferReport& report, bool sender) {
    std::string line = fmt::format("{} {} in {} file{}, {:.3f} s, {}", sender ? "sent" : "received",
                                   format_size(report.bytes), report.files, report.files == 1 ? "" : "s",
                                   report.elapsed.seconds(), format_rate(report.goodput()));
    line += sender ? fmt::format(", {} of {} packets resent", report.packets_resent, report.packets_sent)
                   : fmt::format(", {} packets, {} of them twice", report.packets_sent, report.packets_resent);
    line += fmt::format(" ({}, round trip {})", reliable::to_string(report.scheme), format_duration(report.round_trip));
    if (report.skipped > 0) line += fmt::format(", {} skipped", report.skipped);
    if (report.files_failed > 0) line += fmt::format(", {} FAILED", report.files_failed);
    if (report.digest) line += fmt::format("\nSHA-256 {}  {}", to_hex(*report.digest), report.path);
    return line;
}

std::string to_json(const TransferReport& report, bool sender) {
    nlohmann::ordered_json json;
    json["role"] = sender ? "sender" : "receiver";
    json["outcome"] = report.exit_code == kExitPeer ? "peer gone" : to_string(report.outcome);
    json["exit_code"] = report.exit_code;
    if (!report.message.empty()) json["message"] = report.message;
    json["peer"] = report.peer;
    json["scheme"] = reliable::to_string(report.scheme);
    json["files"] = report.files;
    json["files_failed"] = report.files_failed;
    if (sender) json["skipped"] = report.skipped;
    json["bytes"] = report.bytes;
    json["seconds"] = report.elapsed.seconds();
    json["goodput_bits_per_second"] = report.goodput();
    json["rtt_s"] = report.round_trip.seconds();
    json["payload_bytes"] = report.payload_bytes;
    json[sender ? "packets_sent" : "packets_received"] = report.packets_sent;
    json[sender ? "packets_resent" : "packets_duplicate"] = report.packets_resent;
    if (report.digest) {
        json["sha256"] = to_hex(*report.digest);
        json["path"] = report.path;
    }
    // Names need not be UTF-8.
    return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace farhaul::app::transfer
