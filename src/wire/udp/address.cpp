#include "wire/udp/address.hpp"

#include <charconv>
#include <cstring>

#include <arpa/inet.h>
#include <netdb.h>

namespace farhaul::udp {

Address Address::from_sockaddr(const sockaddr* address, socklen_t length) {
    Address result;
    if (address == nullptr) return result;
    const bool v4 = length >= sizeof(sockaddr_in) && address->sa_family == AF_INET;
    const bool v6 = length >= sizeof(sockaddr_in6) && address->sa_family == AF_INET6;
    if (!v4 && !v6) return result;
    result.length_ = v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&result.any_, address, result.length_);
    return result;
}

bool Address::is_mapped_ipv4() const { return is_ipv6() && IN6_IS_ADDR_V4MAPPED(&any_.v6.sin6_addr); }

bool Address::is_wildcard() const {
    return is_ipv6() ? IN6_IS_ADDR_UNSPECIFIED(&any_.v6.sin6_addr) : any_.v4.sin_addr.s_addr == INADDR_ANY;
}

bool Address::is_loopback() const {
    if (!is_ipv6()) return (ntohl(any_.v4.sin_addr.s_addr) >> 24) == 127;
    return IN6_IS_ADDR_LOOPBACK(&any_.v6.sin6_addr) || (is_mapped_ipv4() && any_.v6.sin6_addr.s6_addr[12] == 127);
}

std::uint16_t Address::port() const { return ntohs(is_ipv6() ? any_.v6.sin6_port : any_.v4.sin_port); }

Address Address::with_port(std::uint16_t port) const {
    Address result = *this;
    if (is_ipv6()) {
        result.any_.v6.sin6_port = htons(port);
    } else {
        result.any_.v4.sin_port = htons(port);
    }
    return result;
}

Address Address::mapped_to_ipv6() const {
    if (empty() || is_ipv6()) return *this;
    Address result;
    result.length_ = sizeof(sockaddr_in6);
    result.any_.v6.sin6_family = AF_INET6;
    result.any_.v6.sin6_port = any_.v4.sin_port;
    auto* bytes = result.any_.v6.sin6_addr.s6_addr;
    // A wildcard has no mapped form that a socket could be bound to: every IPv4 address is part of every address.
    if (!is_wildcard()) {
        bytes[10] = bytes[11] = 0xff;
        std::memcpy(bytes + 12, &any_.v4.sin_addr, 4);
    }
    return result;
}

std::string Address::to_string() const {
    if (empty()) return "(no address)";
    char text[INET6_ADDRSTRLEN + 1] = {};
    if (!is_ipv6()) {
        inet_ntop(AF_INET, &any_.v4.sin_addr, text, sizeof(text));
        return fmt::format("{}:{}", text, port());
    }
    if (is_mapped_ipv4()) {
        inet_ntop(AF_INET, any_.v6.sin6_addr.s6_addr + 12, text, sizeof(text));
        return fmt::format("{}:{}", text, port());
    }
    inet_ntop(AF_INET6, &any_.v6.sin6_addr, text, sizeof(text));
    if (any_.v6.sin6_scope_id != 0) return fmt::format("[{}%{}]:{}", text, any_.v6.sin6_scope_id, port());
    return fmt::format("[{}]:{}", text, port());
}

bool Address::operator==(const Address& other) const {
    if (length_ != other.length_ || any_.sa.sa_family != other.any_.sa.sa_family) return false;
    if (empty()) return true;
    if (is_ipv6())
        return any_.v6.sin6_port == other.any_.v6.sin6_port && any_.v6.sin6_scope_id == other.any_.v6.sin6_scope_id &&
               std::memcmp(&any_.v6.sin6_addr, &other.any_.v6.sin6_addr, sizeof(in6_addr)) == 0;
    return any_.v4.sin_port == other.any_.v4.sin_port && any_.v4.sin_addr.s_addr == other.any_.v4.sin_addr.s_addr;
}

