#include "link/realtime/super_packet.hpp"

#include <algorithm>
#include <cstring>

#include <netinet/in.h>

namespace farhaul::link {
namespace {

constexpr std::uint8_t kFin = 0x01, kPush = 0x08, kCwr = 0x80;
constexpr std::size_t kVnet = sizeof(VnetHeader);

std::uint8_t byte_at(std::span<const std::byte> b, std::size_t at) { return std::to_integer<std::uint8_t>(b[at]); }
std::uint16_t load16(std::span<const std::byte> b, std::size_t at) {
    return static_cast<std::uint16_t>((byte_at(b, at) << 8) | byte_at(b, at + 1));
}
std::uint32_t load32(std::span<const std::byte> b, std::size_t at) {
    return (std::uint32_t{load16(b, at)} << 16) | load16(b, at + 2);
}
void store16(std::span<std::byte> b, std::size_t at, std::uint32_t value) {
    b[at] = static_cast<std::byte>(value >> 8);
    b[at + 1] = static_cast<std::byte>(value);
}
void store32(std::span<std::byte> b, std::size_t at, std::uint32_t value) {
    store16(b, at, value >> 16);
    store16(b, at + 2, value & 0xffff);
}

std::uint16_t pseudo_header_sum(std::span<const std::byte> ip, bool ipv6, std::uint8_t protocol, std::uint32_t length) {
    const auto addresses = ipv6 ? ip.subspan(8, 32) : ip.subspan(12, 8);
    return ones_sum(addresses, protocol + (length >> 16) + (length & 0xffff));
}

void set_ipv4_checksum(std::span<std::byte> ip) {
    const std::size_t bytes = (byte_at(ip, 0) & 15u) * 4u;
    store16(ip, 10, 0);
    store16(ip, 10, static_cast<std::uint16_t>(~ones_sum(ip.first(bytes))));
}

// Lengths of IP and UDP headers, and the pseudo-header's sum in the checksum field, for a packet of this size.
void set_lengths(std::span<std::byte> ip, bool ipv6, bool tcp, std::size_t transport, std::size_t total) {
    const std::size_t l4 = total - transport;
    if (ipv6) {
        store16(ip, 4, static_cast<std::uint32_t>(total - 40));
    } else {
        store16(ip, 2, static_cast<std::uint32_t>(total));
        set_ipv4_checksum(ip);
    }
    if (!tcp) store16(ip, transport + 4, static_cast<std::uint32_t>(l4));
    store16(ip, transport + (tcp ? 16u : 6u),
            pseudo_header_sum(ip, ipv6, tcp ? IPPROTO_TCP : IPPROTO_UDP, static_cast<std::uint32_t>(l4)));
}

VnetHeader load_vnet(std::span<const std::byte> built) {
    VnetHeader v;
    std::memcpy(&v, built.data(), kVnet);
    return v;
}

}  // namespace

std::uint16_t ones_sum(std::span<const std::byte> bytes, std::uint32_t initial) {
    std::uint64_t sum = initial;
    std::size_t i = 0;
    for (; i + 1 < bytes.size(); i += 2) sum += load16(bytes, i);
    if (i < bytes.size()) sum += std::uint32_t{byte_at(bytes, i)} << 8;
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<std::uint16_t>(sum);
}

std::optional<SuperPacket> parse_super_packet(const VnetHeader& vnet, std::span<const std::byte> packet) {
    SuperPacket s;
    if (packet.size() < 20 || packet.size() > 65535 + 40) return std::nullopt;
    s.ipv6 = byte_at(packet, 0) >> 4 == 6;
    if (s.ipv6 ? packet.size() < 40 : byte_at(packet, 0) >> 4 != 4 || (byte_at(packet, 0) & 15) < 5)
        return std::nullopt;
    const std::uint8_t type = vnet.gso_type & static_cast<std::uint8_t>(~VnetHeader::kEcn);
    if (type == VnetHeader::kNone) {
        s.payload_bytes = static_cast<std::uint32_t>(packet.size());
        return s;
    }
    // With segmentation the checksum is always partial, and its start is the transport header: no need to walk IPv6
    // extension headers.
    const bool tcp = type == VnetHeader::kTcp4 || type == VnetHeader::kTcp6;
    if (!tcp && type != VnetHeader::kUdp) return std::nullopt;
    if ((type == VnetHeader::kTcp4 && s.ipv6) || (type == VnetHeader::kTcp6 && !s.ipv6)) return std::nullopt;
    if (!(vnet.flags & VnetHeader::kNeedsChecksum) || vnet.gso_bytes == 0) return std::nullopt;
    const std::size_t ip_bytes = s.ipv6 ? 40 : (byte_at(packet, 0) & 15u) * 4u;
    const std::size_t transport = vnet.checksum_start;
    if (transport < ip_bytes || (!s.ipv6 && transport != ip_bytes) || vnet.checksum_offset != (tcp ? 16 : 6))
        return std::nullopt;
    if (packet.size() < transport + (tcp ? 20 : 8)) return std::nullopt;
    const std::size_t transport_bytes = tcp ? (byte_at(packet, transport + 12) >> 4) * 4u : 8u;
    if ((tcp && transport_bytes < 20) || packet.size() <= transport + transport_bytes) return std::nullopt;
    s.transport = tcp ? SuperPacket::Transport::kTcp : SuperPacket::Transport::kUdp;
    s.transport_offset = static_cast<std::uint32_t>(transport);
    s.header_bytes = static_cast<std::uint32_t>(transport + transport_bytes);
    s.payload_bytes = static_cast<std::uint32_t>(packet.size()) - s.header_bytes;
    s.segment_payload = std::min<std::uint32_t>(vnet.gso_bytes, s.payload_bytes);
    s.segments = (s.payload_bytes + s.segment_payload - 1) / s.segment_payload;
    return s;
}

void build_run(const VnetHeader& vnet, const SuperPacket& s, std::span<const std::byte> packet, std::uint32_t first,
               std::uint32_t count, std::vector<std::byte>& out) {
    VnetHeader v = vnet;
    if (s.header_bytes == 0) {  // one plain packet
        out.resize(kVnet + packet.size());
        std::memcpy(out.data(), &v, kVnet);
        std::memcpy(out.data() + kVnet, packet.data(), packet.size());
        return;
    }
    const bool tcp = s.transport == SuperPacket::Transport::kTcp;
    const std::uint32_t begin = first * s.segment_payload;
    const std::uint32_t payload = std::min(count * s.segment_payload, s.payload_bytes - begin);
    const std::size_t total = s.header_bytes + payload;
    out.resize(kVnet + total);
    const auto ip = std::span(out).subspan(kVnet);
    std::memcpy(ip.data(), packet.data(), s.header_bytes);
    std::memcpy(ip.data() + s.header_bytes, packet.data() + s.header_bytes + begin, payload);
    v.header_bytes = static_cast<std::uint16_t>(s.header_bytes);
    if (payload <= s.segment_payload) {
        v.gso_type = VnetHeader::kNone;
        v.gso_bytes = 0;
    }
    if (!s.ipv6) store16(ip, 4, (load16(ip, 4) + first) & 0xffff);
    if (tcp) {
        store32(ip, s.transport_offset + 4, load32(ip, s.transport_offset + 4) + begin);
        std::uint8_t flags = byte_at(ip, s.transport_offset + 13);
        if (first + count < s.segments) flags &= static_cast<std::uint8_t>(~(kFin | kPush));
        if (first != 0) {
            flags &= static_cast<std::uint8_t>(~kCwr);
            v.gso_type &= static_cast<std::uint8_t>(~VnetHeader::kEcn);
        }
        ip[s.transport_offset + 13] = static_cast<std::byte>(flags);
    }
    set_lengths(ip, s.ipv6, tcp, s.transport_offset, total);
    std::memcpy(out.data(), &v, kVnet);
}

void complete_checksum(std::span<std::byte> built) {
    VnetHeader v = load_vnet(built);
    const auto ip = built.subspan(kVnet);
    const std::size_t field = std::size_t{v.checksum_start} + v.checksum_offset;
    if (!(v.flags & VnetHeader::kNeedsChecksum) || field + 2 > ip.size()) return;
    std::uint16_t sum = static_cast<std::uint16_t>(~ones_sum(ip.subspan(v.checksum_start)));
    if (sum == 0 && v.checksum_offset == 6) sum = 0xffff;  // in UDP, 0 means: no checksum
    store16(ip, field, sum);
    v = VnetHeader{};
    std::memcpy(built.data(), &v, kVnet);
}

UdpSegment describe_udp(std::span<const std::byte> built) {
    UdpSegment u;
    if (built.size() < kVnet + 28) return u;
    const VnetHeader v = load_vnet(built);
    const auto ip = built.subspan(kVnet);
    const bool ipv6 = byte_at(ip, 0) >> 4 == 6;
    const std::size_t transport = ipv6 ? 40 : 20;
    if (ipv6 ? ip.size() < 48 || byte_at(ip, 6) != IPPROTO_UDP
             : byte_at(ip, 0) != 0x45 || byte_at(ip, 9) != IPPROTO_UDP || (load16(ip, 6) & 0x3fff) != 0)
        return u;  // no UDP, or options, extension headers, fragments
    if (v.flags != VnetHeader::kNeedsChecksum || v.checksum_start != transport || v.checksum_offset != 6) return u;
    if (v.gso_type != VnetHeader::kNone && v.gso_type != VnetHeader::kUdp) return u;
    if (load16(ip, transport + 4) != ip.size() - transport) return u;
    u.header_bytes = static_cast<std::uint32_t>(kVnet + transport + 8);
    u.payload_bytes = static_cast<std::uint32_t>(built.size()) - u.header_bytes;
    u.segment_payload = v.gso_type == VnetHeader::kUdp ? v.gso_bytes : u.payload_bytes;
    u.mergeable = u.payload_bytes != 0;
    return u;
}

bool same_udp_flow(std::span<const std::byte> a, std::span<const std::byte> b, const UdpSegment& layout) {
    if (a.size() < layout.header_bytes || b.size() < layout.header_bytes) return false;
    const auto same = [&](std::size_t at, std::size_t n) {
        return std::memcmp(a.data() + kVnet + at, b.data() + kVnet + at, n) == 0;
    };
    if (byte_at(a, kVnet) >> 4 == 6) return same(0, 4) && same(6, 2 + 32 + 4);  // all but the lengths and the checksum
    return same(0, 2) && same(6, 4) && same(12, 8 + 4);                         // nor the identification
}

void finish_udp_merge(std::span<std::byte> headers, std::uint32_t payload_bytes, std::uint32_t segment_payload) {
    VnetHeader v = load_vnet(headers);
    const auto ip = headers.subspan(kVnet);
    const std::size_t transport = v.checksum_start;
    v.header_bytes = static_cast<std::uint16_t>(transport + 8);
    v.gso_type = VnetHeader::kUdp;
    v.gso_bytes = static_cast<std::uint16_t>(segment_payload);
    std::memcpy(headers.data(), &v, kVnet);
    set_lengths(ip, byte_at(ip, 0) >> 4 == 6, false, transport, transport + 8 + payload_bytes);
}

}  // namespace farhaul::link
