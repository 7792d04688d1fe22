// Inside of UdpEndpoint: sockets, receive threads, the table of tokens, handshakes under way, and connections closed
// lately.
//
// Waiting for receive threads: each has an epoch counter that is odd while it is in a batch. quiesce() waits until
// every thread that was in a batch has left it. Threads read the token table and the sinks inside their batches only,
// so that what was unpublished before quiesce() is not in use after it.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "wire/udp/connection.hpp"
#include "wire/udp/endpoint.hpp"
#include "wire/udp/handshake.hpp"
#include "wire/udp/receiver.hpp"
#include "wire/udp/socket.hpp"
#include "wire/udp/token_table.hpp"
#include "wire/udp/transmitter.hpp"

namespace farhaul::udp {

class Engine final : public UdpEndpoint, private OtherFrames {
 public:
    Engine(RealLoop& loop, const UdpOptions& options);
    ~Engine() override;
    Status start();

    // --- UdpEndpoint ---
    void connect(const Address& peer, const ConnectParameters& wanted, std::vector<std::byte> blob,
                 ConnectCallback done) override;
    void listen(RequestCallback on_request, AcceptedCallback on_accepted) override;
    void stop_listening() override;
    std::vector<std::byte> local_info(const ConnectParameters& parameters) override;
    Result<std::unique_ptr<UdpWire>> create_wire(std::span<const std::byte> local,
                                                 std::span<const std::byte> remote) override;
    const Address& local_address() const override { return channels_[0]->socket.local(); }
    UdpCounters counters() const override;
    std::size_t connections() const override { return connections_.size(); }
    int socket_fd(std::uint32_t channel) const override { return channels_.at(channel)->socket.fd(); }

    // --- for connections, on the loop's thread ---
    RealLoop& loop() { return loop_; }
    const UdpOptions& options() const { return options_; }
    Transmitter& transmitter() { return transmitter_; }
    std::vector<std::uint16_t>& order_scratch() { return order_; }
    void add(Connection& connection);
    /// After it returns no receive thread uses the connection. `tell_peer`: Close is sent, repeated, and answered to
    /// what still comes.
    void remove(Connection& connection, std::uint64_t peer_token, const TxPath& path, bool tell_peer);
    void quiesce();
    /// Random, not 0, not in use.
    std::uint64_t new_token();
    /// From any thread: poll the connections' sinks soon.
    void request_poll();
    void wait_writable(std::uint32_t channel);
    void wait_for_memory();

 private:
    struct Channel {
        UdpSocket socket;
        std::unique_ptr<Receiver> receiver;
        std::thread thread;
        std::atomic<std::uint64_t> epoch{0};
    };
    /// A client's connection attempt.
    struct Attempt {
        Attempt(Engine& e, ClientHandshake::Config config, ClientHandshake::SendFunction send)
            : engine(e), handshake(std::move(config), std::move(send)), timer(e.loop_.timers(), &Attempt::fire, this) {}
        static void fire(void* self);
        Engine& engine;
        ClientHandshake handshake;
        Timer timer;
        std::uint32_t refusals = 0;
        TimePoint first_refusal;
        std::array<Address, kMaxChannels> to;
        ConnectCallback done;
    };
    /// A frame that a receive thread met and that is the loop's business. Empty: data came from a new address.
    struct StrayFrame {
        std::uint32_t channel;
        std::vector<std::byte> frame;
        Address from;
        std::uint64_t token;
    };
    /// Connections that were closed here: their peers may not know yet.
    struct Closed {
        std::uint64_t peer_token = 0;
        TxPath path;
        std::uint32_t repeats_left = 0;
        TimePoint next_at;
        TimePoint forget_at;
    };

    void on_other_frame(std::uint32_t channel, std::span<const std::byte> frame, const Address& from,
                        const msghdr& message) override;
    void on_new_address(std::uint32_t channel, std::uint64_t token, const Address& from,
                        const msghdr& message) override;
    void note_source(std::uint32_t channel, std::uint64_t token, const Address& from, const LocalAddress& local);
    void dispatch(std::uint32_t channel, std::span<const std::byte> frame, const Address& from,
                  const LocalAddress& local);
    void on_request(std::span<const std::byte> frame, const Address& from, const LocalAddress& local);
    void on_half_open_frame(ServerHandshake::Entry& entry, std::uint32_t channel, const FrameHeader& header,
                            std::span<const std::byte> frame, const Address& from, const LocalAddress& local);
    void answer_probe(std::uint32_t channel, std::uint64_t peer_token, std::span<const std::byte> frame,
                      const Address& from, const LocalAddress& local);
    void on_closed_frame(std::uint64_t token, const FrameHeader& header);
    void advance(Attempt& attempt);
    void send_close(Closed& closed);

    void on_socket_event(std::uint32_t channel, std::uint32_t events);
    void drain_errors(std::uint32_t channel);
    void on_network_error(const NetworkError& error);
    void on_notify();
    void on_memory_timer();
    void on_housekeeping();
    void tell_writable(std::uint32_t channel);
    void run_channel(std::uint32_t channel);
    void count_drop(std::uint64_t UdpCounters::* reason);
    void report_drops(TimePoint now);
    std::vector<Address> own_addresses() const;
    std::vector<std::uint64_t> tokens() const;

    RealLoop& loop_;
    UdpOptions options_;
    std::vector<std::unique_ptr<Channel>> channels_;
    TokenTable table_;
    std::unordered_map<std::uint64_t, Connection*> connections_;
    std::map<std::uint64_t, std::unique_ptr<Attempt>> attempts_;
    std::unique_ptr<ServerHandshake> server_;
    RequestCallback on_request_;
    AcceptedCallback on_accepted_;
    bool listening_ = false;
    std::unordered_map<std::uint64_t, Closed> closed_;
    std::deque<std::uint64_t> closed_order_;
    Transmitter transmitter_;
    std::vector<std::uint16_t> order_;
    UdpCounters counters_;  // the loop's thread's share
    std::uint64_t drops_reported_ = 0;
    bool overflow_told_ = false;
    TimePoint drops_reported_at_;
    Timer memory_timer_;
    Timer housekeeping_;

    int notify_fd_ = -1;  // receive threads have something for the loop
    std::atomic<bool> notified_{false};
    int quit_fd_ = -1;  // receive threads shall end
    std::mutex stray_mutex_;
    std::vector<StrayFrame> stray_;
    std::vector<NetworkError> stray_errors_;
    std::atomic<std::uint64_t> stray_foreign_{0};
};

}  // namespace farhaul::udp
