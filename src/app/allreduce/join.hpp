// How a rank of `sdr allreduce` finds its neighbours: it listens for the left one and connects to the right one until
// that is there.
#pragma once

#include <memory>

#include "collective/ring.hpp"
#include "wire/udp/endpoint.hpp"

namespace farhaul::app::allreduce {

struct RankConfig {
    std::uint32_t rank = 0, ranks = 1;
    std::uint64_t segment_bytes = 1u << 20;
    reliable::Scheme scheme;          ///< of the link to the right neighbour; the left one says what it uses
    BitRate rate;                     ///< of what is sent to the right neighbour
    std::uint32_t payload_bytes = 0;  ///< per packet; 0: what the path carries
    std::uint32_t chunk_bytes = 64u << 10;
    Duration timeout = Duration::from_milliseconds(3000);          ///< of a silent neighbour
    Duration start_timeout = Duration::from_milliseconds(60'000);  ///< for all to be there
};

/// What a rank says of itself when it connects to its right neighbour.
struct Hello {
    std::uint32_t ranks = 0, rank = 0;
    reliable::Scheme scheme;
    std::uint64_t segment_bytes = 0;
    std::uint32_t chunk_bytes = 0;
};
std::vector<std::byte> encode(const Hello& hello);
/// Errors: kProtocol for anything else.
Result<Hello> decode_hello(std::span<const std::byte> bytes);

/// A rank with its socket and, once it has joined, its ring.
class Rank {
 public:
    /// Binds and listens. A ring of one has no socket. `interrupted` ends join(); it outlives the rank. Errors: kIo.
    static Result<std::unique_ptr<Rank>> open(udp::RealLoop& loop, const udp::Address& listen, const RankConfig& config,
                                              const bool& interrupted);
    ~Rank();
    const udp::Address& local_address() const { return endpoint_->local_address(); }
    /// Runs the loop until both neighbours are there. Errors: kTimeout naming who is missing; kProtocol, the neighbours
    /// do not agree; kClosed, the loop was stopped.
    Status join(const udp::Address& right);
    collective::Ring& ring() { return *ring_; }
    /// Of the link to the right, as the handshake measured it; zero in a ring of one.
    Duration round_trip() const { return round_trip_; }

 private:
    Rank(udp::RealLoop& loop, const RankConfig& config, const bool& interrupted)
        : loop_(loop), config_(config), interrupted_(interrupted) {}
    void ask(const udp::Address& right);
    Error missing(const udp::Address& right) const;
    udp::RequestAnswer on_request(const udp::IncomingRequest& request) const;
    void on_accepted(udp::Connected connected);
    Result<std::unique_ptr<reliable::Connection>> connection(udp::Connected& connected, const Hello& hello);
    std::uint32_t left_rank() const { return (config_.rank + config_.ranks - 1) % config_.ranks; }

    udp::RealLoop& loop_;
    RankConfig config_;
    const bool& interrupted_;
    std::unique_ptr<udp::UdpWire> left_wire_, right_wire_;
    std::unique_ptr<reliable::Connection> left_, right_;
    std::unique_ptr<collective::Ring> ring_;
    std::optional<Error> error_;    // that waiting does not mend
    std::optional<Error> refused_;  // of the last attempt
    bool asking_ = false;
    TimePoint ask_again_;
    Duration round_trip_;
    // Last, so that it goes first: what it calls back refers to the rest.
    std::unique_ptr<udp::UdpEndpoint> endpoint_;
};

}  // namespace farhaul::app::allreduce
