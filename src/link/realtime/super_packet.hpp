// Super-packets: what a kernel with segmentation offload hands to a TUN device instead of many packets, and how to take
// them apart.
//
// A super-packet is one IP packet with a TCP segment (or UDP payload) larger than the path's MTU; the virtio-net header
// before it says into segments of which size a network card would cut it. A run of its segments is again a
// super-packet, or a plain packet if it is only one: lengths, IPv4 identification, TCP sequence number and flags (FIN
// and PSH only with the last segment, CWR only with the first), and the checksums are made as the card would have made
// them. Checksums of what stays on this host are left partial: the field holds the sum of the pseudo-header and the
// virtio-net header says so, as the kernel itself does, so that nobody sums the payload.
//
// Pure functions on byte buffers. What comes in is not trusted: parse() checks every length before anything else looks
// at it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace farhaul::link {

/// struct virtio_net_hdr of the kernel (linux/virtio_net.h), little-endian on our hosts.
struct VnetHeader {
    static constexpr std::uint8_t kNeedsChecksum = 1, kDataValid = 2;
    static constexpr std::uint8_t kNone = 0, kTcp4 = 1, kTcp6 = 4, kUdp = 5, kEcn = 0x80;
    std::uint8_t flags = 0;
    std::uint8_t gso_type = kNone;
    std::uint16_t header_bytes = 0;
    std::uint16_t gso_bytes = 0;
    std::uint16_t checksum_start = 0;
    std::uint16_t checksum_offset = 0;
};
static_assert(sizeof(VnetHeader) == 10);

/// Where things are in a packet of one or more segments.
struct SuperPacket {
    enum class Transport : std::uint8_t { kOther, kTcp, kUdp };
    bool ipv6 = false;
    Transport transport = Transport::kOther;
    std::uint32_t transport_offset = 0;  ///< of the TCP or UDP header
    std::uint32_t header_bytes = 0;  ///< all headers: what each segment repeats; 0 for a packet that is not taken apart
    std::uint32_t payload_bytes = 0;
    std::uint32_t segment_payload = 0;  ///< payload of each segment but the last
    std::uint32_t segments = 1;

    /// Bytes of segment i on the line: IP header, transport header, payload.
    std::uint32_t segment_bytes(std::uint32_t i) const {
        if (segments == 1) return header_bytes + payload_bytes;
        const std::uint32_t left = payload_bytes - i * segment_payload;
        return header_bytes + (left < segment_payload ? left : segment_payload);
    }
};

/// Takes apart the packet behind `vnet`; nothing when it is malformed. A packet without segmentation is one segment.
std::optional<SuperPacket> parse_super_packet(const VnetHeader& vnet, std::span<const std::byte> packet);

/// Appends to `out` (cleared first) a virtio-net header and the segments first .. first + count - 1 of `packet`.
void build_run(const VnetHeader& vnet, const SuperPacket& layout, std::span<const std::byte> packet,
               std::uint32_t first, std::uint32_t count, std::vector<std::byte>& out);

/// Completes the checksum of a built packet of one segment (virtio-net header and packet), so that damage done later is
/// noticed by the receiver.
void complete_checksum(std::span<std::byte> built);

/// Can `next` be appended to `first` (both built packets of one UDP segment or runs of such) as another segment of one
/// UDP super-packet? They must have the same headers; `first` may hold runs already. `segment_payload` is that of the
/// first.
struct UdpSegment {
    bool mergeable = false;
    std::uint32_t header_bytes = 0;
    std::uint32_t payload_bytes = 0;
    std::uint32_t segment_payload = 0;
};
UdpSegment describe_udp(std::span<const std::byte> built);
bool same_udp_flow(std::span<const std::byte> a, std::span<const std::byte> b, const UdpSegment& layout);
/// Turns a built UDP packet whose payload has grown to `payload_bytes` (in segments of `segment_payload`) into a
/// super-packet: rewrites its headers, which are the only bytes of it that `headers` (virtio-net, IP, UDP) has to
/// contain.
void finish_udp_merge(std::span<std::byte> headers, std::uint32_t payload_bytes, std::uint32_t segment_payload);

/// The internet checksum (RFC 1071) of `bytes` added to `sum`, not yet complemented.
std::uint16_t ones_sum(std::span<const std::byte> bytes, std::uint32_t sum = 0);

}  // namespace farhaul::link
