// Connections coming and going: what the endpoint does with every frame that is not data.
#include <cerrno>
#include <fstream>

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/stat.h>

#include "wire/udp/engine.hpp"

namespace farhaul::udp {

namespace {

/// Equal in two processes that share a network namespace of one running kernel.
std::uint64_t host_identity() {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string boot;
    std::getline(file, boot);
    struct stat name_space{};
    if (stat("/proc/self/ns/net", &name_space) == 0) boot += std::to_string(name_space.st_ino);
    const auto bytes = std::as_bytes(std::span(boot));
    return static_cast<std::uint64_t>(crc32c(bytes)) << 32 | crc32c(bytes, 1);
}

}  // namespace

void Engine::Attempt::fire(void* self) {
    auto* const attempt = static_cast<Attempt*>(self);
    attempt->handshake.on_timer(attempt->engine.loop_.now());
    attempt->engine.advance(*attempt);  // may destroy it
}

void Engine::connect(const Address& peer, const ConnectParameters& wanted, std::vector<std::byte> blob,
                     ConnectCallback done) {
    loop_.update_now();
    const auto to = channels_[0]->socket.reachable(peer);
    ClientHandshake::Config config;
    config.wanted = wanted;
    config.wanted.channels = std::min(wanted.channels, options_.channels);
    const std::uint32_t most = peer.is_ipv6() && !peer.is_mapped_ipv4() ? kMaxPayloadBytes - 20 : kMaxPayloadBytes;
    config.wanted.payload_bytes = std::min(wanted.payload_bytes, most);
    config.blob = std::move(blob);
    config.client_token = new_token();
    config.timeout = options_.connect_timeout;
    config.peer_name = peer.to_string();
    config.own_port = local_address().port();
    const std::uint64_t token = config.client_token;
    auto attempt = std::make_unique<Attempt>(*this, std::move(config), nullptr);
    Attempt* const raw = attempt.get();
    raw->done = std::move(done);
    raw->handshake.set_send([this, raw](std::uint32_t channel, std::span<const std::byte> frame) {
        // Channel 0 goes to where the user said, which may be a relay. The others go to the same host, at the ports
        // that the server named.
        if (channel > 0 && raw->to[channel].empty())
            raw->to[channel] = raw->to[0].with_port(raw->handshake.reply().ports[channel]);
        const int error = channels_[channel]->socket.send(frame, raw->to[channel], {});
        if (error == EMSGSIZE) return ClientHandshake::Sent::kTooBig;
        // ECONNREFUSED is the report of an earlier request: on_network_error() counts those.
        if (error != 0 && error != EAGAIN && error != ENOBUFS && error != ECONNREFUSED)
            raw->handshake.on_refused(send_failure(error, raw->handshake.config().peer_name).error());
        return ClientHandshake::Sent::kOk;
    });
    attempts_.emplace(token, std::move(attempt));
    if (!to) {
        raw->handshake.on_refused(to.error());
    } else {
        raw->to[0] = *to;
        raw->handshake.start(loop_.now());
    }
    // Even a failure is told from the loop, never from inside connect().
    raw->timer.arm(raw->handshake.state() == ClientHandshake::State::kRequesting ? raw->handshake.next_deadline()
                                                                                 : loop_.now());
}

void Engine::advance(Attempt& attempt) {
    const ClientHandshake& handshake = attempt.handshake;
    const auto state = handshake.state();
    if (state == ClientHandshake::State::kRequesting || state == ClientHandshake::State::kProbing)
        return attempt.timer.arm(handshake.next_deadline());

    const std::uint64_t token = handshake.config().client_token;
    const auto node = attempts_.extract(token);  // the callback may start new attempts
    const ConnectCallback done = std::move(attempt.done);
    attempt.timer.disarm();
    if (state == ClientHandshake::State::kFailed) {
        if (done) done(std::unexpected(handshake.error()));
        return;
    }
    ConnectionConfig config;
    config.local_token = token;
    config.peer_token = handshake.reply().server_token;
    config.parameters = handshake.agreed();
    config.confirm_frame = handshake.confirm_frame();
    config.round_trip = handshake.round_trip();
    for (std::uint32_t channel = 0; channel < config.parameters.channels; ++channel)
        config.paths.push_back(
            {&channels_[channel]->socket, attempt.to[channel], {}, channels_[channel]->socket.has_gso()});
    Connected connected;
    connected.parameters = config.parameters;
    connected.blob = handshake.reply().blob;
    connected.peer = attempt.to[0];
    connected.round_trip = config.round_trip;
    connected.wire = std::make_unique<Connection>(*this, std::move(config));
    if (done) done(std::move(connected));
}

void Engine::listen(RequestCallback on_request, AcceptedCallback on_accepted) {
    on_request_ = std::move(on_request);
    on_accepted_ = std::move(on_accepted);
    listening_ = true;
}

void Engine::stop_listening() {
    listening_ = false;
    on_request_ = nullptr;
    on_accepted_ = nullptr;
}

void Engine::dispatch(std::uint32_t channel, std::span<const std::byte> frame, const Address& from,
                      const LocalAddress& local) {
    const FrameHeader header = read_header(frame.data());
    const auto connection = connections_.find(header.token);
    const auto attempt = attempts_.find(header.token);
    ServerHandshake::Entry* const entry = server_->find(header.token);
    const bool closed = closed_.contains(header.token);
    const bool request = header.token == 0 && header.type == FrameType::kRequest && listening_;
    if (connection == connections_.end() && attempt == attempts_.end() && entry == nullptr && !closed && !request)
        return count_drop(&UdpCounters::foreign);
    switch (check_frame(frame, header, token_crc(header.token), closed)) {
        case FrameCheck::kMalformed:
            return count_drop(&UdpCounters::malformed);
        case FrameCheck::kCorrupt:
            return count_drop(&UdpCounters::corrupt);
        case FrameCheck::kOk:
            break;
    }
    ++counters_.frames_received;
    counters_.bytes_received += frame.size();
    loop_.note_activity();
    if (request) return on_request(frame, from, local);
    if (attempt != attempts_.end()) {
        attempt->second->handshake.on_frame(loop_.now(), channel, header, frame);
        return advance(*attempt->second);
    }
    if (connection != connections_.end()) {
        if (header.type == FrameType::kProbe && entry != nullptr)
            return answer_probe(channel, entry->client_token, frame, from, local);
        connection->second->note_source(channel, from, local);
        return connection->second->on_frame(header, frame, channel, from, local);
    }
    if (entry != nullptr) return on_half_open_frame(*entry, channel, header, frame, from, local);
    on_closed_frame(header.token, header);
}

void Engine::on_request(std::span<const std::byte> frame, const Address& from, const LocalAddress& local) {
    const auto request = decode_request(frame.subspan(kHeaderBytes));
    if (!request) return count_drop(&UdpCounters::malformed);
    ++counters_.requests;
    const auto decide = [&](const RequestMessage& message) {
        ServerHandshake::Decision decision;
        if (connections_.size() >= options_.max_connections) {
            decision.reason =
                fmt::format("it has {} connections, the most that it takes; try again later", connections_.size());
        } else {
            RequestAnswer answer = on_request_({from, message.parameters, message.blob});
            decision = {answer.accepted, answer.own, std::move(answer.blob), std::move(answer.reason)};
        }
        if (!decision.accepted) ++counters_.requests_refused;
        return decision;
    };
    const auto answer = server_->on_request(loop_.now(), from, local, *request, decide);
    channels_[0]->socket.send(answer, from, local);
    if (server_->half_open() > 0) housekeeping_.arm_no_later_than(loop_.now() + Duration::from_milliseconds(1'000));
}

void Engine::answer_probe(std::uint32_t channel, std::uint64_t peer_token, std::span<const std::byte> frame,
                          const Address& from, const LocalAddress& local) {
    const FrameHeader probe = read_header(frame.data());
    FrameHeader header;
    header.token = peer_token;
    header.type = FrameType::kProbeReply;
    header.generation = probe.generation;
    header.immediate = probe.immediate;
    channels_[channel]->socket.send(build_frame(header, {}, frame.size()), from, local);
}

void Engine::on_half_open_frame(ServerHandshake::Entry& entry, std::uint32_t channel, const FrameHeader& header,
                                std::span<const std::byte> frame, const Address& from, const LocalAddress& local) {
    if (header.type == FrameType::kProbe) {
        if (channel > 0) entry.channel_peers[channel] = from;
        return answer_probe(channel, entry.client_token, frame, from, local.size > 0 ? local : entry.local);
    }
    if (header.type == FrameType::kClose) return server_->remove(entry.server_token);
    if (header.type != FrameType::kConfirm) return count_drop(&UdpCounters::early);
    const auto confirm = decode_confirm(frame.subspan(kHeaderBytes));
    if (!confirm) return count_drop(&UdpCounters::malformed);
    if (!server_->confirm(entry, *confirm)) return;
    ConnectionConfig config;
    config.local_token = entry.server_token;
    config.peer_token = entry.client_token;
    config.parameters = entry.agreed;
    for (std::uint32_t i = 0; i < config.parameters.channels; ++i)
        config.paths.push_back({&channels_[i]->socket, i == 0 ? entry.peer : entry.channel_peers[i], entry.local,
                                channels_[i]->socket.has_gso()});
    Connected connected;
    connected.parameters = entry.agreed;
    connected.blob = entry.blob;
    connected.peer = entry.peer;
    // The client had our reply and came back: the reply's way, the probing and the confirmation's way. An upper bound.
    connected.round_trip = loop_.now() - entry.answered_at;
    config.round_trip = connected.round_trip;
    auto connection = std::make_unique<Connection>(*this, std::move(config));
    connection->on_frame(header, frame, channel, from, local);  // acknowledges
    connected.wire = std::move(connection);
    if (on_accepted_) on_accepted_(std::move(connected));
}

void Engine::on_closed_frame(std::uint64_t token, const FrameHeader& header) {
    Closed& closed = closed_.at(token);
    // The peer has not heard that we are done.
    if (header.type != FrameType::kClose && closed.peer_token != 0 && loop_.now() >= closed.next_at) send_close(closed);
    if (header.type == FrameType::kClose) closed.repeats_left = 0;
    count_drop(&UdpCounters::stale);
}

std::vector<Address> Engine::own_addresses() const {
    if (!options_.advertise.empty()) return {options_.advertise};
    const Address& bound = local_address();
    if (!bound.is_wildcard()) return {bound};
    std::vector<Address> outside, loopback;
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) == 0) {
        for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
            if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
            const int family = entry->ifa_addr->sa_family;
            if (family != AF_INET && (family != AF_INET6 || !bound.is_ipv6())) continue;
            const Address address =
                Address::from_sockaddr(entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
            if (family == AF_INET6 &&
                IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr))
                continue;
            (address.is_loopback() ? loopback : outside).push_back(address);
        }
        freeifaddrs(list);
    }
    // One place is kept for loopback, for a peer on this host.
    if (outside.size() >= kMaxInfoAddresses) outside.resize(kMaxInfoAddresses - 1);
    outside.insert(outside.end(), loopback.begin(), loopback.end());
    if (outside.size() > kMaxInfoAddresses) outside.resize(kMaxInfoAddresses);
    return outside;
}

