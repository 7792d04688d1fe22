#include "link/realtime/tun_device.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string_view>

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/route.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace farhaul::link {
namespace {

constexpr unsigned kUso4 = 0x20, kUso6 = 0x40;  // TUN_F_USO4 and TUN_F_USO6, newer than some headers
constexpr int kQueuePackets = 10'000;           // of super-packets before the kernel drops; its default is 500

/// Puts the calling thread into another network namespace, and back at the end.
class InNamespace {
 public:
    static Result<InNamespace> enter(const std::string& name) {
        InNamespace in;
        if (name.empty()) return in;
        const std::string path = name.find('/') == std::string::npos ? "/var/run/netns/" + name : name;
        io::UniqueFd target(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        if (!target)
            return fail_errno(
                errno, fmt::format("cannot open network namespace '{}' (make it with `ip netns add {}`)", name, name));
        in.home_.reset(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
        if (!in.home_) return fail_errno(errno, "cannot open this thread's network namespace");
        if (::setns(target.get(), CLONE_NEWNET) != 0)
            return fail_errno(errno, fmt::format("cannot enter network namespace '{}' (this needs root)", name));
        in.entered_ = true;
        return in;
    }
    InNamespace(InNamespace&& other) noexcept
        : home_(std::move(other.home_)), entered_(std::exchange(other.entered_, false)) {}
    InNamespace& operator=(InNamespace&&) = delete;
    ~InNamespace() {
        if (entered_) static_cast<void>(::setns(home_.get(), CLONE_NEWNET));
    }

 private:
    InNamespace() = default;
    io::UniqueFd home_;
    bool entered_ = false;
};

struct Prefix {
    bool ipv6 = false;
    in_addr v4{};
    in6_addr v6{};
    unsigned length = 0;
};

Result<Prefix> parse_prefix(const std::string& text) {
    Prefix p;
    const std::size_t slash = text.find('/');
    const std::string address = text.substr(0, slash);
    p.ipv6 = address.find(':') != std::string::npos;
    if (::inet_pton(p.ipv6 ? AF_INET6 : AF_INET, address.c_str(),
                    p.ipv6 ? static_cast<void*>(&p.v6) : static_cast<void*>(&p.v4)) != 1)
        return fail(ErrorCode::kInvalidArgument,
                    "'{}' is not an address with a prefix length, like 10.1.0.1/24 or fd00::1/64", text);
    const unsigned longest = p.ipv6 ? 128 : 32;
    p.length = longest;
    if (slash != std::string::npos) {
        const char* end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data() + slash + 1, end, p.length);
        if (error != std::errc{} || rest != end || p.length > longest)
            return fail(ErrorCode::kInvalidArgument, "'{}' has a wrong prefix length: it is a number from 0 to {}",
                        text, longest);
    }
    return p;
}

in_addr netmask(unsigned length) { return in_addr{htonl(length == 0 ? 0u : ~0u << (32 - length))}; }

sockaddr to_sockaddr(in_addr address) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_addr = address;
    sockaddr out{};
    std::memcpy(&out, &in, sizeof in);
    return out;
}

/// in6_ifreq of linux/ipv6.h, which cannot be included beside glibc's headers.
struct Ipv6Request {
    in6_addr address;
    std::uint32_t prefix_length;
    int index;
};

/// ioctls on an interface.
class Interface {
 public:
    explicit Interface(const std::string& name)
        : name_(name),
          v4_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)),
          v6_(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {}

    Status set_mtu(std::uint32_t mtu) {
        ifreq r = request();
        r.ifr_mtu = static_cast<int>(mtu);
        return call(v4_, SIOCSIFMTU, &r, fmt::format("cannot set MTU {}", mtu));
    }
    Status set_queue_length(int packets) {
        ifreq r = request();
        r.ifr_qlen = packets;
        return call(v4_, SIOCSIFTXQLEN, &r, "cannot set the queue length");
    }
    Status set_up() {
        ifreq r = request();
        if (auto ok = call(v4_, SIOCGIFFLAGS, &r, "cannot read the flags"); !ok) return ok;
        r.ifr_flags = static_cast<short>(r.ifr_flags | IFF_UP | IFF_RUNNING);
        return call(v4_, SIOCSIFFLAGS, &r, "cannot bring it up");
    }
    Status add_address(const std::string& text) {
        auto p = parse_prefix(text);
        if (!p) return propagate(p);
        if (p->ipv6) {
            Ipv6Request r{p->v6, p->length, index()};
            return call(v6_, SIOCSIFADDR, &r, fmt::format("cannot set address {}", text), EEXIST);
        }
        ifreq r = request();
        r.ifr_addr = to_sockaddr(p->v4);
        if (auto ok = call(v4_, SIOCSIFADDR, &r, fmt::format("cannot set address {}", text)); !ok) return ok;
        r = request();
        r.ifr_netmask = to_sockaddr(netmask(p->length));
        return call(v4_, SIOCSIFNETMASK, &r, fmt::format("cannot set the prefix of {}", text));
    }
    Status add_route(const std::string& text) {
        auto p = parse_prefix(text);
        if (!p) return propagate(p);
        if (p->ipv6) {
            in6_rtmsg r{};
            r.rtmsg_dst = p->v6;
            r.rtmsg_dst_len = static_cast<std::uint16_t>(p->length);
            r.rtmsg_flags = RTF_UP;
            r.rtmsg_metric = 1;
            r.rtmsg_ifindex = index();
            return call(v6_, SIOCADDRT, &r, fmt::format("cannot add route {}", text), EEXIST);
        }
        std::string device = name_;
        rtentry r{};
        r.rt_dst = to_sockaddr(in_addr{p->v4.s_addr & netmask(p->length).s_addr});
        r.rt_genmask = to_sockaddr(netmask(p->length));
        r.rt_flags = RTF_UP;
        r.rt_dev = device.data();
        return call(v4_, SIOCADDRT, &r, fmt::format("cannot add route {}", text), EEXIST);
    }

 private:
    ifreq request() const {
        ifreq r{};
        name_.copy(r.ifr_name, IFNAMSIZ - 1);
        return r;
    }
    int index() const { return static_cast<int>(::if_nametoindex(name_.c_str())); }
    Status call(const io::UniqueFd& fd, unsigned long what, void* argument, const std::string& failure,
                int harmless = 0) {
        if (::ioctl(fd.get(), what, argument) == 0 || errno == harmless) return {};
        return fail_errno(errno, fmt::format("device {}: {}", name_, failure));
    }
    std::string name_;
    io::UniqueFd v4_, v6_;
};

}  // namespace

