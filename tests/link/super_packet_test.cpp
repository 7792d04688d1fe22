#include "link/realtime/super_packet.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include <netinet/in.h>

#include "base/random.hpp"

namespace farhaul::link {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::size_t kVnet = sizeof(VnetHeader);

unsigned u8(const Bytes& b, std::size_t at) { return std::to_integer<unsigned>(b.at(at)); }
unsigned u16(const Bytes& b, std::size_t at) { return (u8(b, at) << 8) + u8(b, at + 1); }
std::uint32_t u32(const Bytes& b, std::size_t at) {
    return (static_cast<std::uint32_t>(u16(b, at)) << 16) + u16(b, at + 2);
}
void put16(Bytes& b, std::size_t at, unsigned v) {
    b.at(at) = static_cast<std::byte>(v / 256);
    b.at(at + 1) = static_cast<std::byte>(v % 256);
}

// The internet checksum, written in another way than the code under test: with end-around carry after each step.
unsigned reference_sum(const Bytes& b, std::size_t begin, std::size_t end, unsigned sum) {
    for (std::size_t i = begin; i < end; ++i) {
        sum += (i - begin) % 2 == 0 ? u8(b, i) * 256 : u8(b, i);
        if (sum > 0xffff) sum = sum - 0x10000 + 1;
    }
    return sum;
}

unsigned reference_pseudo(const Bytes& ip, bool v6, unsigned protocol, std::size_t l4_bytes) {
    const unsigned sum = v6 ? reference_sum(ip, 8, 40, 0) : reference_sum(ip, 12, 20, 0);
    unsigned s = sum + protocol + static_cast<unsigned>(l4_bytes);
    while (s > 0xffff) s = s - 0x10000 + 1;
    return s;
}

struct Shape {
    bool v6, tcp;
    std::uint32_t payload, segment;
    std::uint32_t tcp_options = 12;
    std::size_t ip_bytes() const { return v6 ? 40 : 20; }
    std::size_t headers() const { return ip_bytes() + (tcp ? 20 + tcp_options : 8); }
};

constexpr unsigned kFlags = 0x80 | 0x10 | 0x08 | 0x01;  // CWR ACK PSH FIN

// As the kernel gives it to a TUN device: virtio-net header, IP packet, partial checksum.
Bytes make_super_packet(const Shape& s) {
    Bytes ip(s.headers() + s.payload);
    Random random(s.payload + s.segment);
    for (std::size_t i = s.headers(); i < ip.size(); ++i) ip[i] = static_cast<std::byte>(random());
    const std::size_t l4 = ip.size() - s.ip_bytes();
    if (s.v6) {
        ip[0] = std::byte{0x60};
        put16(ip, 4, static_cast<unsigned>(l4) & 0xffff);
        ip[6] = static_cast<std::byte>(s.tcp ? 6 : 17);
        ip[7] = std::byte{64};
        for (std::size_t i = 8; i < 40; ++i) ip[i] = static_cast<std::byte>(random());
    } else {
        ip[0] = std::byte{0x45};
        put16(ip, 2, static_cast<unsigned>(ip.size()) & 0xffff);
        put16(ip, 4, 65'530);  // the identification wraps inside the super-packet
        put16(ip, 6, 0x4000);
        ip[8] = std::byte{64};
        ip[9] = static_cast<std::byte>(s.tcp ? 6 : 17);
        for (std::size_t i = 12; i < 20; ++i) ip[i] = static_cast<std::byte>(random());
        put16(ip, 10, 0xffff - reference_sum(ip, 0, 20, 0));
    }
    const std::size_t t = s.ip_bytes();
    put16(ip, t, 40'000);
    put16(ip, t + 2, 5001);
    if (s.tcp) {
        put16(ip, t + 4, 0xffff);  // the sequence number wraps too
        put16(ip, t + 6, 0xf000);
        ip[t + 12] = static_cast<std::byte>((20 + s.tcp_options) / 4 << 4);
        ip[t + 13] = static_cast<std::byte>(kFlags);
        for (std::size_t i = t + 20; i < s.headers(); ++i) ip[i] = static_cast<std::byte>(random());
    } else {
        put16(ip, t + 4, static_cast<unsigned>(l4) & 0xffff);
    }
    put16(ip, t + (s.tcp ? 16 : 6), reference_pseudo(ip, s.v6, s.tcp ? 6 : 17, l4));
    return ip;
}

VnetHeader vnet_of(const Shape& s) {
    return {.flags = VnetHeader::kNeedsChecksum,
            .gso_type = s.tcp ? (s.v6 ? VnetHeader::kTcp6 : VnetHeader::kTcp4) : VnetHeader::kUdp,
            .header_bytes = static_cast<std::uint16_t>(s.headers()),
            .gso_bytes = static_cast<std::uint16_t>(s.segment),
            .checksum_start = static_cast<std::uint16_t>(s.ip_bytes()),
            .checksum_offset = static_cast<std::uint16_t>(s.tcp ? 16 : 6)};
}

// Everything that a network card's segmentation would guarantee about segments first .. first + count - 1.
void check_run(const Shape& s, const Bytes& super, const Bytes& built, std::uint32_t first, std::uint32_t count,
               std::uint32_t segments) {
    VnetHeader v;
    ASSERT_GE(built.size(), kVnet);
    std::memcpy(&v, built.data(), kVnet);
    const Bytes ip(built.begin() + static_cast<std::ptrdiff_t>(kVnet), built.end());
    const std::uint32_t begin = first * s.segment;
    const std::uint32_t payload = std::min(s.payload - begin, count * s.segment);
    ASSERT_EQ(ip.size(), s.headers() + payload);
    EXPECT_EQ(std::memcmp(ip.data() + s.headers(), super.data() + s.headers() + begin, payload), 0) << "payload";
    EXPECT_EQ(v.flags, VnetHeader::kNeedsChecksum);
    EXPECT_EQ(v.header_bytes, s.headers());
    if (payload > s.segment) {
        EXPECT_EQ(v.gso_type, vnet_of(s).gso_type);
        EXPECT_EQ(v.gso_bytes, s.segment);
    } else {
        EXPECT_EQ(v.gso_type, VnetHeader::kNone);
        EXPECT_EQ(v.gso_bytes, 0);
    }
    const std::size_t t = s.ip_bytes(), l4 = ip.size() - t;
    if (s.v6) {
        EXPECT_EQ(u16(ip, 4), l4);
    } else {
        EXPECT_EQ(u16(ip, 2), ip.size());
        EXPECT_EQ(u16(ip, 4), (65'530u + first) % 65'536u);
        EXPECT_EQ(reference_sum(ip, 0, 20, 0), 0xffffu) << "IPv4 header checksum";
    }
    if (s.tcp) {
        EXPECT_EQ(u32(ip, t + 4), static_cast<std::uint32_t>(0xfffff000u + begin));
        unsigned flags = 0x10;
        if (first == 0) flags |= 0x80;
        if (first + count == segments) flags |= 0x09;
        EXPECT_EQ(u8(ip, t + 13), flags);
    } else {
        EXPECT_EQ(u16(ip, t + 4), l4);
    }
    const std::size_t field = t + (s.tcp ? 16 : 6);
    EXPECT_EQ(u16(ip, field), reference_pseudo(ip, s.v6, s.tcp ? 6 : 17, l4)) << "partial checksum";
    // Completed, it is right for the whole packet, as the receiver would verify it.
    Bytes whole = built;
    complete_checksum(whole);
    const Bytes done(whole.begin() + static_cast<std::ptrdiff_t>(kVnet), whole.end());
    EXPECT_EQ(reference_sum(done, t, done.size(), reference_pseudo(done, s.v6, s.tcp ? 6 : 17, l4)), 0xffffu);
    EXPECT_EQ(std::to_integer<int>(whole[0]), 0) << "nothing is left to be summed";
}

class SuperPacketTest : public testing::TestWithParam<Shape> {};

TEST_P(SuperPacketTest, EverySegmentCanBeLost) {
    const Shape s = GetParam();
    const Bytes super = make_super_packet(s);
    const auto layout = parse_super_packet(vnet_of(s), super);
    ASSERT_TRUE(layout.has_value());
    ASSERT_EQ(layout->segments, (s.payload + s.segment - 1) / s.segment);
    std::uint64_t line_bytes = 0;
    for (std::uint32_t i = 0; i < layout->segments; ++i) line_bytes += layout->segment_bytes(i);
    EXPECT_EQ(line_bytes, layout->segments * s.headers() + s.payload);
    Bytes built;
    for (std::uint32_t lost = 0; lost < layout->segments; ++lost) {
        SCOPED_TRACE("segment " + std::to_string(lost) + " lost");
        if (lost > 0) {
            build_run(vnet_of(s), *layout, super, 0, lost, built);
            check_run(s, super, built, 0, lost, layout->segments);
        }
        if (lost + 1 < layout->segments) {
            const std::uint32_t rest = layout->segments - lost - 1;
            build_run(vnet_of(s), *layout, super, lost + 1, rest, built);
            check_run(s, super, built, lost + 1, rest, layout->segments);
        }
        build_run(vnet_of(s), *layout, super, lost, 1, built);
        check_run(s, super, built, lost, 1, layout->segments);
    }
}

TEST_P(SuperPacketTest, AWholeRunIsTheSuperPacketItself) {
    const Shape s = GetParam();
    const Bytes super = make_super_packet(s);
    const auto layout = parse_super_packet(vnet_of(s), super);
    ASSERT_TRUE(layout.has_value());
    Bytes built;
    build_run(vnet_of(s), *layout, super, 0, layout->segments, built);
    ASSERT_EQ(built.size(), kVnet + super.size());
    EXPECT_TRUE(std::equal(super.begin(), super.end(), built.begin() + static_cast<std::ptrdiff_t>(kVnet)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, SuperPacketTest,
                         testing::Values(Shape{false, true, 44 * 1448, 1448}, Shape{false, true, 10 * 1448 + 1, 1448},
                                         Shape{false, true, 2 * 1460, 1460, 0}, Shape{false, true, 100, 1448},
                                         Shape{true, true, 30 * 1428 + 777, 1428}, Shape{true, true, 7, 3},
                                         Shape{false, false, 20 * 1472, 1472},
                                         Shape{false, false, 9 * 1000 + 333, 1000},
                                         Shape{true, false, 12 * 1452 + 51, 1452}));

TEST(SuperPacket, APlainPacketPassesUnchanged) {
    const Shape s{false, false, 500, 500};
    const Bytes packet = make_super_packet(s);
    VnetHeader v = vnet_of(s);
    v.gso_type = VnetHeader::kNone;
    v.gso_bytes = 0;
    const auto layout = parse_super_packet(v, packet);
    ASSERT_TRUE(layout.has_value());
    EXPECT_EQ(layout->segments, 1u);
    EXPECT_EQ(layout->segment_bytes(0), packet.size());
    Bytes built;
    build_run(v, *layout, packet, 0, 1, built);
    EXPECT_EQ(std::memcmp(built.data(), &v, kVnet), 0);
    EXPECT_TRUE(
        std::equal(packet.begin(), packet.end(), built.begin() + static_cast<std::ptrdiff_t>(kVnet), built.end()));
}

TEST(SuperPacket, RefusesWhatIsMalformed) {
    const Shape s{false, true, 3000, 1000};
    const Bytes good = make_super_packet(s);
    ASSERT_TRUE(parse_super_packet(vnet_of(s), good).has_value());
    const auto refused = [&](auto change) {
        VnetHeader v = vnet_of(s);
        Bytes packet = good;
        change(v, packet);
        return !parse_super_packet(v, packet).has_value();
    };
    EXPECT_TRUE(refused([](auto&, auto& p) { p.resize(0); }));
    EXPECT_TRUE(refused([](auto&, auto& p) { p.resize(19); }));
    EXPECT_TRUE(refused([&](auto&, auto& p) { p.resize(s.headers()); }));
    EXPECT_TRUE(refused([](auto&, auto& p) { p.resize(39); }));
    EXPECT_TRUE(refused([](auto&, auto& p) { p[0] = std::byte{0x65}; }));
    EXPECT_TRUE(refused([](auto&, auto& p) { p[0] = std::byte{0x44}; }));
    EXPECT_TRUE(refused([](auto&, auto& p) { p[0] = std::byte{0x4f}; }));
    EXPECT_TRUE(refused([](auto&, auto& p) { p[0] = std::byte{0x05}; }));
    EXPECT_TRUE(refused([](auto&, auto& p) { p[32] = std::byte{0x40}; }));
    EXPECT_TRUE(refused([](auto& v, auto&) { v.gso_bytes = 0; }));
    EXPECT_TRUE(refused([](auto& v, auto&) { v.flags = 0; }));
    EXPECT_TRUE(refused([](auto& v, auto&) { v.gso_type = VnetHeader::kTcp6; }));
    EXPECT_TRUE(refused([](auto& v, auto&) { v.gso_type = 3; }));
    EXPECT_TRUE(refused([](auto& v, auto&) { v.checksum_start = 0xffff; }));
    EXPECT_TRUE(refused([](auto& v, auto&) { v.checksum_start = 8; }));
    EXPECT_TRUE(refused([](auto& v, auto&) { v.checksum_offset = 6; }));
}

TEST(SuperPacket, SurvivesArbitraryHeaders) {
    Random random(3);
    const Shape s{false, true, 3000, 1000};
    const Bytes good = make_super_packet(s);
    Bytes built;
    std::uint64_t accepted = 0;
    for (int i = 0; i < 200'000; ++i) {
        VnetHeader v = vnet_of(s);
        Bytes packet = good;
        auto* raw = reinterpret_cast<std::byte*>(&v);
        for (std::uint64_t n = random.below(3); n > 0; --n) raw[random.below(kVnet)] = static_cast<std::byte>(random());
        for (std::uint64_t n = random.below(3); n > 0; --n) packet[random.below(60)] = static_cast<std::byte>(random());
        if (random.chance(0.2)) packet.resize(random.below(packet.size()));
        const auto layout = parse_super_packet(v, packet);
        if (!layout) continue;
        ++accepted;
        const auto first = static_cast<std::uint32_t>(random.below(layout->segments));
        const auto count = static_cast<std::uint32_t>(random.between(1, layout->segments - first));
        build_run(v, *layout, packet, first, count, built);
        complete_checksum(built);
        ASSERT_LE(built.size(), kVnet + packet.size());
    }
    EXPECT_GT(accepted, 10'000u);
}

TEST(SuperPacket, UdpPacketsOfOneFlowAreMerged) {
    for (const bool v6 : {false, true}) {
        const Shape s{v6, false, 5 * 1200 + 100, 1200};
        const Bytes super = make_super_packet(s);
        const auto layout = parse_super_packet(vnet_of(s), super);
        ASSERT_TRUE(layout.has_value());
        std::vector<Bytes> parts(layout->segments);
        for (std::uint32_t i = 0; i < layout->segments; ++i) build_run(vnet_of(s), *layout, super, i, 1, parts[i]);
        const UdpSegment head = describe_udp(parts[0]);
        ASSERT_TRUE(head.mergeable);
        EXPECT_EQ(head.payload_bytes, 1200u);
        Bytes merged = parts[0];
        for (std::size_t i = 1; i < parts.size(); ++i) {
            const UdpSegment u = describe_udp(parts[i]);
            ASSERT_TRUE(u.mergeable);
            ASSERT_TRUE(same_udp_flow(parts[0], parts[i], head));
            merged.insert(merged.end(), parts[i].begin() + u.header_bytes, parts[i].end());
        }
        finish_udp_merge(std::span(merged).first(head.header_bytes), s.payload, s.segment);
        check_run(s, super, merged, 0, layout->segments, layout->segments);

        Bytes other = parts[1];
        other[kVnet + s.ip_bytes() + 1] ^= std::byte{1};  // another port
        EXPECT_FALSE(same_udp_flow(parts[0], other, head));
        other = parts[1];
        other[kVnet + 15] ^= std::byte{1};  // another address
        EXPECT_FALSE(same_udp_flow(parts[0], other, head));
        Bytes tcp;
        const Shape ts{v6, true, 100, 1448};
        const Bytes tcp_packet = make_super_packet(ts);
        build_run(vnet_of(ts), *parse_super_packet(vnet_of(ts), tcp_packet), tcp_packet, 0, 1, tcp);
        EXPECT_FALSE(describe_udp(tcp).mergeable);
        for (std::size_t n = 0; n < parts[0].size(); ++n)
            EXPECT_FALSE(describe_udp(std::span(parts[0]).first(n)).mergeable);
    }
}

}  // namespace
}  // namespace farhaul::link