std::vector<std::byte> Engine::local_info(const ConnectParameters& parameters) {
    InfoMessage info;
    info.token = new_token();
    info.host = host_identity();
    info.parameters = parameters;
    info.parameters.channels = std::min(parameters.channels, options_.channels);
    for (std::uint32_t i = 0; i < info.parameters.channels; ++i) info.ports[i] = channels_[i]->socket.local().port();
    if (!options_.advertise.empty() && options_.advertise.port() != 0) info.ports[0] = options_.advertise.port();
    info.addresses = own_addresses();
    return encode_info(info);
}

Result<std::unique_ptr<UdpWire>> Engine::create_wire(std::span<const std::byte> local_bytes,
                                                     std::span<const std::byte> remote_bytes) {
    loop_.update_now();
    auto local = decode_info(local_bytes);
    if (!local) return propagate(local);
    auto remote = decode_info(remote_bytes);
    if (!remote) return propagate(remote);
    if (connections_.contains(local->token))
        return fail(ErrorCode::kInvalidArgument, "this end is connected already: export a fresh one for another peer");
    if (local->token == remote->token)
        return fail(ErrorCode::kInvalidArgument, "this is our own connection info, not the peer's");
    if (local->parameters.packets_per_chunk != remote->parameters.packets_per_chunk ||
        local->parameters.layout != remote->parameters.layout)
        return fail(ErrorCode::kInvalidArgument,
                    "the two sides differ in chunk size ({} and {} packets) or in the immediate's split",
                    local->parameters.packets_per_chunk, remote->parameters.packets_per_chunk);

    const bool same_host = remote->host == local->host;
    std::optional<Address> to;
    for (const bool want_loopback : {same_host, !same_host})
        for (const Address& address : remote->addresses)
            if (!to && address.is_loopback() == want_loopback)
                if (auto usable = channels_[0]->socket.reachable(address)) to = *usable;
    if (!to)
        return fail(ErrorCode::kInvalidArgument, "the peer has no address that {} can reach",
                    local_address().to_string());

    ConnectionConfig config;
    config.local_token = local->token;
    config.peer_token = remote->token;
    config.parameters = negotiate(local->parameters, remote->parameters);
    config.parameters.channels = std::min(config.parameters.channels, options_.channels);
    for (std::uint32_t i = 0; i < config.parameters.channels; ++i)
        config.paths.push_back(
            {&channels_[i]->socket, to->with_port(remote->ports[i]), {}, channels_[i]->socket.has_gso()});
    return std::make_unique<Connection>(*this, std::move(config));
}

}  // namespace farhaul::udp
