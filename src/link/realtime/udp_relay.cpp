#include "link/realtime/udp_relay.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <netinet/udp.h>
#include <sys/epoll.h>

#include "base/random.hpp"

namespace farhaul::link {
namespace {

constexpr int kUdpSegment = 103;  // UDP_SEGMENT of linux/udp.h
constexpr std::uint32_t kMaxMessageBytes = 65000;
constexpr int kBatchesPerStep = 8;  // then what is due gets its turn

Status watch(int epoll, int fd, std::uint64_t who) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = who;
    if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) return fail_errno(errno, "cannot watch a socket");
    return {};
}

}  // namespace

std::span<std::byte> UdpRelay::Datagrams::segment(std::uint32_t i) const {
    const std::uint32_t offset = i * segment_bytes;
    return {bytes.get() + offset, std::min(segment_bytes, size - offset)};
}

TimePoint UdpRelay::Datagrams::due(std::uint32_t i) const {
    return segments < 2 ? last_due : first_due + (last_due - first_due) * i / (segments - 1);
}

Result<std::unique_ptr<UdpRelay>> UdpRelay::create(const RelayConfig& config, LinkPair models) {
    auto listener = UdpSocket::listening(config.listen);
    if (!listener) return propagate(listener);
    auto local = listener->local();
    if (!local) return propagate(local);
    if (auto probe = UdpSocket::connected(config.target); !probe) return propagate(probe);
    io::UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll) return fail_errno(errno, "cannot create an epoll instance");
    if (auto ok = watch(epoll.get(), listener->fd(), kListener); !ok) return propagate(ok);
    auto relay =
        std::unique_ptr<UdpRelay>(new UdpRelay(config, std::move(models), std::move(*listener), std::move(epoll)));
    relay->local_ = *local;
    return relay;
}

UdpRelay::UdpRelay(const RelayConfig& config, LinkPair models, UdpSocket listener, io::UniqueFd epoll)
    : config_(config),
      models_{std::move(models.forward), std::move(models.backward)},
      listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      header_bytes_(config.target.is_ipv6() ? 48 : 28) {
    if (const auto bytes = listener_.receive_buffer(); bytes < (8u << 20))
        notes_.push_back(fmt::format(
            "the kernel grants only {} of receive buffer: run as root or raise net.core.rmem_max to 64 MiB if packets "
            "are dropped before the model",
            format_size(bytes)));
}

void UdpRelay::note(bool& said, std::string text) {
    if (!said) notes_.push_back(std::move(text));
    said = true;
}

