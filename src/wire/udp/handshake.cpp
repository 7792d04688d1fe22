#include "wire/udp/handshake.hpp"

#include <algorithm>

#include "base/units.hpp"

namespace farhaul::udp {

std::vector<std::uint32_t> probe_ladder(std::uint32_t wanted_frame_bytes) {
    // What common paths carry, as UDP payload: 1280 with IPv6, tunnels, 1500 with IPv6 and IPv4, 4 KiB and 8 KiB with
    // our header, jumbo frames of 9000.
    static constexpr std::uint32_t kSizes[] = {1232, 1372, 1412, 1432, 1452, 1472,  2020,
                                               4068, 4120, 8216, 8952, 8972, 16384, 32768};
    std::vector<std::uint32_t> ladder;
    if (wanted_frame_bytes <= kHandshakeFrameBytes) return ladder;
    ladder.push_back(wanted_frame_bytes);
    for (std::size_t i = std::size(kSizes); i-- > 0;)
        if (kSizes[i] < wanted_frame_bytes) ladder.push_back(kSizes[i]);
    return ladder;
}

void ClientHandshake::fail_with(ErrorCode code, std::string message) {
    state_ = State::kFailed;
    error_ = Error{code, std::move(message)};
    deadline_ = TimePoint::never();
}

void ClientHandshake::start(TimePoint now) {
    if (auto ok = config_.wanted.validate(); !ok) return fail_with(ErrorCode::kInvalidArgument, ok.error().message);
    if (config_.blob.size() > kMaxBlobBytes)
        return fail_with(ErrorCode::kInvalidArgument,
                         fmt::format("the application's part of a connect request has {} bytes, at most {} fit",
                                     config_.blob.size(), kMaxBlobBytes));
    give_up_at_ = now + config_.timeout;
    first_request_at_ = now;
    send_request(now);
}

void ClientHandshake::send_request(TimePoint now) {
    RequestMessage message;
    message.client_token = config_.client_token;
    message.parameters = config_.wanted;
    message.blob = config_.blob;
    FrameHeader header;
    header.type = FrameType::kRequest;
    header.version = 0;
    header.generation = requests_++;
    send_(0, build_frame(header, encode(message), kHandshakeFrameBytes));
    deadline_ = std::min(now + interval_, give_up_at_);
    interval_ = std::min(interval_ + interval_ / 2, kLongestRequestInterval);
}

void ClientHandshake::on_frame(TimePoint now, std::uint32_t channel, const FrameHeader& header,
                               std::span<const std::byte> frame) {
    const auto body = frame.subspan(kHeaderBytes);
    if (state_ == State::kRequesting) {
        if (header.type == FrameType::kReply) return on_reply(now, body);
        if (header.type != FrameType::kRefuse) return;
        const auto refuse = decode_refuse(body);
        if (!refuse) return;
        if (refuse->version_oldest > kVersion || refuse->version_newest < kOldestVersion)
            return fail_with(
                ErrorCode::kProtocol,
                fmt::format("{} speaks versions {} to {} of the wire format, we speak {} to {}: update the older side",
                            config_.peer_name, refuse->version_oldest, refuse->version_newest, kOldestVersion,
                            kVersion));
        return fail_with(ErrorCode::kProtocol,
                         fmt::format("{} refused the connection: {}", config_.peer_name, refuse->reason));
    }
    if (state_ == State::kProbing && header.type == FrameType::kProbeReply) {
        for (ProbeSize& size : sizes_)
            if (size.frame_bytes == header.immediate) size.answered = true;
        if (channel < agreed_.channels) channels_answered_ |= 1u << channel;
        if (probing_done()) finish_probing();
    }
}

void ClientHandshake::on_reply(TimePoint now, std::span<const std::byte> body) {
    auto reply = decode_reply(body);
    if (!reply) return;
    // A server that agrees to more than was asked for is not one of ours.
    agreed_ = negotiate(config_.wanted, reply->parameters);
    reply_ = std::move(*reply);
    if (config_.own_port != 0 && reply_.observed_port != config_.own_port) agreed_.channels = 1;
    // With several requests under way the reply may be to any of them: the longest possible time is the safe one for
    // timers.
    round_trip_ = now - first_request_at_;
    if (requests_ > 1) round_trip_ = std::min(round_trip_, kLongestRequestInterval);
    for (const std::uint32_t bytes : probe_ladder(agreed_.payload_bytes + kHeaderBytes)) sizes_.push_back({bytes});
    state_ = State::kProbing;
    probing_since_ = now;
    if (probing_done()) return finish_probing();
    send_probes(now);
}

void ClientHandshake::send_probe(std::uint32_t channel, ProbeSize& size) {
    FrameHeader header;
    header.token = reply_.server_token;
    header.type = FrameType::kProbe;
    header.generation = rounds_;
    header.immediate = size.frame_bytes;
    if (send_(channel, build_frame(header, {}, size.frame_bytes)) == Sent::kTooBig) size.given_up = true;
}

void ClientHandshake::send_probes(TimePoint now) {
    ++rounds_;
    // Sizes below one that was answered are settled.
    for (ProbeSize& size : sizes_) {
        if (size.answered) break;
        if (!size.given_up) send_probe(0, size);
    }
    ProbeSize small{kHandshakeFrameBytes};
    for (std::uint32_t channel = 1; channel < agreed_.channels; ++channel)
        if ((channels_answered_ & (1u << channel)) == 0) send_probe(channel, small);
    if (probing_done()) return finish_probing();  // the kernel refused all that was left
    // The last round waits for answers to itself; earlier ones need not wait for a whole round trip.
    const Duration spacing = std::max(kShortestProbeInterval, round_trip_ / 4);
    deadline_ = now + (rounds_ < kProbeRounds ? spacing : std::max(spacing, round_trip_ * 2) + kShortestProbeInterval);
}

bool ClientHandshake::probing_done() const {
    for (std::uint32_t channel = 1; channel < agreed_.channels; ++channel)
        if ((channels_answered_ & (1u << channel)) == 0) return false;
    for (const ProbeSize& size : sizes_) {
        if (size.answered) return true;  // they are sorted: nothing larger is left
        if (!size.given_up) return false;
    }
    return true;
}

void ClientHandshake::finish_probing() {
    std::uint32_t frame_bytes = std::min(agreed_.payload_bytes + kHeaderBytes, kHandshakeFrameBytes);
    for (const ProbeSize& size : sizes_)
        if (size.answered) frame_bytes = std::max(frame_bytes, size.frame_bytes);
    agreed_.payload_bytes = frame_bytes - kHeaderBytes;
    std::uint32_t channels = 1;
    while (channels < agreed_.channels && (channels_answered_ & (1u << channels)) != 0) ++channels;
    agreed_.channels = channels;
    state_ = State::kConnected;
    deadline_ = TimePoint::never();
}

void ClientHandshake::on_timer(TimePoint now) {
    if (now < deadline_) return;
    if (state_ == State::kRequesting) {
        if (now >= give_up_at_)
            return fail_with(
                ErrorCode::kTimeout,
                fmt::format("no answer from {} within {}: is it running, and does a firewall let its UDP port through?",
                            config_.peer_name, format_duration(config_.timeout)));
        return send_request(now);
    }
    if (state_ != State::kProbing) return;
    if (rounds_ >= kProbeRounds) {
        finish_probing();
    } else {
        send_probes(now);
    }
}

void ClientHandshake::on_refused(const Error& error) {
    if (state_ == State::kRequesting) fail_with(error.code, error.message);
}

std::vector<std::byte> ClientHandshake::confirm_frame() const {
    FrameHeader header;
    header.token = reply_.server_token;
    header.type = FrameType::kConfirm;
    return build_frame(header,
                       encode(ConfirmMessage{agreed_.payload_bytes, static_cast<std::uint8_t>(agreed_.channels)}));
}

std::vector<std::byte> ServerHandshake::on_request(TimePoint now, const Address& peer, const LocalAddress& local,
                                                   const RequestMessage& request,
                                                   const std::function<Decision(const RequestMessage&)>& decide) {
    const auto refuse = [&](std::string reason) {
        FrameHeader header;
        header.token = request.client_token;
        header.type = FrameType::kRefuse;
        header.version = 0;
        RefuseMessage message;
        message.reason = std::move(reason);
        return build_frame(header, encode(message));
    };
    if (request.version_oldest > kVersion || request.version_newest < kOldestVersion)
        return refuse("no common version of the wire format");
    if (const auto known = by_client_.find(request.client_token); known != by_client_.end()) {
        Entry& entry = entries_.at(known->second);
        if (!entry.confirmed) entry.peer = peer, entry.local = local;
        return entry.reply;
    }

    const Decision decision = decide(request);
    if (!decision.accepted) return refuse(decision.reason);
    if (auto ok = decision.own.validate(); !ok)
        return refuse("the server's own parameters are wrong: " + ok.error().message);
    if (decision.blob.size() > kMaxBlobBytes) return refuse("the server's answer does not fit into a reply");

    Entry entry;
    entry.client_token = request.client_token;
    entry.server_token = config_.new_token();
    entry.peer = peer;
    entry.local = local;
    entry.agreed = negotiate(request.parameters, decision.own);
    entry.agreed.channels = std::min(entry.agreed.channels, config_.channels);
    entry.blob = request.blob;
    entry.answered_at = now;
    ReplyMessage reply;
    reply.server_token = entry.server_token;
    reply.observed_port = peer.empty() ? 0 : peer.port();
    reply.parameters = entry.agreed;
    std::copy_n(config_.ports.begin(), entry.agreed.channels, reply.ports.begin());
    reply.blob = decision.blob;
    FrameHeader header;
    header.token = request.client_token;
    header.type = FrameType::kReply;
    entry.reply = build_frame(header, encode(reply), kHandshakeFrameBytes);

    while (!half_open_.empty() && half_open_.size() >= config_.max_half_open) {
        remove(half_open_.front());
        ++evicted_;
    }
    half_open_.push_back(entry.server_token);
    entry.age = std::prev(half_open_.end());
    by_client_[entry.client_token] = entry.server_token;
    auto frame = entry.reply;
    entries_.emplace(entry.server_token, std::move(entry));
    return frame;
}

ServerHandshake::Entry* ServerHandshake::find(std::uint64_t server_token) {
    const auto found = entries_.find(server_token);
    return found == entries_.end() ? nullptr : &found->second;
}

bool ServerHandshake::confirm(Entry& entry, const ConfirmMessage& confirm) {
    if (entry.confirmed) return false;
    entry.confirmed = true;
    half_open_.erase(entry.age);
    entry.agreed.payload_bytes = std::min(entry.agreed.payload_bytes, confirm.payload_bytes);
    std::uint32_t channels = 1;
    // Only channels over which the client's probes came: the others we could not answer on.
    while (channels < std::min<std::uint32_t>(entry.agreed.channels, confirm.channels) &&
           !entry.channel_peers[channels].empty())
        ++channels;
    entry.agreed.channels = channels;
    return true;
}

void ServerHandshake::remove(std::uint64_t server_token) {
    const auto found = entries_.find(server_token);
    if (found == entries_.end()) return;
    if (!found->second.confirmed) half_open_.erase(found->second.age);
    by_client_.erase(found->second.client_token);
    entries_.erase(found);
}

void ServerHandshake::expire(TimePoint now) {
    while (!half_open_.empty() && entries_.at(half_open_.front()).answered_at + kHalfOpenLife <= now)
        remove(half_open_.front());
}

}  // namespace farhaul::udp
