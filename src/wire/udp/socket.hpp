// A bound UDP socket as this wire uses it: never connected (many peers share it), Don't Fragment set, errors of the
// network queued (IP_RECVERR), the local address of each packet known (IP_PKTINFO), big buffers, segmentation offload
// where the kernel has it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <sys/socket.h>

#include "base/result.hpp"
#include "wire/udp/address.hpp"

namespace farhaul::udp {

/// An error that the network reported for a packet sent to `destination`.
struct NetworkError {
    int error = 0;          ///< errno: ECONNREFUSED, EHOSTUNREACH, EMSGSIZE, ...
    std::uint32_t mtu = 0;  ///< EMSGSIZE: what the path carries, headers included; 0 if unknown
    Address destination;
};

/// Why `address` cannot be bound (kIo), or sent to, and what to do about it.
std::unexpected<Error> bind_failure(int error_number, const Address& address);
std::unexpected<Error> send_failure(int error_number, const std::string& peer);

struct SocketOptions {
    Address bind;  ///< empty: any address and port
    std::uint32_t buffer_bytes = 32u << 20;
    bool gso = true;
    bool gro = true;
};

class UdpSocket {
 public:
    UdpSocket() = default;
    ~UdpSocket();
    UdpSocket(UdpSocket&& other) noexcept { *this = std::move(other); }
    UdpSocket& operator=(UdpSocket&& other) noexcept;

    static Result<UdpSocket> open(const SocketOptions& options);

    int fd() const { return fd_; }
    /// What the kernel granted, without what it adds for its own records.
    std::uint64_t receive_buffer_bytes() const { return receive_buffer_bytes_; }
    const Address& local() const { return local_; }
    bool is_ipv6() const { return ipv6_; }
    bool has_gso() const { return gso_; }
    bool has_gro() const { return gro_; }
    /// A peer's address in the form that this socket takes. Errors: kInvalidArgument for an IPv6 peer of an IPv4
    /// socket.
    Result<Address> reachable(const Address& peer) const;

    /// One packet. Returns 0 or an errno value. Errors queued by earlier packets do not fail this one.
    int send(std::span<const std::byte> packet, const Address& to, const LocalAddress& from) const;
    /// The next queued error of the network, if any.
    std::optional<NetworkError> next_error() const;
    /// Lets the kernel and routers fragment what does not fit, from here on.
    void allow_fragmentation();

 private:
    Status set_up(const SocketOptions& options, bool ipv6);
    void size_buffers(std::uint32_t bytes);

    int fd_ = -1;
    Address local_;
    bool ipv6_ = false;
    bool gso_ = false;
    bool gro_ = false;
    std::uint64_t receive_buffer_bytes_ = 0;
};

/// Room for the control messages of one received packet: segment size, local address, drop counter.
inline constexpr std::size_t kReceiveControlBytes = 192;

/// What the control messages of a received packet say.
struct ReceivedControl {
    std::uint32_t segment_bytes = 0;       ///< several packets of this size were merged; 0 if not
    std::optional<std::uint32_t> dropped;  ///< by the socket so far, in total, modulo 2^32
};
ReceivedControl read_control(const msghdr& message);
/// The local address that the packet came to, ready for sending back from it.
LocalAddress local_address_of(const msghdr& message);

/// Appends a UDP_SEGMENT control message at `control` + `used`; returns the bytes used then.
std::size_t append_segment_size(std::byte* control, std::size_t used, std::uint16_t segment_bytes);

}  // namespace farhaul::udp
