#include "wire/udp/socket.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <unistd.h>

#include "base/log.hpp"
#include "base/units.hpp"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace farhaul::udp {

namespace {

bool set_int(int fd, int level, int name, int value) { return setsockopt(fd, level, name, &value, sizeof(value)) == 0; }

}  // namespace

std::unexpected<Error> bind_failure(int error_number, const Address& address) {
    const char* hint = "choose another address";
    if (error_number == EADDRINUSE) hint = "another program has the port: choose another one, or end that program";
    if (error_number == EADDRNOTAVAIL)
        hint = "this host has no such address: `ip address` lists those that it has, and :PORT takes all of them";
    if (error_number == EACCES) hint = "ports below 1024 are for root: choose a higher one";
    return fail(ErrorCode::kIo, "cannot listen on {}: {}; {}", address.to_string(), std::strerror(error_number), hint);
}

std::unexpected<Error> send_failure(int error_number, const std::string& peer) {
    const char* hint = "check the address";
    if (error_number == EACCES)
        hint = "it is a broadcast address, or a firewall forbids it: give the address of one receiver";
    if (error_number == EPERM) hint = "a firewall of this host forbids it";
    if (error_number == ENETUNREACH || error_number == EHOSTUNREACH)
        hint =
            "there is no way to it: check the address, and that the host is up (`ip route get ADDRESS` shows the way)";
    return fail(ErrorCode::kIo, "cannot reach {}: {}; {}", peer, std::strerror(error_number), hint);
}

UdpSocket::~UdpSocket() {
    if (fd_ >= 0) close(fd_);
}

UdpSocket& UdpSocket::operator=(UdpSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(local_, other.local_);
    std::swap(ipv6_, other.ipv6_);
    std::swap(gso_, other.gso_);
    std::swap(gro_, other.gro_);
    std::swap(receive_buffer_bytes_, other.receive_buffer_bytes_);
    return *this;
}

Result<UdpSocket> UdpSocket::open(const SocketOptions& options) {
    UdpSocket result;
    // "Any address" is both families in one socket where the host has IPv6, else IPv4.
    const bool any = options.bind.empty() || (options.bind.is_ipv6() && options.bind.is_wildcard());
    Status made = result.set_up(options, any || options.bind.is_ipv6());
    if (!made && any) {
        SocketOptions ipv4 = options;
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(options.bind.empty() ? 0 : options.bind.port());
        ipv4.bind = Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
        UdpSocket fallback;
        if (auto ok = fallback.set_up(ipv4, false); !ok) return propagate(ok);
        return fallback;
    }
    if (!made) return propagate(made);
    return result;
}

