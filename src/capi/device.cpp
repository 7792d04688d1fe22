#include "capi/device.hpp"

#include <charconv>
#include <memory>
#include <vector>

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

namespace farhaul::capi {

namespace {

using udp::Address;

struct Interface {
    std::string name;
    Address address;
    bool up = false;
    bool loopback = false;
};

std::vector<Interface> list_interfaces() {
    std::vector<Interface> found;
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) return found;
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> guard(list, freeifaddrs);
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
        if (entry->ifa_addr == nullptr) continue;
        const int family = entry->ifa_addr->sa_family;
        if (family != AF_INET && family != AF_INET6) continue;
        const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
        found.push_back({entry->ifa_name, Address::from_sockaddr(entry->ifa_addr, length),
                         (entry->ifa_flags & IFF_UP) != 0, (entry->ifa_flags & IFF_LOOPBACK) != 0});
    }
    return found;
}

/// An address literal, without asking a name server; empty when the text is none.
Address parse_literal(const std::string& text) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_DGRAM;
    hints.ai_flags = AI_NUMERICHOST;
    addrinfo* list = nullptr;
    if (text.empty() || getaddrinfo(text.c_str(), nullptr, &hints, &list) != 0) return {};
    const Address address = Address::from_sockaddr(list->ai_addr, list->ai_addrlen);
    freeaddrinfo(list);
    return address;
}

/// `ADDRESS`, `ADDRESS:PORT` or `[ADDRESS]:PORT`; empty when the text is none of these.
Address parse_literal_with_port(const std::string& text) {
    if (const Address plain = parse_literal(text); !plain.empty()) return plain;
    const auto colon = text.rfind(':');
    if (colon == std::string::npos) return {};
    std::string host = text.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
        host = host.substr(1, host.size() - 2);
    } else if (host.find(':') != std::string::npos) {
        return {};  // IPv6 with a port needs brackets
    }
    std::uint16_t port = 0;
    const char* begin = text.data() + colon + 1;
    const char* end = text.data() + text.size();
    if (const auto [rest, error] = std::from_chars(begin, end, port); error != std::errc() || rest != end) return {};
    const Address address = parse_literal(host);
    return address.empty() ? address : address.with_port(port);
}

/// The local address that the kernel's routing table picks for the outside world. Sends nothing: connect() on UDP only
/// looks up the route.
Address routed_address() {
    const Address somewhere =
        parse_literal("192.0.2.1").with_port(9);  // a documentation address: any default route covers it
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return {};
    sockaddr_storage storage{};
    socklen_t length = sizeof(storage);
    auto* generic = reinterpret_cast<sockaddr*>(&storage);
    const bool known =
        connect(fd, somewhere.sockaddr_ptr(), somewhere.length()) == 0 && getsockname(fd, generic, &length) == 0;
    close(fd);
    return known ? Address::from_sockaddr(generic, length).with_port(0) : Address{};
}

Address default_address() {
    if (const Address routed = routed_address(); !routed.empty() && !routed.is_wildcard()) return routed;
    Address loopback;
    for (const Interface& entry : list_interfaces()) {
        if (!entry.up || entry.address.is_ipv6()) continue;
        if (!entry.loopback) return entry.address;
        loopback = entry.address;
    }
    return loopback;
}

/// IPv4 before IPv6: both ends then meet in one family by default.
Address interface_address(std::string_view name) {
    Address found;
    for (const Interface& entry : list_interfaces()) {
        if (entry.name != name || !entry.up) continue;
        if (!entry.address.is_ipv6()) return entry.address;
        if (found.empty()) found = entry.address;
    }
    return found;
}

}  // namespace

std::string describe_devices() {
    std::string text;
    for (const Interface& entry : list_interfaces()) {
        if (!entry.up) continue;
        const std::string address = entry.address.to_string();
        // to_string() writes a port behind the address, which means nothing here.
        std::string bare = address.substr(0, address.rfind(':'));
        if (bare.starts_with('[')) bare = bare.substr(1, bare.size() - 2);
        if (!text.empty()) text += ", ";
        text += fmt::format("{} ({})", entry.name, bare);
    }
    return text.empty() ? "none" : text;
}

Result<Address> resolve_device(std::string_view name) {
    const std::string text(name);
    if (name == "udp") {
        const Address found = default_address();
        if (!found.empty()) return found;
        return fail(ErrorCode::kInvalidArgument,
                    "device `udp`: no network interface of this host is up and has an IPv4 address; there are: {}",
                    describe_devices());
    }
    const bool prefixed = name.starts_with("udp:");
    if (const Address literal = prefixed ? parse_literal_with_port(text.substr(4)) : parse_literal(text);
        !literal.empty()) {
        if (literal.is_wildcard())
            return fail(ErrorCode::kInvalidArgument,
                        "device `{}`: the peer needs to be told one address; name one of this host's, or `udp` for the "
                        "usual one: {}",
                        name, describe_devices());
        return literal;
    }
    if (!prefixed) {
        if (const Address found = interface_address(name); !found.empty()) return found;
    }
    return fail(ErrorCode::kInvalidArgument,
                "no device `{}`: give `udp`, `udp:ADDRESS`, an address or an interface of this host that is up and has "
                "an address: {}",
                name, describe_devices());
}

}  // namespace farhaul::capi
