// A UDP socket of the relay: big buffers, GRO where the kernel has it, batches of datagrams per system call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <sys/socket.h>

#include "base/result.hpp"
#include "io/unique_fd.hpp"
#include "link/realtime/endpoint.hpp"

namespace farhaul::link {

/// The local address that a client used, to answer from it: a control message for sendmsg, empty on sockets bound to
/// one address.
struct SourceAddress {
    alignas(cmsghdr) std::array<std::byte, 48> control{};
    std::size_t length = 0;
};

/// One datagram, or with GRO several of `segment_bytes` each (the last may be shorter), from one sender.
struct Received {
    std::span<std::byte> bytes;
    std::uint32_t segment_bytes = 0;  ///< 0 only for an empty datagram
    const Endpoint* from = nullptr;
    SourceAddress to;

    std::uint32_t segments() const {
        return bytes.size() <= segment_bytes
                   ? 1
                   : static_cast<std::uint32_t>((bytes.size() + segment_bytes - 1) / segment_bytes);
    }
};

/// Buffers for recvmmsg, shared by all sockets of a relay.
class ReceiveBatch {
 public:
    static constexpr std::size_t kMessages = 16, kMessageBytes = 65536;
    ReceiveBatch();
    /// Receives what is there, at most kMessages messages; 0 when there is none or the socket reported an error, then
    /// in `error`.
    std::span<const Received> receive(int fd, int& error);

 private:
    std::unique_ptr<std::byte[]> buffers_;
    std::array<Endpoint, kMessages> from_;
    alignas(cmsghdr) std::array<std::array<std::byte, 128>, kMessages> control_;
    std::array<iovec, kMessages> io_{};
    std::array<mmsghdr, kMessages> messages_{};
    std::array<Received, kMessages> received_;
};

class UdpSocket {
 public:
    /// Bound to `address`; Received::to then says which local address a datagram was sent to.
    static Result<UdpSocket> listening(const Endpoint& address);
    static Result<UdpSocket> connected(const Endpoint& address);

    int fd() const { return fd_.get(); }
    Result<Endpoint> local() const;
    /// Datagrams that the kernel dropped because the socket's buffer was full (or that failed their checksum).
    std::uint64_t dropped_by_kernel() const;
    /// Bytes of kernel memory that waiting datagrams may occupy.
    std::uint64_t receive_buffer() const;

 private:
    static Result<UdpSocket> open(const Endpoint& address);
    io::UniqueFd fd_;
};

}  // namespace farhaul::link