Status UdpSocket::set_up(const SocketOptions& options, bool ipv6) {
    ipv6_ = ipv6;
    fd_ = socket(ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ < 0) return fail_errno(errno, "cannot create a UDP socket");
    Address bind_to = options.bind;
    if (bind_to.empty() && ipv6) {
        sockaddr_in6 any{};
        any.sin6_family = AF_INET6;
        bind_to = Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&any), sizeof(any));
    }
    if (ipv6) set_int(fd_, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(fd_, bind_to.sockaddr_ptr(), bind_to.length()) != 0) return bind_failure(errno, bind_to);
    sockaddr_storage bound{};
    socklen_t length = sizeof(bound);
    if (getsockname(fd_, reinterpret_cast<sockaddr*>(&bound), &length) != 0)
        return fail_errno(errno, "cannot read a socket's address");
    local_ = Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&bound), length);

    // A dual-stack socket needs the options of both families: IPv4 peers go by the IPv4 ones.
    set_int(fd_, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
    set_int(fd_, IPPROTO_IP, IP_RECVERR, 1);
    if (ipv6) {
        set_int(fd_, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
        set_int(fd_, IPPROTO_IPV6, IPV6_RECVERR, 1);
        set_int(fd_, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
    } else {
        set_int(fd_, IPPROTO_IP, IP_PKTINFO, 1);
    }
    set_int(fd_, SOL_SOCKET, SO_RXQ_OVFL, 1);
    size_buffers(options.buffer_bytes);
    // Setting "no segmentation" succeeds exactly where the kernel knows the option.
    gso_ = options.gso && set_int(fd_, IPPROTO_UDP, UDP_SEGMENT, 0);
    gro_ = options.gro && set_int(fd_, IPPROTO_UDP, UDP_GRO, 1);
    return {};
}

void UdpSocket::size_buffers(std::uint32_t bytes) {
    const int wanted = static_cast<int>(std::min<std::uint32_t>(bytes, 1u << 30));
    // FORCE goes beyond net.core.*mem_max for those who may (CAP_NET_ADMIN).
    if (!set_int(fd_, SOL_SOCKET, SO_RCVBUFFORCE, wanted)) set_int(fd_, SOL_SOCKET, SO_RCVBUF, wanted);
    if (!set_int(fd_, SOL_SOCKET, SO_SNDBUFFORCE, wanted)) set_int(fd_, SOL_SOCKET, SO_SNDBUF, wanted);
    int granted = 0;
    socklen_t length = sizeof(granted);
    getsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &granted, &length);
    granted /= 2;  // the kernel doubles it for its own records
    receive_buffer_bytes_ = static_cast<std::uint64_t>(std::max(granted, 0));
    static bool told = false;
    if (granted < wanted && !std::exchange(told, true))
        log().warn(
            "UDP: the kernel grants a receive buffer of {}, {} were asked for: bursts may be dropped. `sysctl -w "
            "net.core.rmem_max={}` allows more",
            format_size(static_cast<std::uint64_t>(granted)), format_size(bytes), bytes);
}

Result<Address> UdpSocket::reachable(const Address& peer) const {
    if (ipv6_) return peer.mapped_to_ipv6();
    if (peer.is_mapped_ipv4()) {
        const auto* v6 = reinterpret_cast<const sockaddr_in6*>(peer.sockaddr_ptr());
        sockaddr_in v4{};
        v4.sin_family = AF_INET;
        v4.sin_port = v6->sin6_port;
        std::memcpy(&v4.sin_addr, v6->sin6_addr.s6_addr + 12, 4);
        return Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&v4), sizeof(v4));
    }
    if (peer.is_ipv6())
        return fail(ErrorCode::kInvalidArgument,
                    "{} is an IPv6 address, but the local socket {} is IPv4: bind to an IPv6 address, or to none",
                    peer.to_string(), local_.to_string());
    return peer;
}

int UdpSocket::send(std::span<const std::byte> packet, const Address& to, const LocalAddress& from) const {
    iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
    msghdr message{};
    message.msg_name = const_cast<sockaddr*>(to.sockaddr_ptr());
    message.msg_namelen = to.length();
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (from.size > 0) {
        message.msg_control = const_cast<std::byte*>(from.control.data());
        message.msg_controllen = from.size;
    }
    // An error that the network reported for an earlier packet comes out of the next call, whoever it is for. The
    // second try is for this packet.
    for (int attempt = 0;; ++attempt) {
        if (sendmsg(fd_, &message, MSG_NOSIGNAL) >= 0) return 0;
        if (errno == EINTR) continue;
        if (attempt >= 2 || errno == EAGAIN || errno == ENOBUFS || errno == EMSGSIZE) return errno;
    }
}

