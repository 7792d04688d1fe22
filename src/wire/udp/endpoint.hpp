// UDP sockets shared by many connections. A UdpEndpoint is one bound socket (and one more per extra channel) on a
// RealLoop; a UdpWire is one connection over it, told apart by 64-bit random tokens, so that thousands of peers, peers
// behind one relay, and restarted peers do not mix.
//
// The wire guards placement: every frame carries the receiver's token and a CRC32C over header and payload. What is
// foreign, stale, malformed or corrupt is counted and dropped. docs/wire-format-udp.md has the bytes.
//
// Threads: everything runs on the loop's thread. With UdpOptions::receive_threads, each channel but the first has a
// thread of its own that calls WireSink::on_arrivals(); everything else still comes on the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "sdr/wire.hpp"
#include "wire/udp/address.hpp"
#include "wire/udp/parameters.hpp"
#include "wire/udp/real_loop.hpp"

namespace farhaul::udp {

struct UdpOptions {
    Address bind;                  ///< empty: any address, any port (a client)
    std::uint32_t channels = 1;    ///< sockets: 1 .. kMaxChannels; what connections agree on is at most this
    bool receive_threads = false;  ///< a receive thread for each channel but the first
    std::uint32_t socket_buffer_bytes =
        32u << 20;    ///< asked of the kernel for each direction; a hint is logged when it grants too little
    bool gso = true;  ///< segmentation offload, where the kernel has it
    bool gro = true;
    Duration connect_timeout = Duration::from_milliseconds(10'000);
    Duration ping_interval =
        Duration::from_milliseconds(1'000);  ///< how often a silent peer is asked for a sign of life; 0 = never
    Duration peer_timeout =
        Duration::from_milliseconds(10'000);  ///< silence for so long: the peer is gone; needs ping_interval
    std::uint32_t max_connections = 4096;     ///< further requests are refused
    std::uint32_t max_half_open = 1024;  ///< answered requests whose client has not confirmed; the oldest gives way
    Address advertise;                   ///< what local_info() names instead of the bound or the interfaces' addresses
};

/// Of one endpoint, all connections together. Frames dropped, by reason, and what happened to the sockets.
struct UdpCounters {
    std::uint64_t frames_received = 0, bytes_received = 0;  ///< that passed all checks; bytes include our header
    std::uint64_t foreign = 0;       ///< a token that is not ours: a stray sender, a restarted peer, or a scanner
    std::uint64_t stale = 0;         ///< a token of a connection that was closed lately
    std::uint64_t malformed = 0;     ///< too short, unknown type or version, impossible fields
    std::uint64_t corrupt = 0;       ///< checksum mismatch
    std::uint64_t early = 0;         ///< for a connection whose handshake is not done
    std::uint64_t truncated = 0;     ///< longer than any frame of ours
    std::uint64_t kernel_drops = 0;  ///< the sockets' receive buffers overflowed (SO_RXQ_OVFL)
    std::uint64_t icmp_errors = 0;   ///< reported by the network
    std::uint64_t requests = 0, requests_refused = 0, half_open_evicted = 0;
    std::uint64_t frames_dropped() const { return foreign + stale + malformed + corrupt + early + truncated; }
};

struct UdpWireCounters {
    std::uint64_t packets_sent = 0, packets_received = 0;  ///< data
    std::uint64_t datagrams_sent = 0, datagrams_received = 0;
    std::uint64_t send_calls = 0;      ///< sendmmsg()
    std::uint64_t receive_calls = 0;   ///< on_arrivals()
    std::uint64_t would_block = 0;     ///< EAGAIN or ENOBUFS
    std::uint64_t send_errors = 0;     ///< packets that the kernel refused for other reasons: lost
    std::uint64_t gso_fallbacks = 0;   ///< packets resent unsegmented because segmentation failed on this route
    std::uint64_t too_big = 0;         ///< EMSGSIZE: the path's MTU shrank below a packet
    std::uint64_t big_pings_lost = 0;  ///< full-size probes unanswered while small ones pass: a black hole
    std::uint64_t migrations = 0;      ///< the peer's address changed and the connection went along
    bool fragmenting = false;          ///< the path's MTU shrank and the kernel cuts packets now
};

/// One connection. Destroying it closes it: the peer is told. Destroying the endpoint closes its wires, whose objects
/// stay valid but dead.
class UdpWire : public sdr::Wire {
 public:
    /// Tells the peer that this end is done; nothing is sent or delivered afterwards.
    virtual void close() = 0;
    virtual const Address& peer() const = 0;
    virtual const ConnectParameters& parameters() const = 0;
    virtual UdpWireCounters counters() const = 0;
    /// Whether segmentation offload is in use now.
    virtual bool segmentation_offload() const = 0;
};

struct Connected {
    std::unique_ptr<UdpWire> wire;
    ConnectParameters parameters;  ///< agreed; payload_bytes is what the path carries
    std::vector<std::byte> blob;   ///< the other side's
    Address peer;
    Duration round_trip;  ///< measured by the handshake
};

/// A request as the listener's owner sees it. From outside: never trusted.
struct IncomingRequest {
    Address peer;
    ConnectParameters parameters;  ///< wanted, in range
    std::span<const std::byte> blob;
};

struct RequestAnswer {
    /// Accepts with what negotiate(request, own) gives. `blob`: at most kMaxBlobBytes.
    static RequestAnswer accept(ConnectParameters own, std::vector<std::byte> blob = {}) {
        return {true, own, std::move(blob), {}};
    }
    /// The client's connect() fails with `reason`.
    static RequestAnswer refuse(std::string reason) { return {false, {}, {}, std::move(reason)}; }

    bool accepted = false;
    ConnectParameters own;
    std::vector<std::byte> blob;
    std::string reason;
};

class UdpEndpoint {
 public:
    using ConnectCallback = std::function<void(Result<Connected>)>;
    /// Decides on a request. May be called again for the same client and must not hold on to anything: the client may
    /// never come.
    using RequestCallback = std::function<RequestAnswer(const IncomingRequest&)>;
    /// A client has confirmed.
    using AcceptedCallback = std::function<void(Connected)>;

    /// Errors: kInvalidArgument; kIo when the address is in use or not ours (says which).
    static Result<std::unique_ptr<UdpEndpoint>> open(RealLoop& loop, const UdpOptions& options);
    virtual ~UdpEndpoint() = default;

    /// Starts a connection; `done` is called once from the loop, unless the endpoint is destroyed before. Errors given
    /// to `done`: kInvalidArgument; kTimeout (no answer); kPeerGone (the port is
    /// closed, which is believed after a second); kProtocol (refused, with the
    /// peer's words, or no common version).
    virtual void connect(const Address& peer, const ConnectParameters& wanted, std::vector<std::byte> blob,
                         ConnectCallback done) = 0;
    /// From here on requests are answered; without it they are dropped as foreign.
    virtual void listen(RequestCallback on_request, AcceptedCallback on_accepted) = 0;
    virtual void stop_listening() = 0;

    // --- connections whose two ends exchange their details by other means (the C API) ---
    static constexpr std::size_t kInfoBytes = 256;
    /// A fresh end of a connection: kInfoBytes opaque bytes for the other side.
    virtual std::vector<std::byte> local_info(const ConnectParameters& parameters) = 0;
    /// The connection between `local` (from local_info()) and the other side's `remote`. No packet is exchanged, so the
    /// path is not probed: packets that turn out to be too big for it are fragmented by the kernel. Parameters are
    /// negotiated by the same rule on both sides. Errors: kProtocol (not an info, version); kInvalidArgument
    /// (parameters that do not fit together, no common address family, `local` used already).
    virtual Result<std::unique_ptr<UdpWire>> create_wire(std::span<const std::byte> local,
                                                         std::span<const std::byte> remote) = 0;

    virtual const Address& local_address() const = 0;  ///< of the first channel, with its real port
    virtual UdpCounters counters() const = 0;
    virtual std::size_t connections() const = 0;
    /// The socket of `channel`: for tests and for socket options that we do not know.
    virtual int socket_fd(std::uint32_t channel) const = 0;
};

}  // namespace farhaul::udp
