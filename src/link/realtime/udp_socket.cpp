#include "link/realtime/udp_socket.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/uio.h>

namespace farhaul::link {
namespace {

constexpr int kBufferBytes = 64 << 20;
constexpr int kUdpGro = 104;  // UDP_GRO of linux/udp.h

void set_buffer(int fd, int forced, int plain) {
    if (::setsockopt(fd, SOL_SOCKET, forced, &kBufferBytes, sizeof kBufferBytes) != 0)
        ::setsockopt(fd, SOL_SOCKET, plain, &kBufferBytes, sizeof kBufferBytes);
}

void read_control(msghdr& message, Received& received) {
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == kUdpGro) {
            int size = 0;
            std::memcpy(&size, CMSG_DATA(c), sizeof size);
            if (size > 0) received.segment_bytes = static_cast<std::uint32_t>(size);
        } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
            in_pktinfo info{};
            std::memcpy(&info, CMSG_DATA(c), sizeof info);
            // As a source: the address it was sent to, over whatever interface leads back.
            info = in_pktinfo{.ipi_ifindex = 0, .ipi_spec_dst = info.ipi_addr, .ipi_addr = {}};
            auto* out = reinterpret_cast<cmsghdr*>(received.to.control.data());
            *out = cmsghdr{.cmsg_len = CMSG_LEN(sizeof info), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_PKTINFO};
            std::memcpy(CMSG_DATA(out), &info, sizeof info);
            received.to.length = CMSG_SPACE(sizeof info);
        } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
            in6_pktinfo info{};
            std::memcpy(&info, CMSG_DATA(c), sizeof info);
            if (!IN6_IS_ADDR_LINKLOCAL(&info.ipi6_addr)) info.ipi6_ifindex = 0;
            auto* out = reinterpret_cast<cmsghdr*>(received.to.control.data());
            *out = cmsghdr{.cmsg_len = CMSG_LEN(sizeof info), .cmsg_level = IPPROTO_IPV6, .cmsg_type = IPV6_PKTINFO};
            std::memcpy(CMSG_DATA(out), &info, sizeof info);
            received.to.length = CMSG_SPACE(sizeof info);
        }
    }
}

}  // namespace

ReceiveBatch::ReceiveBatch() : buffers_(std::make_unique<std::byte[]>(kMessages * kMessageBytes)) {}

std::span<const Received> ReceiveBatch::receive(int fd, int& error) {
    for (std::size_t i = 0; i < kMessages; ++i) {
        io_[i] = iovec{buffers_.get() + i * kMessageBytes, kMessageBytes};
        messages_[i].msg_hdr = msghdr{.msg_name = &from_[i].address,
                                      .msg_namelen = sizeof from_[i].address,
                                      .msg_iov = &io_[i],
                                      .msg_iovlen = 1,
                                      .msg_control = control_[i].data(),
                                      .msg_controllen = control_[i].size(),
                                      .msg_flags = 0};
    }
    error = 0;
    const int n = ::recvmmsg(fd, messages_.data(), kMessages, MSG_DONTWAIT, nullptr);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR) error = errno;
        return {};
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        Received& r = received_[i];
        r.bytes = {buffers_.get() + i * kMessageBytes, messages_[i].msg_len};
        r.segment_bytes = messages_[i].msg_len;
        r.to.length = 0;
        from_[i].length = messages_[i].msg_hdr.msg_namelen;
        r.from = &from_[i];
        read_control(messages_[i].msg_hdr, r);
    }
    return {received_.data(), static_cast<std::size_t>(n)};
}

Result<UdpSocket> UdpSocket::open(const Endpoint& address) {
    UdpSocket s;
    s.fd_.reset(::socket(address.address.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!s.fd_) return fail_errno(errno, "cannot open a UDP socket");
    set_buffer(s.fd(), SO_RCVBUFFORCE, SO_RCVBUF);
    set_buffer(s.fd(), SO_SNDBUFFORCE, SO_SNDBUF);
    const int on = 1;
    ::setsockopt(s.fd(), SOL_UDP, kUdpGro, &on, sizeof on);  // without it datagrams come one by one
    return s;
}

Result<UdpSocket> UdpSocket::listening(const Endpoint& address) {
    auto s = open(address);
    if (!s) return s;
    const int on = 1;
    if (address.is_ipv6()) {
        ::setsockopt(s->fd(), IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on);
    } else {
        ::setsockopt(s->fd(), IPPROTO_IP, IP_PKTINFO, &on, sizeof on);
    }
    if (::bind(s->fd(), address.get(), address.length) != 0)
        return fail_errno(errno, fmt::format("cannot listen on {}", address.to_string()));
    return s;
}

Result<UdpSocket> UdpSocket::connected(const Endpoint& address) {
    auto s = open(address);
    if (!s) return s;
    if (::connect(s->fd(), address.get(), address.length) != 0)
        return fail_errno(errno, fmt::format("cannot reach {}", address.to_string()));
    return s;
}

Result<Endpoint> UdpSocket::local() const {
    Endpoint e;
    e.length = sizeof e.address;
    if (::getsockname(fd(), reinterpret_cast<sockaddr*>(&e.address), &e.length) != 0)
        return fail_errno(errno, "cannot read the socket's address");
    return e;
}

std::uint64_t UdpSocket::dropped_by_kernel() const {
    std::uint32_t info[SK_MEMINFO_VARS] = {};
    socklen_t length = sizeof info;
    if (::getsockopt(fd(), SOL_SOCKET, SO_MEMINFO, info, &length) != 0) return 0;
    return info[SK_MEMINFO_DROPS];
}

std::uint64_t UdpSocket::receive_buffer() const {
    int size = 0;
    socklen_t length = sizeof size;
    ::getsockopt(fd(), SOL_SOCKET, SO_RCVBUF, &size, &length);
    return static_cast<std::uint64_t>(std::max(size, 0));
}

}  // namespace farhaul::link