std::optional<NetworkError> UdpSocket::next_error() const {
    std::array<std::byte, 512> control;
    std::array<std::byte, 64> data;
    sockaddr_storage name{};
    iovec part{data.data(), data.size()};
    msghdr message{};
    message.msg_name = &name;
    message.msg_namelen = sizeof(name);
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(fd_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return std::nullopt;
    NetworkError result;
    result.destination = Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&name), message.msg_namelen);
    for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr; item = CMSG_NXTHDR(&message, item)) {
        const bool v4 = item->cmsg_level == IPPROTO_IP && item->cmsg_type == IP_RECVERR;
        const bool v6 = item->cmsg_level == IPPROTO_IPV6 && item->cmsg_type == IPV6_RECVERR;
        if (!v4 && !v6) continue;
        sock_extended_err error;
        std::memcpy(&error, CMSG_DATA(item), sizeof(error));
        result.error = static_cast<int>(error.ee_errno);
        if (error.ee_errno == EMSGSIZE) result.mtu = error.ee_info;
    }
    return result;
}

void UdpSocket::allow_fragmentation() {
    set_int(fd_, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT);
    if (ipv6_) set_int(fd_, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DONT);
}

ReceivedControl read_control(const msghdr& message) {
    ReceivedControl result;
    for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
         item = CMSG_NXTHDR(const_cast<msghdr*>(&message), item)) {
        if (item->cmsg_level == IPPROTO_UDP && item->cmsg_type == UDP_GRO) {
            int size = 0;
            std::memcpy(&size, CMSG_DATA(item), sizeof(size));
            result.segment_bytes = static_cast<std::uint32_t>(size);
        } else if (item->cmsg_level == SOL_SOCKET && item->cmsg_type == SO_RXQ_OVFL) {
            std::uint32_t count = 0;
            std::memcpy(&count, CMSG_DATA(item), sizeof(count));
            result.dropped = count;
        }
    }
    return result;
}

LocalAddress local_address_of(const msghdr& message) {
    LocalAddress result;
    for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
         item = CMSG_NXTHDR(const_cast<msghdr*>(&message), item)) {
        alignas(cmsghdr) std::array<std::byte, sizeof(result.control)> buffer{};
        cmsghdr header{};
        header.cmsg_level = item->cmsg_level;
        header.cmsg_type = item->cmsg_type;
        if (item->cmsg_level == IPPROTO_IP && item->cmsg_type == IP_PKTINFO) {
            in_pktinfo info;
            std::memcpy(&info, CMSG_DATA(item), sizeof(info));
            // The address is kept, the interface is not: the route may change.
            in_pktinfo source{};
            source.ipi_spec_dst = info.ipi_spec_dst;
            header.cmsg_len = CMSG_LEN(sizeof(source));
            std::memcpy(buffer.data() + CMSG_LEN(0), &source, sizeof(source));
            result.size = CMSG_SPACE(sizeof(source));
        } else if (item->cmsg_level == IPPROTO_IPV6 && item->cmsg_type == IPV6_PKTINFO) {
            in6_pktinfo info;
            std::memcpy(&info, CMSG_DATA(item), sizeof(info));
            // Link-local addresses mean nothing without their interface.
            if (!IN6_IS_ADDR_LINKLOCAL(&info.ipi6_addr)) info.ipi6_ifindex = 0;
            header.cmsg_len = CMSG_LEN(sizeof(info));
            std::memcpy(buffer.data() + CMSG_LEN(0), &info, sizeof(info));
            result.size = CMSG_SPACE(sizeof(info));
        } else {
            continue;
        }
        std::memcpy(buffer.data(), &header, sizeof(header));
        result.control = buffer;
        return result;
    }
    return result;
}

std::size_t append_segment_size(std::byte* control, std::size_t used, std::uint16_t segment_bytes) {
    cmsghdr header{};
    header.cmsg_level = IPPROTO_UDP;
    header.cmsg_type = UDP_SEGMENT;
    header.cmsg_len = CMSG_LEN(sizeof(segment_bytes));
    std::memcpy(control + used, &header, sizeof(header));
    std::memcpy(control + used + CMSG_LEN(0), &segment_bytes, sizeof(segment_bytes));
    return used + CMSG_SPACE(sizeof(segment_bytes));
}

}  // namespace farhaul::udp