Result<TunDevice> TunDevice::open(const TunConfig& config) {
    if (config.name.empty() || config.name.size() >= IFNAMSIZ)
        return fail(ErrorCode::kInvalidArgument, "'{}' is not a device name: it has 1 to {} characters", config.name,
                    IFNAMSIZ - 1);
    if (config.mtu < 576 || config.mtu > 65535)
        return fail(ErrorCode::kInvalidArgument, "an MTU of {} is outside 576 to 65535 bytes", config.mtu);
    for (const auto* list : {&config.addresses, &config.routes})
        for (const auto& text : *list)
            if (auto ok = parse_prefix(text); !ok) return propagate(ok);

    auto inside = InNamespace::enter(config.network_namespace);
    if (!inside) return propagate(inside);
    TunDevice d;
    d.fd_.reset(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (!d.fd_) return fail_errno(errno, "cannot open /dev/net/tun (the TUN driver is needed, and root)");
    ifreq r{};
    config.name.copy(r.ifr_name, IFNAMSIZ - 1);
    r.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    if (::ioctl(d.fd(), TUNSETIFF, &r) != 0)
        return fail_errno(
            errno,
            fmt::format("cannot create or open TUN device '{}' (this needs root or CAP_NET_ADMIN; a device that exists "
                        "must be made with `ip tuntap add mode tun vnet_hdr`)",
                        config.name));
    d.name_ = r.ifr_name;
    const int header = 10;
    if (::ioctl(d.fd(), TUNSETVNETHDRSZ, &header) != 0)
        return fail_errno(errno, "cannot set the size of the virtio-net header");
    const unsigned tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
    if (::ioctl(d.fd(), TUNSETOFFLOAD, tcp | kUso4 | kUso6) == 0) {
        d.offloads_ = "TCP and UDP";
    } else if (::ioctl(d.fd(), TUNSETOFFLOAD, tcp) == 0) {
        d.offloads_ = "TCP";
    } else {
        d.offloads_ = "nothing";
    }

    Interface interface(d.name_);
    if (auto ok = interface.set_mtu(config.mtu); !ok) return propagate(ok);
    if (auto ok = interface.set_queue_length(kQueuePackets); !ok) return propagate(ok);
    const bool ipv6 =
        std::ranges::any_of(config.addresses, [](const auto& a) { return a.find(':') != std::string::npos; });
    if (!ipv6 && !config.addresses.empty())  // no router solicitations among the packets that the user counts
        std::ofstream("/proc/sys/net/ipv6/conf/" + d.name_ + "/disable_ipv6") << "1";
    for (const auto& address : config.addresses)
        if (auto ok = interface.add_address(address); !ok) return propagate(ok);
    if (auto ok = interface.set_up(); !ok) return propagate(ok);
    for (const auto& route : config.routes)
        if (auto ok = interface.add_route(route); !ok) return propagate(ok);
    // Stays a view of this namespace after the thread has left it.
    d.statistics_.reset(::open("/proc/thread-self/net/dev", O_RDONLY | O_CLOEXEC));
    d.tx_dropped_at_open_ = d.counter(kTxDropped);
    d.rx_dropped_at_open_ = d.counter(kRxDropped);
    return d;
}

std::ptrdiff_t TunDevice::read(std::span<std::byte> buffer) const {
    const ssize_t n = ::read(fd(), buffer.data(), buffer.size());
    if (n >= 0) return n;
    return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

int TunDevice::write(std::span<const iovec> parts) const {
    return ::writev(fd(), parts.data(), static_cast<int>(parts.size())) >= 0 ? 0 : errno;
}

// Column `which` of the device's line in /proc/net/dev: 8 columns received, 8 sent (from the host's side).
std::uint64_t TunDevice::counter(Counter which) const {
    std::string text;
    std::array<char, 4096> piece;
    for (off_t at = 0;;) {
        const ssize_t n = ::pread(statistics_.get(), piece.data(), piece.size(), at);
        if (n <= 0) break;
        text.append(piece.data(), static_cast<std::size_t>(n));
        at += n;
    }
    const std::string label = name_ + ":";
    for (std::size_t line = 0; line < text.size();) {
        const std::size_t end = std::min(text.find('\n', line), text.size());
        std::string_view rest(text.data() + line, end - line);
        line = end + 1;
        rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
        if (!rest.starts_with(label)) continue;
        rest.remove_prefix(label.size());
        for (int column = 0;; ++column) {
            rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
            std::uint64_t value = 0;
            const auto [next, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
            if (error != std::errc{}) return 0;
            if (column == which) return value;
            rest.remove_prefix(static_cast<std::size_t>(next - rest.data()));
        }
    }
    return 0;
}

}  // namespace farhaul::link
