// What the tests of the UDP wire share: a sink that records, two endpoints on one loop, and a relay that misbehaves on
// demand.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/random.hpp"
#include "wire/udp/connection.hpp"
#include "wire/udp/endpoint.hpp"
#include "wire/udp/frame.hpp"
#include "wire/udp/real_loop.hpp"

namespace farhaul::udp {

inline Address loopback(std::uint16_t port = 0) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

inline std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
    std::vector<std::byte> bytes(size);
    std::uint32_t x = seed * 2654435761u + 1;
    for (auto& byte : bytes) byte = static_cast<std::byte>((x = x * 1664525u + 1013904223u) >> 24);
    return bytes;
}

/// Places payload by immediate (packet index) and counts. Its bytes may be written by several channel threads, each
/// packet once.
class RecordingSink : public sdr::WireSink {
 public:
    explicit RecordingSink(std::size_t bytes = 0, std::uint32_t payload = 1)
        : buffer(bytes), payload_bytes(payload), seen(bytes / payload + 1) {}

    void on_arrivals(std::uint32_t channel, std::span<const sdr::Arrival> arrivals) override {
        for (const sdr::Arrival& arrival : arrivals) {
            const std::uint64_t at = std::uint64_t{arrival.immediate} * payload_bytes;
            if (at + arrival.length <= buffer.size() && arrival.length > 0)
                std::memcpy(buffer.data() + at, arrival.payload, arrival.length);
            if (arrival.immediate < seen.size() && seen[arrival.immediate].exchange(1) == 0) distinct.fetch_add(1);
            last_generation.store(arrival.generation);
        }
        packets.fetch_add(arrivals.size());
        channel_packets[channel].fetch_add(arrivals.size());
        if (on_data) on_data();
    }
    void on_datagram(std::span<const std::byte> datagram) override {
        datagrams.emplace_back(datagram.begin(), datagram.end());
        if (on_control) on_control();
    }
    void on_writable() override { ++writable; }
    void poll() override { ++polls; }
    void on_wire_error(const Error& error) override {
        errors.push_back(error);
        if (on_error) on_error();
    }

    std::vector<std::byte> buffer;
    std::uint32_t payload_bytes;
    std::vector<std::atomic<std::uint8_t>> seen;
    std::atomic<std::uint64_t> packets{0}, distinct{0};
    std::array<std::atomic<std::uint64_t>, kMaxChannels> channel_packets{};
    std::atomic<std::uint32_t> last_generation{0};
    std::vector<std::vector<std::byte>> datagrams;
    std::vector<Error> errors;
    int writable = 0, polls = 0;
    std::function<void()> on_control, on_error, on_data;
};

/// A UDP relay on the loop: everything from anybody but the server goes to the server, from one socket per client, and
/// back. `filter` sees every packet and may change it; what it returns is how many copies go on (0 = lost).
class TestRelay {
 public:
    using Filter = std::function<int(bool to_server, std::vector<std::byte>& packet)>;
    TestRelay(RealLoop& loop, Address server, Filter filter)
        : loop_(loop), server_(std::move(server)), filter_(std::move(filter)) {
        front_ = open_socket();
        sockaddr_in bound{};
        socklen_t length = sizeof(bound);
        getsockname(front_, reinterpret_cast<sockaddr*>(&bound), &length);
        address_ = loopback(ntohs(bound.sin_port));
        EXPECT_TRUE(loop_.add_fd(front_, EPOLLIN, [this](std::uint32_t) { pump(front_, nullptr); }));
    }
    ~TestRelay() {
        loop_.remove_fd(front_);
        ::close(front_);
        for (auto& client : clients_) {
            loop_.remove_fd(client->fd);
            ::close(client->fd);
        }
    }
    const Address& address() const { return address_; }
    void set_filter(Filter filter) { filter_ = std::move(filter); }
    /// As if it had been restarted: what it sends to the server comes from other ports from here on.
    void change_ports() {
        for (auto& client : clients_) {
            loop_.remove_fd(client->fd);
            const int old = std::exchange(client->fd, open_socket());
            ::close(old);
            Client* const made = client.get();
            EXPECT_TRUE(loop_.add_fd(made->fd, EPOLLIN, [this, made](std::uint32_t) { pump(made->fd, made); }));
        }
    }
    std::size_t clients() const { return clients_.size(); }