std::uint64_t Address::fingerprint() const {
    if (empty()) return 0;
    if (!is_ipv6()) return std::uint64_t{any_.v4.sin_addr.s_addr} << 16 | any_.v4.sin_port;
    std::array<std::uint64_t, 2> halves;
    std::memcpy(halves.data(), &any_.v6.sin6_addr, sizeof(halves));
    constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
    return (((halves[0] * kOdd ^ halves[1]) * kOdd ^ any_.v6.sin6_scope_id) * kOdd ^ any_.v6.sin6_port) | 1;
}

namespace {

/// Splits `text` into host and port. The port is kDefaultPort when none is given.
Status split(std::string_view text, std::string& host, std::uint16_t& port) {
    std::string_view port_text;
    bool has_port = false;
    if (text.starts_with('[')) {
        const auto close = text.find(']');
        if (close == std::string_view::npos)
            return fail(ErrorCode::kInvalidArgument, "address `{}`: the `[` has no `]`; write [2001:db8::1]:18520",
                        text);
        host = text.substr(1, close - 1);
        const auto rest = text.substr(close + 1);
        if (!rest.empty() && rest[0] != ':')
            return fail(ErrorCode::kInvalidArgument, "address `{}`: only `:PORT` may follow the `]`", text);
        has_port = !rest.empty();
        if (has_port) port_text = rest.substr(1);
    } else if (const auto colon = text.find(':');
               colon != std::string_view::npos && text.find(':', colon + 1) == std::string_view::npos) {
        host = text.substr(0, colon);
        port_text = text.substr(colon + 1);
        has_port = true;
    } else {
        host = text;  // a name, an IPv4 address, or a bare IPv6 address (several colons)
    }
    port = kDefaultPort;
    if (!has_port) return {};
    const auto [end, error] = std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
    if (error != std::errc() || end != port_text.data() + port_text.size())
        return fail(ErrorCode::kInvalidArgument, "address `{}`: `{}` is not a port (0..65535)", text, port_text);
    return {};
}

}  // namespace

Result<Address> parse_address(std::string_view text, AddressUse use) {
    if (text.empty()) return fail(ErrorCode::kInvalidArgument, "the address is empty; write HOST:PORT");
    std::string host;
    std::uint16_t port = 0;
    if (auto ok = split(text, host, port); !ok) return propagate(ok);
    if (use == AddressUse::kConnect) {
        if (host.empty() || host == "*")
            return fail(ErrorCode::kInvalidArgument, "address `{}` names no host; write HOST:PORT", text);
        if (port == 0) return fail(ErrorCode::kInvalidArgument, "address `{}`: port 0 cannot be connected to", text);
    }
    if (host.empty() || host == "*") {
        sockaddr_in6 any{};
        any.sin6_family = AF_INET6;
        any.sin6_port = htons(port);
        return Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&any), sizeof(any));
    }
    if (host.find('\0') != std::string::npos)
        return fail(ErrorCode::kInvalidArgument, "the address has a NUL byte in it");

    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_DGRAM;
    hints.ai_flags = use == AddressUse::kListen ? AI_PASSIVE : 0;
    addrinfo* list = nullptr;
    const int code = getaddrinfo(host.c_str(), nullptr, &hints, &list);
    if (code != 0)
        return fail(ErrorCode::kIo, "cannot look up host `{}`: {}; {}", host,
                    code == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(code),
                    code == EAI_AGAIN
                        ? "the name server does not answer: try again later, or write the address in numbers"
                        : "check its spelling, or write the address in numbers");
    Address found;
    for (const addrinfo* entry = list; entry != nullptr && found.empty(); entry = entry->ai_next)
        found = Address::from_sockaddr(entry->ai_addr, entry->ai_addrlen);
    freeaddrinfo(list);
    if (found.empty()) return fail(ErrorCode::kIo, "host `{}` has neither an IPv4 nor an IPv6 address", host);
    return found.with_port(port);
}

}  // namespace farhaul::udp
