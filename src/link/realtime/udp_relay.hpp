// The link as a UDP relay: it listens for clients and forwards their datagrams to a target through the model, and the
// answers back. Needs no privileges.
//
// Each client has a socket of its own towards the target, so that answers find their way; clients that were silent for
// a while are forgotten. A datagram's size on the line is its payload with its UDP and IP headers. With GRO the kernel
// hands over several datagrams at once: the model decides on each, and what survives leaves in runs (runs.hpp) with UDP
// segmentation offload, or one by one when the route refuses it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "link/realtime/clock.hpp"
#include "link/realtime/delay_line.hpp"
#include "link/realtime/forwarder.hpp"
#include "link/realtime/runs.hpp"
#include "link/realtime/udp_socket.hpp"

namespace farhaul::link {

struct RelayConfig {
    Endpoint listen;
    Endpoint target;
    Duration client_idle =
        Duration::from_seconds(60);  ///< a client that is silent for so long in both directions is forgotten
    std::size_t max_clients = 1024;
};

class UdpRelay final : public Forwarder {
 public:
    static Result<std::unique_ptr<UdpRelay>> create(const RelayConfig& config, LinkPair models);
    /// Where it listens: the port that was chosen when it was given as 0.
    const Endpoint& local() const { return local_; }
    Status step(Duration longest_wait) override;
    ForwarderReport report() override;

 private:
    static constexpr std::size_t kMessages = 32, kSegmentsPerMessage = 64, kListener = ~std::size_t{0};

    /// A run of datagrams of one client.
    struct Datagrams {
        std::unique_ptr<std::byte[]> bytes;
        std::uint32_t size = 0, segment_bytes = 0, segments = 1;
        std::uint32_t sent = 0;  // segments that have left
        std::uint32_t client = 0, generation = 0;
        TimePoint first_due, last_due;

        std::span<std::byte> segment(std::uint32_t i) const;
        TimePoint due(std::uint32_t i) const;
    };
    struct Client {
        bool used = false;
        std::uint32_t generation = 0;
        Endpoint address;
        SourceAddress source;
        UdpSocket socket;
        TimePoint last_seen;
    };
    struct EndpointHash {
        std::size_t operator()(const Endpoint& e) const { return e.hash(); }
    };
    /// Packets of one direction that are due and not sent yet, because the socket was full.
    struct Lane {
        DelayLine<Datagrams> line;
        std::vector<Datagrams> due;
        std::size_t next = 0;
        DirectionReport report;
        std::uint64_t pending_segments = 0;
    };
    struct Message {
        std::uint32_t segments = 0;
    };

    UdpRelay(const RelayConfig& config, LinkPair models, UdpSocket listener, io::UniqueFd epoll);
    bool receive_from(std::size_t who);
    Client* find_or_add(const Received& received);
    void enter(Direction direction, std::uint32_t client, const Received& received);
    void deliver(Direction direction);
    bool send_due(Direction direction);
    std::size_t gather(Direction direction, int& fd);
    void advance(Lane& lane, std::uint32_t segments, bool sent);
    bool on_send_error(Lane& lane, int error);
    void forget_idle_clients();
    void remove(std::uint32_t client);
    void note(bool& said, std::string text);

    RelayConfig config_;
    RealClock clock_;
    Stalls stalls_;
    std::array<LinkModel, 2> models_;
    std::array<Lane, 2> lanes_;
    UdpSocket listener_;
    io::UniqueFd epoll_;
    Endpoint local_;
    std::uint32_t header_bytes_ = 0;
    std::vector<Client> clients_;
    std::unordered_map<Endpoint, std::uint32_t, EndpointHash> by_address_;
    std::uint64_t clients_now_ = 0, dropped_of_forgotten_ = 0;
    TimePoint now_, next_sweep_;
    bool received_last_step_ = false, blocked_ = false;
    bool use_gso_ = true;
    bool said_gso_ = false, said_refused_ = false, said_full_ = false, said_send_error_ = false, said_socket_ = false;
    std::vector<std::string> notes_;
    ReceiveBatch batch_;
    std::array<mmsghdr, kMessages> messages_{};
    std::array<Message, kMessages> message_info_{};
    std::array<iovec, kMessages * kSegmentsPerMessage> io_{};
    alignas(cmsghdr) std::array<std::array<std::byte, 96>, kMessages> control_{};
};

}  // namespace farhaul::link