 private:
    struct Client {
        int fd;
        Address address;
    };
    static int open_socket() {
        const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        const Address any = loopback();
        EXPECT_EQ(bind(fd, any.sockaddr_ptr(), any.length()), 0);
        const int big = 8 << 20;
        setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &big, sizeof(big));
        return fd;
    }
    void pump(int fd, Client* from_server) {
        std::vector<std::byte> packet(65536);
        for (int i = 0; i < 256; ++i) {
            sockaddr_storage name{};
            socklen_t length = sizeof(name);
            packet.resize(65536);
            const ssize_t got =
                recvfrom(fd, packet.data(), packet.size(), 0, reinterpret_cast<sockaddr*>(&name), &length);
            if (got < 0) return;
            packet.resize(static_cast<std::size_t>(got));
            const bool to_server = from_server == nullptr;
            Client* client = from_server;
            if (to_server)
                client = &client_of(Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&name), length));
            const Address& to = to_server ? server_ : client->address;
            for (int copies = filter_ ? filter_(to_server, packet) : 1; copies > 0; --copies)
                sendto(to_server ? client->fd : front_, packet.data(), packet.size(), MSG_NOSIGNAL, to.sockaddr_ptr(),
                       to.length());
        }
    }
    Client& client_of(const Address& address) {
        for (auto& client : clients_)
            if (client->address == address) return *client;
        clients_.push_back(std::make_unique<Client>(open_socket(), address));
        Client* const made = clients_.back().get();
        EXPECT_TRUE(loop_.add_fd(made->fd, EPOLLIN, [this, made](std::uint32_t) { pump(made->fd, made); }));
        return *made;
    }
    RealLoop& loop_;
    Address server_;
    Filter filter_;
    int front_ = -1;
    Address address_;
    std::vector<std::unique_ptr<Client>> clients_;
};

/// A server and a client endpoint on one loop.
struct Pair {
    std::unique_ptr<RealLoop> loop = RealLoop::create().value();
    std::unique_ptr<UdpEndpoint> server, client;
    Connected at_client, at_server;
    std::optional<Error> error;
    Address gone;  // where a server shall come back

    static UdpOptions options() {
        UdpOptions result;
        result.bind = loopback();
        result.connect_timeout = Duration::from_milliseconds(5'000);
        return result;
    }
    explicit Pair(const UdpOptions& server_options = options(), const UdpOptions& client_options = options()) {
        auto s = UdpEndpoint::open(*loop, server_options);
        auto c = UdpEndpoint::open(*loop, client_options);
        EXPECT_TRUE(s && c) << (s ? "" : s.error().message) << (c ? "" : c.error().message);
        server = std::move(*s);
        client = std::move(*c);
    }
    void listen(const ConnectParameters& own = {}) {
        ConnectParameters most = own;
        server->listen(
            [most](const IncomingRequest& request) {
                return RequestAnswer::accept(most, std::vector<std::byte>(request.blob.rbegin(), request.blob.rend()));
            },
            [this](Connected connected) { at_server = std::move(connected); });
    }
    /// Connects and waits until both ends are up.
    bool connect(const Address& to, const ConnectParameters& wanted, std::vector<std::byte> blob = {}) {
        bool done = false;
        client->connect(to, wanted, std::move(blob), [&](Result<Connected> result) {
            done = true;
            if (result) {
                at_client = std::move(*result);
            } else {
                error = result.error();
            }
        });
        return loop->run_until([&] { return done && (error || at_server.wire != nullptr); },
                               Duration::from_seconds(10)) &&
               !error;
    }
    bool connect(const ConnectParameters& wanted) { return connect(server->local_address(), wanted); }
    bool run_until(const std::function<bool()>& condition, double seconds = 5) {
        return loop->run_until(condition, Duration::from_seconds(seconds));
    }
    void run_for(double seconds) {
        loop->run_until([] { return false; }, Duration::from_seconds(seconds));
    }
};

/// Packets for `bytes`, packet i with immediate i, spread over the channels.
inline std::vector<sdr::OutgoingPacket> packets_of(std::span<const std::byte> bytes, std::uint32_t payload,
                                                   std::uint32_t channels = 1, std::uint32_t generation = 7) {
    std::vector<sdr::OutgoingPacket> result;
    for (std::size_t at = 0; at < bytes.size(); at += payload) {
        const auto index = static_cast<std::uint32_t>(at / payload);
        result.push_back({bytes.data() + at,
                          static_cast<std::uint32_t>(std::min<std::size_t>(payload, bytes.size() - at)), index,
                          generation, index % channels});
    }
    return result;
}

inline ConnectParameters wanting(std::uint32_t payload, std::uint32_t channels = 1, bool checksum = true) {
    ConnectParameters parameters;
    parameters.payload_bytes = payload;
    parameters.channels = channels;
    parameters.checksum = checksum;
    return parameters;
}

/// Sends `data` from `from` and waits until it is in `sink`. Kept to what a socket buffer holds, so that nothing is
/// lost on loopback.
inline void transfer(Pair& pair, UdpWire& from, RecordingSink& sink, std::span<const std::byte> data,
                     std::uint32_t payload, std::uint32_t channels = 1) {
    const auto packets = packets_of(data, payload, channels);
    std::size_t sent = 0;
    ASSERT_TRUE(pair.run_until([&] {
        if (sent < packets.size())
            sent += from.tx_burst(std::span(packets).subspan(sent, std::min<std::size_t>(64, packets.size() - sent)));
        return sent == packets.size() && sink.distinct == packets.size();
    })) << sent
        << " sent, " << sink.distinct << " distinct, " << sink.packets << " received, of " << packets.size();
    EXPECT_TRUE(std::ranges::equal(std::span(sink.buffer).first(data.size()), data));
}

}  // namespace farhaul::udp
