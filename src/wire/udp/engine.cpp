#include "wire/udp/engine.hpp"

#include <cerrno>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/log.hpp"

namespace farhaul::udp {

namespace {

/// Batches taken from one socket before timers and other sockets get their turn.
constexpr int kBatchesPerEvent = 8;
/// Stray frames of receive threads that wait for the loop; more are dropped.
constexpr std::size_t kMaxStray = 256;
constexpr Duration kMemoryRetry = Duration::from_milliseconds(1);
constexpr Duration kThreadBusyPoll = Duration::from_microseconds(50);
constexpr Duration kReportInterval = Duration::from_milliseconds(1'000);

thread_local bool on_receive_thread = false;

}  // namespace

Result<std::unique_ptr<UdpEndpoint>> UdpEndpoint::open(RealLoop& loop, const UdpOptions& options) {
    if (options.channels < 1 || options.channels > kMaxChannels)
        return fail(ErrorCode::kInvalidArgument, "{} channels is out of range (1..{})", options.channels, kMaxChannels);
    if (options.max_connections < 1 || options.max_half_open < 1)
        return fail(ErrorCode::kInvalidArgument, "an endpoint needs room for at least one connection");
    loop.update_now();
    auto engine = std::make_unique<Engine>(loop, options);
    if (auto ok = engine->start(); !ok) return propagate(ok);
    return engine;
}

Engine::Engine(RealLoop& loop, const UdpOptions& options)
    : loop_(loop),
      options_(options),
      memory_timer_(
          loop.timers(), [](void* self) { static_cast<Engine*>(self)->on_memory_timer(); }, this),
      housekeeping_(loop.timers(), [](void* self) { static_cast<Engine*>(self)->on_housekeeping(); }, this) {
    order_.reserve(kTxBatch);
}

Status Engine::start() {
    notify_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    quit_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (notify_fd_ < 0 || quit_fd_ < 0) return fail_errno(errno, "cannot create an eventfd");
    if (auto ok = loop_.add_fd(notify_fd_, EPOLLIN, [this](std::uint32_t) { on_notify(); }); !ok) return ok;
    for (std::uint32_t i = 0; i < options_.channels; ++i) {
        SocketOptions socket_options{options_.bind, options_.socket_buffer_bytes, options_.gso, options_.gro};
        // The first channel has the port that people know, the others any free one: the handshake says which.
        if (i > 0) socket_options.bind = channels_[0]->socket.local().with_port(0);
        auto socket = UdpSocket::open(socket_options);
        if (!socket) return propagate(socket);
        auto channel = std::make_unique<Channel>();
        channel->socket = std::move(*socket);
        channel->receiver = std::make_unique<Receiver>(i, channel->socket, table_, static_cast<OtherFrames&>(*this));
        channels_.push_back(std::move(channel));
        const bool threaded = i > 0 && options_.receive_threads;
        // A receive thread reads; the loop still hears of errors and of room to write.
        if (auto ok = loop_.add_fd(channels_[i]->socket.fd(), threaded ? 0u : static_cast<unsigned>(EPOLLIN),
                                   [this, i](std::uint32_t events) { on_socket_event(i, events); });
            !ok)
            return ok;
    }
    ServerHandshake::Config server;
    server.max_half_open = options_.max_half_open;
    server.channels = options_.channels;
    for (std::uint32_t i = 0; i < options_.channels; ++i) server.ports[i] = channels_[i]->socket.local().port();
    server.new_token = [this] { return new_token(); };
    server_ = std::make_unique<ServerHandshake>(std::move(server));
    if (options_.receive_threads)
        for (std::uint32_t i = 1; i < options_.channels; ++i)
            channels_[i]->thread = std::thread([this, i] { run_channel(i); });
    return {};
}

Engine::~Engine() {
    // Their owners may outlive us: they find a closed wire.
    while (!connections_.empty()) connections_.begin()->second->close();
    if (quit_fd_ >= 0) {
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(quit_fd_, &one, sizeof(one));
    }
    for (auto& channel : channels_) {
        if (channel->thread.joinable()) channel->thread.join();
        loop_.remove_fd(channel->socket.fd());
    }
    if (notify_fd_ >= 0) {
        loop_.remove_fd(notify_fd_);
        ::close(notify_fd_);
    }
    if (quit_fd_ >= 0) ::close(quit_fd_);
}

std::uint64_t Engine::new_token() {
    for (;;) {
        std::uint64_t token = 0;
        // A few bytes after boot cannot fail or be short.
        if (getrandom(&token, sizeof(token), 0) != sizeof(token)) continue;
        if (token != 0 && !connections_.contains(token) && !attempts_.contains(token) &&
            server_->find(token) == nullptr && !closed_.contains(token))
            return token;
    }
}

void Engine::add(Connection& connection) {
    connections_.emplace(connection.token(), &connection);
    table_.insert(&connection.target(), [this] { quiesce(); });
}

void Engine::remove(Connection& connection, std::uint64_t peer_token, const TxPath& path, bool tell_peer) {
    const std::uint64_t token = connection.token();
    connections_.erase(token);
    table_.remove(&connection.target(), [this] { quiesce(); });
    server_->remove(token);
    constexpr std::size_t kMaxClosed = 1024;
    if (closed_order_.size() >= kMaxClosed) {
        closed_.erase(closed_order_.front());
        closed_order_.pop_front();
    }
    Closed& closed = closed_[token];
    closed.peer_token = tell_peer ? peer_token : 0;
    closed.path = path;
    closed.repeats_left = tell_peer ? 4 : 0;
    closed.forget_at = loop_.now() + Duration::from_milliseconds(10'000);
    closed_order_.push_back(token);
    if (tell_peer) send_close(closed);
    if (tell_peer) send_close(closed);  // the process may end now; twice is better than once
    closed.next_at = loop_.now() + Duration::from_milliseconds(20);
    housekeeping_.arm_no_later_than(closed.next_at);
}

void Engine::send_close(Closed& closed) {
    FrameHeader header;
    header.token = closed.peer_token;
    header.type = FrameType::kClose;
    closed.path.socket->send(build_frame(header, {}), closed.path.to, closed.path.from);
    if (closed.repeats_left > 0) --closed.repeats_left;
    closed.next_at = loop_.now() + Duration::from_milliseconds(100);
}

void Engine::quiesce() {
    for (auto& channel : channels_) {
        if (!channel->thread.joinable()) continue;
        const std::uint64_t seen = channel->epoch.load(std::memory_order_seq_cst);
        if (seen % 2 == 0) continue;
        for (int spin = 0; channel->epoch.load(std::memory_order_acquire) == seen; ++spin)
            if (spin > 100) std::this_thread::yield();
    }
}

void Engine::request_poll() {
    if (notified_.exchange(true, std::memory_order_acq_rel)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(notify_fd_, &one, sizeof(one));
}

void Engine::wait_writable(std::uint32_t channel) {
    const bool threaded = channel > 0 && options_.receive_threads;
    // Cannot fail for a descriptor that is watched.
    (void)loop_.modify_fd(channels_[channel]->socket.fd(), (threaded ? 0u : static_cast<unsigned>(EPOLLIN)) | EPOLLOUT);
}

void Engine::wait_for_memory() { memory_timer_.arm_no_later_than(loop_.now() + kMemoryRetry); }

void Engine::on_memory_timer() { tell_writable(Connection::kAnyChannel); }

std::vector<std::uint64_t> Engine::tokens() const {
    std::vector<std::uint64_t> result;
    result.reserve(connections_.size());
    for (const auto& [token, connection] : connections_) result.push_back(token);
    return result;
}

void Engine::tell_writable(std::uint32_t channel) {
    // By token: each call may end any connection.
    for (const std::uint64_t token : tokens())
        if (const auto found = connections_.find(token); found != connections_.end())
            found->second->on_writable(channel);
}

void Engine::on_notify() {
    std::uint64_t value = 0;
    [[maybe_unused]] const ssize_t got = read(notify_fd_, &value, sizeof(value));
    // After the read: whoever finds it set from here on is looked at below.
    notified_.exchange(false, std::memory_order_acq_rel);
    loop_.note_activity();
    std::vector<StrayFrame> frames;
    std::vector<NetworkError> errors;
    {
        const std::lock_guard lock(stray_mutex_);
        frames.swap(stray_);
        errors.swap(stray_errors_);
    }
    for (const StrayFrame& stray : frames) {
        if (stray.frame.empty())
            note_source(stray.channel, stray.token, stray.from, {});
        else
            dispatch(stray.channel, stray.frame, stray.from, {});
    }
    for (const NetworkError& error : errors) on_network_error(error);
    for (const std::uint64_t token : tokens()) {
        const auto found = connections_.find(token);
        if (found == connections_.end() || !found->second->take_poll_request()) continue;
        if (sdr::WireSink* const sink = found->second->sink()) sink->poll();
    }
}

void Engine::on_socket_event(std::uint32_t channel, std::uint32_t events) {
    if ((events & EPOLLERR) != 0) drain_errors(channel);
    const bool threaded = channel > 0 && options_.receive_threads;
    if ((events & EPOLLIN) != 0 && !threaded) {
        for (int batch = 0; batch < kBatchesPerEvent; ++batch) {
            const Receiver::Outcome outcome = channels_[channel]->receiver->receive(loop_.now());
            if (outcome == Receiver::Outcome::kError) drain_errors(channel);
            if (outcome != Receiver::Outcome::kReceived) break;
            loop_.note_activity();
        }
        report_drops(loop_.now());
    }
    if ((events & EPOLLOUT) != 0) {
        (void)loop_.modify_fd(channels_[channel]->socket.fd(), threaded ? 0u : static_cast<unsigned>(EPOLLIN));
        tell_writable(channel);
    }
}

void Engine::drain_errors(std::uint32_t channel) {
    // Bounded: a flood of them must not hold up the loop.
    for (int i = 0; i < 64; ++i) {
        const auto error = channels_[channel]->socket.next_error();
        if (!error) return;
        on_network_error(*error);
    }
}

void Engine::on_network_error(const NetworkError& error) {
    ++counters_.icmp_errors;
    if (error.destination.empty()) return;
    for (auto& [token, connection] : connections_)
        if (connection->is_peer(error.destination)) connection->on_network_error(error);
    if (error.error == EMSGSIZE) return;  // of a probe
    std::vector<std::uint64_t> failed;
    for (auto& [token, attempt] : attempts_)
        if (attempt->to[0] == error.destination) failed.push_back(token);
    for (const std::uint64_t token : failed) {
        const auto found = attempts_.find(token);
        if (found == attempts_.end()) continue;
        Attempt& attempt = *found->second;
        // A single report may be stray, or the other side may be about to start.
        if (attempt.refusals++ == 0) attempt.first_refusal = loop_.now();
        if (attempt.refusals < kRefusalsNeeded || loop_.now() - attempt.first_refusal < kConnectRefusalPatience)
            continue;
        const std::string& name = attempt.handshake.config().peer_name;
        attempt.handshake.on_refused(
            error.error == ECONNREFUSED
                ? Error{ErrorCode::kPeerGone,
                        fmt::format("nobody listens on {}: start the other side first, or check the port", name)}
                : send_failure(error.error, name).error());
        advance(attempt);
    }
}

void Engine::on_other_frame(std::uint32_t channel, std::span<const std::byte> frame, const Address& from,
                            const msghdr& message) {
    if (!on_receive_thread) return dispatch(channel, frame, from, local_address_of(message));
    if (static_cast<FrameType>(frame[12]) == FrameType::kData) {
        stray_foreign_.fetch_add(1, std::memory_order_relaxed);
        return;
    }
    {
        const std::lock_guard lock(stray_mutex_);
        if (stray_.size() >= kMaxStray) return;
        stray_.push_back({channel, {frame.begin(), frame.end()}, from, 0});
    }
    request_poll();
}

void Engine::on_new_address(std::uint32_t channel, std::uint64_t token, const Address& from, const msghdr& message) {
    if (!on_receive_thread) return note_source(channel, token, from, local_address_of(message));
    {
        const std::lock_guard lock(stray_mutex_);
        if (stray_.size() >= kMaxStray) return;
        stray_.push_back({channel, {}, from, token});
    }
    request_poll();
}

void Engine::note_source(std::uint32_t channel, std::uint64_t token, const Address& from, const LocalAddress& local) {
    if (const auto found = connections_.find(token); found != connections_.end())
        found->second->note_source(channel, from, local);
}

void Engine::run_channel(std::uint32_t index) {
    on_receive_thread = true;
    Channel& channel = *channels_[index];
    TimePoint busy_until;
    for (;;) {
        const TimePoint now = RealLoop::clock();
        channel.epoch.fetch_add(1, std::memory_order_seq_cst);
        const Receiver::Outcome outcome = channel.receiver->receive(now);
        channel.epoch.fetch_add(1, std::memory_order_seq_cst);
        if (outcome == Receiver::Outcome::kReceived) {
            busy_until = now + kThreadBusyPoll;
            continue;
        }
        std::vector<NetworkError> errors;
        while (errors.size() < 16) {
            const auto error = channel.socket.next_error();
            if (!error) break;
            errors.push_back(*error);
        }
        if (!errors.empty()) {
            {
                const std::lock_guard lock(stray_mutex_);
                if (stray_errors_.size() < kMaxStray)
                    stray_errors_.insert(stray_errors_.end(), errors.begin(), errors.end());
            }
            request_poll();
        }
        pollfd fds[2] = {{channel.socket.fd(), POLLIN, 0}, {quit_fd_, POLLIN, 0}};
        const bool busy = now < busy_until;
        poll(fds, 2, busy ? 0 : -1);
        if ((fds[1].revents & POLLIN) != 0) return;
    }
}

void Engine::on_housekeeping() {
    const TimePoint now = loop_.now();
    server_->expire(now);
    TimePoint next = TimePoint::never();
    if (server_->half_open() > 0) next = now + Duration::from_milliseconds(1'000);
    while (!closed_order_.empty() && closed_.at(closed_order_.front()).forget_at <= now) {
        closed_.erase(closed_order_.front());
        closed_order_.pop_front();
    }
    for (auto& [token, closed] : closed_) {
        if (closed.repeats_left == 0) continue;
        if (closed.next_at <= now) send_close(closed);
        if (closed.repeats_left > 0) next = std::min(next, closed.next_at);
    }
    if (!closed_order_.empty()) next = std::min(next, closed_.at(closed_order_.front()).forget_at);
    if (next < TimePoint::never()) housekeeping_.arm(next);
}

UdpCounters Engine::counters() const {
    UdpCounters result = counters_;
    for (const auto& channel : channels_) {
        const ReceiverCounters& own = channel->receiver->counters();
        result.frames_received += own.frames.get();
        result.bytes_received += own.bytes.get();
        result.malformed += own.malformed.get();
        result.corrupt += own.corrupt.get();
        result.early += own.early.get();
        result.truncated += own.truncated.get();
        result.kernel_drops += own.kernel_drops.get();
    }
    result.foreign += stray_foreign_.load(std::memory_order_relaxed);
    result.half_open_evicted = server_->evicted();
    return result;
}

void Engine::count_drop(std::uint64_t UdpCounters::* reason) {
    ++(counters_.*reason);
    report_drops(loop_.now());
}

void Engine::report_drops(TimePoint now) {
    if (now - drops_reported_at_ < kReportInterval) return;
    const UdpCounters total = counters();
    const std::uint64_t dropped = total.frames_dropped() + total.kernel_drops;
    drops_reported_at_ = now;
    if (dropped == std::exchange(drops_reported_, dropped)) return;
    if (total.kernel_drops > 0 && !std::exchange(overflow_told_, true))
        log().warn(
            "UDP {}: packets come faster than they are taken, and the socket's receive buffer overflowed ({} lost). "
            "Lower the "
            "sender's rate, or raise net.core.rmem_max",
            local_address().to_string(), total.kernel_drops);
    log().info(
        "UDP {}: frames dropped so far: {} foreign, {} stale, {} malformed, {} corrupt, {} early, {} truncated, {} by "
        "the kernel",
        local_address().to_string(), total.foreign, total.stale, total.malformed, total.corrupt, total.early,
        total.truncated, total.kernel_drops);
}

}  // namespace farhaul::udp
