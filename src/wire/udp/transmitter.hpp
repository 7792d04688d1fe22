// The transmit path: headers are written into a scratch area, payload is taken from where the caller has it, and the
// kernel gathers both. Runs of packets of one size go down as one super-packet (UDP_SEGMENT) of up to 64 KiB, many
// super-packets per sendmmsg().
//
// What the kernel may answer, and what is done:
//   EAGAIN                socket full: stop, wait until it is writable
//   ENOBUFS               no memory or queue full: stop, try again in a moment
//   EIO, EINVAL, EMSGSIZE for a super-packet: segmentation does not work on this route (EIO: a device without checksum
//   offload). Its packets go
//                         out one by one, none is lost, and segmentation stays off for this path
//   EMSGSIZE              for one packet: the path's MTU shrank. From here on the kernel fragments
//   anything else         the packet counts as lost
// Any error may be the report of an earlier packet's fate, so each is believed the second time only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sdr/wire.hpp"
#include "wire/udp/endpoint.hpp"
#include "wire/udp/frame.hpp"
#include "wire/udp/socket.hpp"

namespace farhaul::udp {

/// Where the packets of one channel of a connection go.
struct TxPath {
    UdpSocket* socket = nullptr;
    Address to;
    LocalAddress from;
    bool gso = false;
};

struct TxFraming {
    std::uint64_t token = 0;  ///< the peer's
    std::uint32_t crc_of_token = 0;
    bool checksum = true;
};

struct TxResult {
    enum class Stop { kNone, kSocketFull, kNoBuffers };
    std::size_t taken = 0;  ///< the first so many were sent, or lost to an error of theirs
    Stop stop = Stop::kNone;
    int error = 0;  ///< the last error by which a packet was lost
};

/// Most packets that one call takes.
inline constexpr std::size_t kTxBatch = 256;

class Transmitter {
 public:
    Transmitter();
    /// Sends packets[order[0]], packets[order[1]], ... (at most kTxBatch).
    TxResult send(TxPath& path, const TxFraming& framing, std::span<const sdr::OutgoingPacket> packets,
                  std::span<const std::uint16_t> order, UdpWireCounters& counters);

 private:
    static constexpr std::size_t kMaxSegments = 64;       // of older kernels
    static constexpr std::size_t kMaxSuperBytes = 65487;  // UDP payload that fits both families
    static constexpr std::size_t kControlBytes = 80;
    // Checksummed and handed to the kernel before more is touched, so that its copy finds the payload in this core's
    // cache.
    static constexpr std::size_t kBuildBytes = 192 * 1024;

    struct Message {
        std::uint32_t first;  // index into order
        std::uint32_t count;
    };
    /// From order[from] on; returns where it stopped.
    std::size_t build(const TxPath& path, const TxFraming& framing, std::span<const sdr::OutgoingPacket> packets,
                      std::span<const std::uint16_t> order, std::size_t from);

    std::vector<std::byte> headers_;
    std::vector<iovec> parts_;
    std::vector<mmsghdr> messages_;
    std::vector<Message> spans_;
    std::vector<std::byte> controls_;
    std::size_t message_count_ = 0;
};

}  // namespace farhaul::udp
