#include "app/allreduce/join.hpp"

#include <algorithm>

#include "app/transfer/session.hpp"
#include "base/bytes.hpp"

namespace farhaul::app::allreduce {
namespace {

constexpr std::uint32_t kMagic = 0x52414846;  // "FHAR"
constexpr std::uint16_t kVersion = 1;
constexpr std::uint32_t kMaxMessages = 256;
constexpr Duration kRetry = Duration::from_milliseconds(100);

}  // namespace

std::vector<std::byte> encode(const Hello& hello) {
    std::vector<std::byte> bytes;
    ByteWriter writer(bytes);
    writer.write(kMagic);
    writer.write(kVersion);
    writer.write(std::uint16_t{0});
    writer.write(hello.ranks);
    writer.write(hello.rank);
    writer.write(plan::encode_scheme(hello.scheme));
    writer.write(hello.segment_bytes);
    writer.write(hello.chunk_bytes);
    return bytes;
}

Result<Hello> decode_hello(std::span<const std::byte> bytes) {
    ByteReader reader(bytes);
    const auto magic = reader.read<std::uint32_t>();
    const auto version = reader.read<std::uint16_t>();
    reader.read<std::uint16_t>();
    Hello hello;
    hello.ranks = reader.read<std::uint32_t>();
    hello.rank = reader.read<std::uint32_t>();
    const auto scheme = reader.read<std::uint32_t>();
    hello.segment_bytes = reader.read<std::uint64_t>();
    hello.chunk_bytes = reader.read<std::uint32_t>();
    if (!reader.ok() || reader.remaining() != 0 || magic != kMagic)
        return fail(ErrorCode::kProtocol, "this is a rank of `sdr allreduce`; what asked is not");
    if (version != kVersion)
        return fail(ErrorCode::kProtocol, "allreduce protocol {}: this rank speaks {}", version, kVersion);
    auto decoded = plan::decode_scheme(scheme);
    if (!decoded) return fail(ErrorCode::kProtocol, "{}", decoded.error().message);
    hello.scheme = *decoded;
    if (hello.chunk_bytes < 1 || hello.chunk_bytes > (16u << 20))
        return fail(ErrorCode::kProtocol, "a chunk of {} bytes", hello.chunk_bytes);
    return hello;
}

Result<std::unique_ptr<Rank>> Rank::open(udp::RealLoop& loop, const udp::Address& listen, const RankConfig& config,
                                         const bool& interrupted) {
    std::unique_ptr<Rank> rank(new Rank(loop, config, interrupted));
    loop.update_now();
    if (config.ranks == 1) return rank;
    udp::UdpOptions options = transfer::udp_options(config.timeout, 1);
    options.bind = listen;
    auto endpoint = udp::UdpEndpoint::open(loop, options);
    if (!endpoint) return propagate(endpoint);
    rank->endpoint_ = std::move(*endpoint);
    Rank* self = rank.get();
    rank->endpoint_->listen([self](const udp::IncomingRequest& request) { return self->on_request(request); },
                            [self](udp::Connected connected) { self->on_accepted(std::move(connected)); });
    return rank;
}

Rank::~Rank() {
    // Connections go before the wires below them.
    ring_.reset();
    left_.reset();
    right_.reset();
}

udp::RequestAnswer Rank::on_request(const udp::IncomingRequest& request) const {
    auto hello = decode_hello(request.blob);
    if (!hello) return udp::RequestAnswer::refuse(hello.error().message);
    if (hello->ranks != config_.ranks)
        return udp::RequestAnswer::refuse(fmt::format("rank {} is one of {}, not of {}: give all the same --ranks",
                                                      config_.rank, config_.ranks, hello->ranks));
    if (hello->rank != left_rank())
        return udp::RequestAnswer::refuse(
            fmt::format("this is rank {}, which follows {} and not {}: give all the same peers", config_.rank,
                        left_rank(), hello->rank));
    if (hello->segment_bytes != config_.segment_bytes)
        return udp::RequestAnswer::refuse(
            fmt::format("rank {} has segments of {} and not {} bytes: give all the same --segment", config_.rank,
                        config_.segment_bytes, hello->segment_bytes));
    if (left_) return udp::RequestAnswer::refuse(fmt::format("rank {} has its left neighbour already", config_.rank));
    udp::ConnectParameters own = request.parameters;
    own.channels = 1;
    own.max_messages = std::min(own.max_messages, kMaxMessages);
    return udp::RequestAnswer::accept(own);
}

void Rank::on_accepted(udp::Connected connected) {
    auto hello = decode_hello(connected.blob);
    if (!hello || left_) return;  // looked at when it asked
    auto made = connection(connected, *hello);
    if (!made) {
        error_ = made.error();
        return;
    }
    left_wire_ = std::move(connected.wire);
    left_ = std::move(*made);
}

Result<std::unique_ptr<reliable::Connection>> Rank::connection(udp::Connected& connected, const Hello& hello) {
    sdr::QueuePairConfig pair;
    pair.layout = connected.parameters.layout;
    pair.payload_bytes = connected.parameters.payload_bytes;
    pair.packets_per_chunk = std::clamp(hello.chunk_bytes / pair.payload_bytes, 1u, 64u);
    pair.max_message_bytes = hello.segment_bytes;
    pair.max_messages = connected.parameters.max_messages;
    pair.rate_limit = config_.rate;
    pair.overhead_bytes = udp::kHeaderBytes + transfer::kIpUdpBytes;
    pair.initial_rtt = std::max(connected.round_trip, Duration::from_microseconds(100));
    pair.control_timeout = config_.timeout;
    reliable::ConnectionConfig reliability;
    reliability.scheme = hello.scheme;
    reliability.initial_rtt = pair.initial_rtt;
    reliability.peer_timeout = config_.timeout;
    reliability.keepalive = config_.timeout / 5;
    // Parity is encoded on this thread: the end of a reduction overwrites memory that a Write may still be reading (see
    // collective/ring.hpp), which is harmless in turn but not at the same time.
    return reliable::Connection::create(loop_, *connected.wire, pair, reliability);
}

void Rank::ask(const udp::Address& right) {
    const Hello hello{config_.ranks, config_.rank, config_.scheme, config_.segment_bytes, config_.chunk_bytes};
    udp::ConnectParameters wanted;
    wanted.payload_bytes = config_.payload_bytes > 0 ? config_.payload_bytes : udp::kMaxPayloadBytes;
    wanted.max_messages = kMaxMessages;
    wanted.max_message_bytes = config_.segment_bytes;
    asking_ = true;
    endpoint_->connect(right, wanted, encode(hello), [this, hello](Result<udp::Connected> connected) {
        asking_ = false;
        ask_again_ = loop_.now() + kRetry;
        if (!connected) {
            refused_ = connected.error();
            // A rank that is not there yet is waited for; one that disagrees will not change its mind.
            if (refused_->code == ErrorCode::kProtocol || refused_->code == ErrorCode::kInvalidArgument)
                error_ = refused_;
            return;
        }
        round_trip_ = connected->round_trip;
        auto made = connection(*connected, hello);
        if (!made) {
            error_ = made.error();
            return;
        }
        right_wire_ = std::move(connected->wire);
        right_ = std::move(*made);
    });
}

Error Rank::missing(const udp::Address& right) const {
    const std::string time = format_duration(config_.start_timeout);
    if (right_)
        return {ErrorCode::kTimeout,
                fmt::format("rank {} did not come within {}: is it running, and does it know this rank's address?",
                            left_rank(), time)};
    return {ErrorCode::kTimeout,
            fmt::format("rank {} did not come within {} ({}): is it running, and is {} its address?",
                        (config_.rank + 1) % config_.ranks, time, refused_ ? refused_->message : "no answer",
                        right.to_string())};
}

Status Rank::join(const udp::Address& right) {
    collective::RingConfig ring{.rank = config_.rank, .ranks = config_.ranks, .segment_bytes = config_.segment_bytes};
    if (config_.ranks > 1) {
        loop_.update_now();
        const TimePoint end = loop_.now() + config_.start_timeout;
        const auto settled = [this] { return (left_ && right_) || error_; };
        while (!settled()) {
            if (interrupted_) return fail(ErrorCode::kClosed, "interrupted");
            if (loop_.now() >= end) return std::unexpected(missing(right));
            if (!right_ && !asking_ && loop_.now() >= ask_again_) ask(right);
            loop_.run_until(settled, kRetry);
        }
        if (error_) return std::unexpected(*error_);
        endpoint_->stop_listening();
    }
    auto made = collective::Ring::create(loop_, std::move(left_), std::move(right_), ring);
    if (!made) return propagate(made);
    ring_ = std::move(*made);
    return {};
}

}  // namespace farhaul::app::allreduce