Status UdpRelay::step(Duration longest_wait) {
    now_ = clock_.now();
    const TimePoint next_due = std::min(lanes_[kForward].line.next_due(), lanes_[kBackward].line.next_due());
    const Duration until_due = next_due > now_ ? next_due - now_ : Duration();
    pollfd descriptor{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
    // While datagrams flow, sleep without watching the sockets and take what came meanwhile as one batch.
    if (received_last_step_ || blocked_)
        stalls_.wait(clock_, {}, std::min(kNap, longest_wait));
    else
        stalls_.wait(clock_, {&descriptor, 1}, std::min(std::max(until_due, kNap), longest_wait));

    std::array<epoll_event, 64> events;
    const int n = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    received_last_step_ = false;
    blocked_ = false;
    for (int i = 0; i < n; ++i)
        if (receive_from(static_cast<std::size_t>(events[static_cast<std::size_t>(i)].data.u64)))
            received_last_step_ = true;
    deliver(kForward);
    deliver(kBackward);
    if (now_ >= next_sweep_) forget_idle_clients();
    return {};
}

bool UdpRelay::receive_from(std::size_t who) {
    const bool from_listener = who == kListener;
    if (!from_listener && !clients_[who].used) return false;
    bool any = false;
    for (int round = 0; round < kBatchesPerStep; ++round) {
        int error = 0;
        const auto batch = batch_.receive(from_listener ? listener_.fd() : clients_[who].socket.fd(), error);
        now_ = clock_.now();
        if (error == ECONNREFUSED) {
            note(said_refused_, fmt::format("nothing listens at {} (connection refused)", config_.target.to_string()));
            continue;  // the error is taken off the socket; datagrams may wait behind it
        }
        if (batch.empty()) break;
        any = true;
        for (const auto& received : batch) {
            if (!from_listener) {
                clients_[who].last_seen = now_;
                enter(kBackward, static_cast<std::uint32_t>(who), received);
            } else if (Client* client = find_or_add(received)) {
                client->last_seen = now_;
                enter(kForward, static_cast<std::uint32_t>(client - clients_.data()), received);
            } else {
                lanes_[kForward].report.unusable_packets += received.segments();
            }
        }
        if (batch.size() < ReceiveBatch::kMessages) break;
    }
    return any;
}

UdpRelay::Client* UdpRelay::find_or_add(const Received& received) {
    if (const auto it = by_address_.find(*received.from); it != by_address_.end()) {
        clients_[it->second].source = received.to;
        return &clients_[it->second];
    }
    if (clients_now_ >= config_.max_clients) {
        note(said_full_,
             fmt::format("more than {} clients: the datagrams of further ones are dropped", config_.max_clients));
        return nullptr;
    }
    auto socket = UdpSocket::connected(config_.target);
    if (!socket) {
        note(said_socket_, socket.error().message);
        return nullptr;
    }
    std::size_t index = 0;
    while (index < clients_.size() && clients_[index].used) ++index;
    if (index == clients_.size()) clients_.emplace_back();
    if (auto ok = watch(epoll_.get(), socket->fd(), index); !ok) {
        note(said_socket_, ok.error().message);
        return nullptr;
    }
    Client& client = clients_[index];
    client.used = true;
    ++client.generation;
    client.address = *received.from;
    client.source = received.to;
    client.socket = std::move(*socket);
    by_address_.emplace(client.address, static_cast<std::uint32_t>(index));
    ++clients_now_;
    return &client;
}

void UdpRelay::enter(Direction direction, std::uint32_t client, const Received& received) {
    Lane& lane = lanes_[direction];
    const auto total = static_cast<std::uint32_t>(received.bytes.size());
    const std::uint32_t unit = received.segment_bytes;
    const auto size_of = [&](std::uint32_t i) { return std::min(unit, total - i * unit) + header_bytes_; };
    split_into_runs(models_[direction], now_, received.segments(), size_of, [&](const Run& run) {
        const std::uint32_t begin = run.first * unit;
        Datagrams d;
        d.size = std::min(run.count * unit, total - begin);
        d.segment_bytes = std::min(unit, d.size);
        d.segments = run.count;
        d.client = client;
        d.generation = clients_[client].generation;
        d.first_due = run.first_due;
        d.last_due = run.last_due;
        d.bytes = std::make_unique_for_overwrite<std::byte[]>(std::max(d.size, 1u));
        std::memcpy(d.bytes.get(), received.bytes.data() + begin, d.size);
        if (run.corrupted && d.size != 0) {
            // Which bit is flipped follows from the packet's number, so that a seed replays.
            const std::uint64_t bit = Random(models_[direction].counters().corrupted).below(std::uint64_t{d.size} * 8);
            d.bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
        }
        lane.pending_segments += d.segments;
        lane.line.push(run.last_due, run.in_order, std::move(d));
    });
}

void UdpRelay::deliver(Direction direction) {
    Lane& lane = lanes_[direction];
    now_ = clock_.now();
    for (;;) {
        if (lane.next == lane.due.size()) {
            lane.due.clear();
            lane.next = 0;
            while (lane.due.size() < 256 && lane.line.next_due() <= now_) {
                lane.due.push_back(std::move(lane.line.front()));
                lane.line.pop();
            }
            if (lane.due.empty()) return;
        }
        if (!send_due(direction)) {
            blocked_ = true;
            return;
        }
    }
}

// Makes messages of the first datagrams that are due and go to one socket; how many, and which socket.
std::size_t UdpRelay::gather(Direction direction, int& fd) {
    Lane& lane = lanes_[direction];
    std::size_t used = 0, io = 0;
    fd = -1;
    std::size_t i = lane.next;
    std::uint32_t sent = lane.due[i].sent;  // of the run at i, once the messages so far have left
    while (i < lane.due.size() && used < kMessages) {
        const Datagrams& first = lane.due[i];
        const Client& client = clients_[first.client];
        if (!client.used || client.generation != first.generation) break;  // its turn comes alone, and ends it
        const int socket = direction == kForward ? client.socket.fd() : listener_.fd();
        if (fd >= 0 && socket != fd) break;
        fd = socket;
        // One message: the rest of this run, and of following ones while they are of one client and one size.
        const std::size_t io_begin = io;
        std::uint32_t bytes = 0, segments = 0;
        const std::uint32_t unit = first.segment_bytes;
        bool open = true;
        while (open && i < lane.due.size() && io < io_.size()) {
            const Datagrams& d = lane.due[i];
            if (d.client != first.client || d.generation != first.generation) break;
            while (sent < d.segments) {
                const auto s = d.segment(sent);
                if (segments != 0 &&
                    (!use_gso_ || unit == 0 || s.size() > unit || s.empty() || segments == kSegmentsPerMessage ||
                     bytes + s.size() > kMaxMessageBytes || io == io_.size())) {
                    open = false;
                    break;
                }
                io_[io++] = iovec{s.data(), s.size()};
                bytes += static_cast<std::uint32_t>(s.size());
                ++segments, ++sent;
                if (s.size() < unit) {
                    open = false;  // a shorter one ends a message
                    break;
                }
            }
            if (sent < d.segments) break;
            ++i;
            sent = i < lane.due.size() ? lane.due[i].sent : 0;
        }
        msghdr& m = messages_[used].msg_hdr;
        m = msghdr{};
        m.msg_iov = &io_[io_begin];
        m.msg_iovlen = io - io_begin;
        std::size_t control = 0;
        if (direction == kBackward) {
            m.msg_name = const_cast<sockaddr_storage*>(&client.address.address);
            m.msg_namelen = client.address.length;
            std::memcpy(control_[used].data(), client.source.control.data(), client.source.length);
            control = client.source.length;
        }
        if (segments > 1) {
            auto* c = reinterpret_cast<cmsghdr*>(control_[used].data() + control);
            const auto size = static_cast<std::uint16_t>(unit);
            c->cmsg_level = SOL_UDP;
            c->cmsg_type = kUdpSegment;
            c->cmsg_len = CMSG_LEN(sizeof size);
            std::memcpy(CMSG_DATA(c), &size, sizeof size);
            control += CMSG_SPACE(sizeof size);
        }
        m.msg_control = control != 0 ? control_[used].data() : nullptr;
        m.msg_controllen = control;
        message_info_[used++].segments = segments;
    }
    return used;
}

// Marks the next `segments` datagrams as gone.
void UdpRelay::advance(Lane& lane, std::uint32_t segments, bool sent) {
    while (segments != 0) {
        Datagrams& d = lane.due[lane.next];
        const std::uint32_t n = std::min(segments, d.segments - d.sent);
        if (sent)
            for (std::uint32_t i = 0; i < n; ++i) lane.report.lateness.add(now_ - d.due(d.sent + i));
        (sent ? lane.report.sent_packets : lane.report.lost_after_model) += n;
        lane.pending_segments -= n;
        d.sent += n;
        segments -= n;
        if (d.sent == d.segments) {
            d.bytes.reset();
            ++lane.next;
        }
    }
}

// Sends a batch of what is due. False: the socket is full, try again later.
bool UdpRelay::send_due(Direction direction) {
    Lane& lane = lanes_[direction];
    int fd = -1;
    const std::size_t used = gather(direction, fd);
    if (used == 0) {  // its client was forgotten meanwhile
        Datagrams& d = lane.due[lane.next];
        lane.report.unusable_packets += d.segments - d.sent;
        lane.pending_segments -= d.segments - d.sent;
        ++lane.next;
        return true;
    }
    const int n = ::sendmmsg(fd, messages_.data(), static_cast<unsigned>(used), MSG_DONTWAIT);
    const int error = n < 0 ? errno : 0;
    now_ = clock_.now();
    for (int i = 0; i < n; ++i) advance(lane, message_info_[static_cast<std::size_t>(i)].segments, true);
    return n > 0 || on_send_error(lane, error);
}

bool UdpRelay::on_send_error(Lane& lane, int error) {
    const std::uint32_t segments = message_info_[0].segments;
    if (error == EAGAIN || error == EINTR || error == ENOBUFS) return false;
    if (error == ECONNREFUSED) {
        // An answer to an earlier datagram, which the kernel gives to this call; this one is not sent yet, so it is
        // tried again.
        note(said_refused_, fmt::format("nothing listens at {} (connection refused)", config_.target.to_string()));
        return true;
    }
    if (segments > 1 && (error == EIO || error == EINVAL || error == EMSGSIZE || error == EOPNOTSUPP)) {
        use_gso_ = false;
        note(said_gso_, fmt::format("the route refuses segmentation offload ({}): datagrams leave one by one",
                                    std::strerror(error)));
        return true;
    }
    note(said_send_error_, fmt::format("the kernel refused to send a datagram: {}", std::strerror(error)));
    advance(lane, segments, false);
    return true;
}

void UdpRelay::forget_idle_clients() {
    next_sweep_ = now_ + std::min(Duration::from_seconds(1), config_.client_idle / 2);
    for (std::size_t i = 0; i < clients_.size(); ++i)
        if (clients_[i].used && now_ - clients_[i].last_seen > config_.client_idle)
            remove(static_cast<std::uint32_t>(i));
}

void UdpRelay::remove(std::uint32_t index) {
    Client& client = clients_[index];
    dropped_of_forgotten_ += client.socket.dropped_by_kernel();
    by_address_.erase(client.address);
    client.socket = UdpSocket();
    client.used = false;
    --clients_now_;
}

ForwarderReport UdpRelay::report() {
    ForwarderReport r;
    r.running = clock_.now() - TimePoint();
    r.cpu = clock_.cpu();
    r.longest_stall = stalls_.longest();
    r.clients = clients_now_;
    r.notes = notes_;
    lanes_[kForward].report.lost_before_model = listener_.dropped_by_kernel();
    lanes_[kBackward].report.lost_before_model = dropped_of_forgotten_;
    for (const auto& client : clients_)
        if (client.used) lanes_[kBackward].report.lost_before_model += client.socket.dropped_by_kernel();
    for (const Direction d : {kForward, kBackward}) {
        lanes_[d].report.model = models_[d].counters();
        lanes_[d].report.waiting_packets = lanes_[d].pending_segments;
        r.directions[d] = lanes_[d].report;
    }
    return r;
}

}  // namespace farhaul::link
