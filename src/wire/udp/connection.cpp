#include "wire/udp/connection.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "base/units.hpp"
#include "wire/udp/engine.hpp"

namespace farhaul::udp {

namespace {

constexpr Duration kConfirmInterval = Duration::from_milliseconds(50);

}  // namespace

Connection::Connection(Engine& engine, ConnectionConfig config)
    : engine_(engine),
      config_(std::move(config)),
      tick_(
          engine.loop().timers(), [](void* self) { static_cast<Connection*>(self)->on_tick(); }, this),
      break_(engine.loop().timers(), [](void* self) { static_cast<Connection*>(self)->on_break(); }, this) {
    const ConnectParameters& parameters = config_.parameters;
    limits_.max_payload_bytes = parameters.payload_bytes;
    limits_.max_datagram_bytes = kUnprobedPayloadBytes;
    limits_.channels = parameters.channels;
    limits_.generation_bits = 32;
    limits_.concurrent_channels = parameters.channels > 1 && engine.options().receive_threads;
    limits_.carries_payload = true;
    limits_.receive_buffer_bytes = config_.paths[0].socket->receive_buffer_bytes();
    framing_ = {config_.peer_token, token_crc(config_.peer_token), parameters.checksum};
    target_.token = config_.local_token;
    target_.crc_of_token = token_crc(config_.local_token);
    target_.checksum = parameters.checksum;
    target_.payload_bytes = parameters.payload_bytes;
    target_.channels = parameters.channels;
    for (std::size_t i = 0; i < config_.paths.size(); ++i) target_.peers[i].store(config_.paths[i].to.fingerprint());
    created_ = engine.loop().now();
    heard_at_last_tick_ = created_;
    target_.last_heard_ns.store(created_.nanoseconds(), std::memory_order_relaxed);
    confirming_ = !config_.confirm_frame.empty();
    engine_.add(*this);
    if (confirming_) config_.paths[0].socket->send(config_.confirm_frame, peer(), config_.paths[0].from);
    arm_tick();
}

Connection::~Connection() { close(); }

void Connection::close() {
    if (closed_) return;
    closed_ = true;
    tick_.disarm();
    break_.disarm();
    target_.sink.store(nullptr, std::memory_order_seq_cst);
    engine_.remove(*this, config_.peer_token, config_.paths[0], !peer_closed_);
}

void Connection::attach(sdr::WireSink* sink) {
    if (closed_ && sink != nullptr) return;
    target_.sink.store(sink, std::memory_order_seq_cst);
    if (limits_.concurrent_channels && !closed_) engine_.quiesce();
    if (sink != nullptr && broken_ && !closed_) break_.arm(engine_.loop().now());
}

void Connection::quiesce() {
    if (!closed_ && limits_.concurrent_channels) engine_.quiesce();
}

void Connection::wake() {
    if (!poll_requested_.exchange(true, std::memory_order_acq_rel)) engine_.request_poll();
}

std::size_t Connection::tx_burst(std::span<const sdr::OutgoingPacket> packets) {
    // Of a broken wire nothing is expected, least of all that it becomes writable.
    if (closed_ || broken_) return packets.size();
    std::size_t taken = 0;
    while (taken < packets.size()) {
        const auto rest = packets.subspan(taken, std::min(packets.size() - taken, kTxBatch));
        const std::size_t count = send_over_channels(rest);
        taken += count;
        if (count < rest.size()) {
            wants_writable_ = true;
            break;
        }
    }
    return taken;
}

std::size_t Connection::send_over_channels(std::span<const sdr::OutgoingPacket> packets) {
    std::vector<std::uint16_t>& order = engine_.order_scratch();
    if (limits_.channels == 1) {
        order.clear();
        for (std::size_t i = 0; i < packets.size(); ++i) order.push_back(static_cast<std::uint16_t>(i));
        const TxResult result = engine_.transmitter().send(config_.paths[0], framing_, packets, order, counters_);
        note(result, 0);
        return result.taken;
    }
    std::array<bool, kTxBatch> sent{};
    if (!sent_ahead_.empty()) {
        std::size_t known = 0;
        for (std::size_t i = 0; i < packets.size(); ++i) known += sent[i] = take_sent_ahead(packets[i]);
        // Others than those that were refused: the layer above has changed its mind, and may mean to repeat them.
        if (known == 0) sent_ahead_.clear();
    }
    std::size_t taken = packets.size();
    for (std::uint32_t channel = 0; channel < limits_.channels; ++channel) {
        order.clear();
        for (std::size_t i = 0; i < packets.size(); ++i)
            if (packets[i].channel % limits_.channels == channel && !sent[i])
                order.push_back(static_cast<std::uint16_t>(i));
        if (order.empty()) continue;
        const TxResult result = engine_.transmitter().send(config_.paths[channel], framing_, packets, order, counters_);
        note(result, channel);
        for (std::size_t i = 0; i < result.taken; ++i) sent[order[i]] = true;
        if (result.taken < order.size()) taken = std::min<std::size_t>(taken, order[result.taken]);
    }
    for (std::size_t i = taken; i < packets.size(); ++i)
        if (sent[i]) sent_ahead_.emplace_back(packets[i].immediate, packets[i].generation);
    return taken;
}

bool Connection::take_sent_ahead(const sdr::OutgoingPacket& packet) {
    // In order, as a rule: the first is it.
    const auto found = std::ranges::find(sent_ahead_, std::pair(packet.immediate, packet.generation));
    if (found == sent_ahead_.end()) return false;
    sent_ahead_.erase(found);
    return true;
}

void Connection::note(const TxResult& result, std::uint32_t channel) {
    if (result.stop == TxResult::Stop::kSocketFull) {
        blocked_channels_ |= 1u << channel;
        engine_.wait_writable(channel);
    } else if (result.stop == TxResult::Stop::kNoBuffers) {
        engine_.wait_for_memory();
    }
    if (result.error != 0) on_network_error({result.error, 0, config_.paths[channel].to});
}

void Connection::send_datagram(std::span<const std::byte> datagram) {
    if (closed_ || broken_) return;
    if (datagram.size() > limits_.max_datagram_bytes) {
        ++counters_.send_errors;
        return;
    }
    std::array<std::byte, kHandshakeFrameBytes> frame;
    FrameHeader header;
    header.token = config_.peer_token;
    header.type = FrameType::kDatagram;
    header.flags = kFlagChecksum;
    write_header(frame.data(), header);
    if (!datagram.empty()) std::memcpy(frame.data() + kHeaderBytes, datagram.data(), datagram.size());
    const std::span<const std::byte> whole(frame.data(), kHeaderBytes + datagram.size());
    const std::uint32_t crc = frame_crc(whole, framing_.crc_of_token);
    std::memcpy(frame.data() + 8, &crc, 4);
    const TxPath& path = config_.paths[0];
    const int error = path.socket->send(whole, path.to, path.from);
    ++counters_.datagrams_sent;
    if (error == 0) return;
    if (error == EAGAIN || error == ENOBUFS) {
        ++counters_.would_block;
    } else {
        ++counters_.send_errors;
        on_network_error({error, 0, path.to});
    }
}

void Connection::send_frame(FrameType type, std::uint32_t sequence, std::uint32_t size) {
    send_frame_on(config_.paths[0], type, sequence, size);
}

void Connection::send_frame_on(const TxPath& path, FrameType type, std::uint32_t sequence, std::uint32_t size) {
    FrameHeader header;
    header.token = config_.peer_token;
    header.type = type;
    header.generation = sequence;
    header.immediate = size;
    const int error = path.socket->send(build_frame(header, {}, size), path.to, path.from);
    if (error != 0 && error != EAGAIN && error != ENOBUFS && is_peer(path.to)) on_network_error({error, 0, path.to});
}

void Connection::note_source(std::uint32_t channel, const Address& from, const LocalAddress& local) {
    if (closed_ || broken_ || channel >= config_.paths.size() || from.empty() || config_.paths[channel].to == from)
        return;
    const TimePoint now = engine_.loop().now();
    const bool same = candidate_ && candidate_->channel == channel && candidate_->address == from;
    if (candidate_ && now - candidate_->since < kChallengeLife) {
        if (!same || now - candidate_->asked_at < kChallengeInterval) return;
    } else {
        candidate_ =
            Candidate{channel, static_cast<std::uint32_t>(engine_.new_token() >> 32) | 1u, from, local, now, {}};
    }
    candidate_->asked_at = now;
    TxPath there = config_.paths[channel];
    there.to = from;
    if (there.from.size > 0 && local.size > 0) there.from = local;
    send_frame_on(there, FrameType::kPing, candidate_->number, kHeaderBytes);
}

void Connection::on_pong(const FrameHeader& header, std::uint32_t channel, const Address& from) {
    if (header.immediate > kHeaderBytes) {
        big_ping_answered_ = header.generation;
        return;
    }
    if (!candidate_ || candidate_->number != header.generation || candidate_->channel != channel ||
        candidate_->address != from)
        return;
    TxPath& path = config_.paths[channel];
    log().info("UDP: {} is at {} now", path.to.to_string(), from.to_string());
    path.to = from;
    if (path.from.size > 0 && candidate_->local.size > 0) path.from = candidate_->local;
    target_.peers[channel].store(from.fingerprint(), std::memory_order_relaxed);
    ++counters_.migrations;
    refusals_ = 0;
    big_ping_answered_ = big_ping_sent_;  // those went to the old address
    candidate_.reset();
}

void Connection::on_frame(const FrameHeader& header, std::span<const std::byte> frame, std::uint32_t channel,
                          const Address& from, const LocalAddress& local) {
    target_.last_heard_ns.store(engine_.loop().now().nanoseconds(), std::memory_order_relaxed);
    // Late frames of the handshake do not show that the server has our Confirm.
    if (header.type != FrameType::kReply && header.type != FrameType::kRefuse && header.type != FrameType::kProbeReply)
        confirming_ = false;
    switch (header.type) {
        case FrameType::kDatagram: {
            ++counters_.datagrams_received;
            if (sdr::WireSink* const to = sink()) to->on_datagram(frame.subspan(kHeaderBytes));  // may destroy this
            return;
        }
        case FrameType::kPing: {
            TxPath back = config_.paths[channel < config_.paths.size() ? channel : 0];
            back.to = from;
            if (back.from.size > 0 && local.size > 0) back.from = local;
            return send_frame_on(back, FrameType::kPong, header.generation, header.immediate);
        }
        case FrameType::kPong:
            return on_pong(header, channel, from);
        case FrameType::kConfirm: {
            FrameHeader ack;
            ack.token = config_.peer_token;
            ack.type = FrameType::kConfirmAck;
            config_.paths[0].socket->send(build_frame(ack, {}), peer(), config_.paths[0].from);
            return;
        }
        case FrameType::kClose:
            peer_closed_ = true;
            return break_with(ErrorCode::kPeerGone, fmt::format("{} closed the connection", peer().to_string()));
        default:
            return;  // late frames of the handshake
    }
}

bool Connection::is_peer(const Address& address) const {
    for (const TxPath& path : config_.paths)
        if (path.to == address) return true;
    return false;
}

void Connection::on_network_error(const NetworkError& error) {
    const TimePoint now = engine_.loop().now();
    if (error.error == EMSGSIZE) {
        ++counters_.too_big;
        // 28 and 48: IP and UDP headers.
        const std::uint32_t packet =
            config_.parameters.payload_bytes + kHeaderBytes + (peer().is_ipv6() && !peer().is_mapped_ipv4() ? 48 : 28);
        if (error.mtu != 0 && error.mtu >= packet) return;  // about a probe
        for (TxPath& path : config_.paths) path.socket->allow_fragmentation();
        if (!std::exchange(counters_.fragmenting, true))
            log().warn(
                "UDP to {}: the path's MTU shrank to {}; packets of {} bytes are fragmented from here on. Reconnect to "
                "use smaller ones",
                peer().to_string(), error.mtu == 0 ? "less than a packet" : std::to_string(error.mtu), packet);
        return;
    }
    if (refusals_ == 0 || last_heard() > first_refusal_) {
        refusals_ = 0;
        first_refusal_ = now;
    }
    ++refusals_;
    refusal_error_ = error.error;
    // Where nobody watches the silence, this is the only way to notice.
    const UdpOptions& options = engine_.options();
    const bool watched = options.peer_timeout > Duration{} && options.ping_interval > Duration{};
    if (!watched && refusals_ >= kRefusalsNeeded && now - first_refusal_ >= options.connect_timeout) break_silent(now);
}

void Connection::break_silent(TimePoint now) {
    const std::string name = peer().to_string();
    const std::string silence = format_duration(now - last_heard());
    const bool refused = refusals_ > 0 && last_heard() <= first_refusal_;
    if (!refused) return break_with(ErrorCode::kPeerGone, fmt::format("{} vanished: silent for {}", name, silence));
    if (refusal_error_ == ECONNREFUSED)
        return break_with(ErrorCode::kPeerGone,
                          fmt::format("{} is gone: its port is closed, and it was silent for {}", name, silence));
    break_with(ErrorCode::kPeerGone, fmt::format("{} cannot be reached any more: {}, and it was silent for {}", name,
                                                 std::strerror(refusal_error_), silence));
}

void Connection::on_writable(std::uint32_t channel) {
    if (channel == kAnyChannel) {
        blocked_channels_ = 0;
    } else {
        blocked_channels_ &= ~(1u << channel);
    }
    if (!wants_writable_ || blocked_channels_ != 0) return;
    wants_writable_ = false;
    if (sdr::WireSink* const to = sink()) to->on_writable();
}

void Connection::break_with(ErrorCode code, std::string message) {
    if (closed_ || broken_) return;
    broken_ = Error{code, std::move(message)};
    tick_.disarm();
    // Not from inside a call of the layer above: from the loop.
    break_.arm(engine_.loop().now());
}

void Connection::on_break() {
    if (sdr::WireSink* const to = sink()) to->on_wire_error(*broken_);  // may destroy this
}

void Connection::arm_tick() {
    const UdpOptions& options = engine_.options();
    const TimePoint now = engine_.loop().now();
    if (confirming_) return tick_.arm(now + std::max(kConfirmInterval, config_.round_trip + config_.round_trip / 2));
    if (options.ping_interval > Duration{}) tick_.arm(now + options.ping_interval);
}

void Connection::on_tick() {
    const TimePoint now = engine_.loop().now();
    const UdpOptions& options = engine_.options();
    if (confirming_ && target_.packets.load(std::memory_order_relaxed) > 0) confirming_ = false;
    if (confirming_) {
        const Duration patience = options.peer_timeout > Duration{} ? options.peer_timeout : options.connect_timeout;
        if (now - created_ >= patience)
            return break_with(ErrorCode::kPeerGone, fmt::format("{} answered, but was not heard of again within {}",
                                                                peer().to_string(), format_duration(patience)));
        config_.paths[0].socket->send(config_.confirm_frame, peer(), config_.paths[0].from);
        return arm_tick();
    }
    const Duration silent = now - last_heard();
    if (last_heard() > heard_at_last_tick_) pings_since_heard_ = 0;
    heard_at_last_tick_ = last_heard();
    // Pings that were really sent, not only time that passed: this process may have been stopped for a while.
    if (options.peer_timeout > Duration{} && silent >= options.peer_timeout && pings_since_heard_ >= 3)
        return break_silent(now);
    if (silent >= options.ping_interval) {
        ++pings_since_heard_;
        send_frame(FrameType::kPing, 0, kHeaderBytes);
    }
    check_black_hole(now);
    arm_tick();
}

void Connection::check_black_hole(TimePoint now) {
    const std::uint64_t sent = counters_.packets_sent;
    if (sent == sent_at_last_tick_ || config_.parameters.payload_bytes <= kUnprobedPayloadBytes) return;
    sent_at_last_tick_ = sent;
    const bool heard = now - last_heard() < engine_.options().ping_interval * 2;
    // Where nothing passes, that big ones do not shows nothing.
    if (!heard) big_ping_answered_ = big_ping_sent_;
    // The last two may still be under way.
    const std::uint32_t lost = big_ping_sent_ - big_ping_answered_;
    if (lost > 2 && heard) ++counters_.big_pings_lost;
    if (lost >= kBigPingsToBlackHole + 2 && heard && !black_hole_) {
        black_hole_ = true;
        counters_.fragmenting = true;
        for (TxPath& path : config_.paths) path.socket->allow_fragmentation();
        log().warn(
            "UDP to {}: packets of {} bytes vanish although smaller ones pass (the path's MTU shrank and nobody says "
            "so); fragmentation "
            "is allowed from here on. Reconnect to use smaller ones",
            peer().to_string(), kHeaderBytes + config_.parameters.payload_bytes);
    }
    send_frame(FrameType::kPing, ++big_ping_sent_, kHeaderBytes + config_.parameters.payload_bytes);
}

UdpWireCounters Connection::counters() const {
    UdpWireCounters result = counters_;
    result.packets_received = target_.packets.load(std::memory_order_relaxed);
    result.receive_calls = target_.calls.load(std::memory_order_relaxed);
    return result;
}

bool Connection::segmentation_offload() const {
    for (const TxPath& path : config_.paths)
        if (!path.gso) return false;
    return true;
}

}  // namespace farhaul::udp
