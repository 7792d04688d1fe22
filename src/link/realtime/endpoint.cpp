#include "link/realtime/endpoint.hpp"

#include <charconv>
#include <cstdint>
#include <cstring>

#include <arpa/inet.h>
#include <netdb.h>

namespace farhaul::link {
namespace {

const sockaddr_in& v4(const Endpoint& e) { return reinterpret_cast<const sockaddr_in&>(e.address); }
const sockaddr_in6& v6(const Endpoint& e) { return reinterpret_cast<const sockaddr_in6&>(e.address); }

}  // namespace

std::string Endpoint::to_string() const {
    char text[INET6_ADDRSTRLEN] = "?";
    if (is_ipv6()) {
        ::inet_ntop(AF_INET6, &v6(*this).sin6_addr, text, sizeof text);
        return fmt::format("[{}]:{}", text, ntohs(v6(*this).sin6_port));
    }
    ::inet_ntop(AF_INET, &v4(*this).sin_addr, text, sizeof text);
    return fmt::format("{}:{}", text, ntohs(v4(*this).sin_port));
}

bool Endpoint::operator==(const Endpoint& other) const {
    if (address.ss_family != other.address.ss_family) return false;
    if (!is_ipv6())
        return v4(*this).sin_port == v4(other).sin_port && v4(*this).sin_addr.s_addr == v4(other).sin_addr.s_addr;
    return v6(*this).sin6_port == v6(other).sin6_port && v6(*this).sin6_scope_id == v6(other).sin6_scope_id &&
           std::memcmp(&v6(*this).sin6_addr, &v6(other).sin6_addr, sizeof(in6_addr)) == 0;
}

std::size_t Endpoint::hash() const {
    std::uint64_t value = 0;
    if (is_ipv6()) {
        std::uint64_t words[2];
        std::memcpy(words, &v6(*this).sin6_addr, sizeof words);
        value = (words[0] * 0x9e3779b97f4a7c15ull) ^ words[1] ^ v6(*this).sin6_port;
    } else {
        value = (std::uint64_t{v4(*this).sin_addr.s_addr} << 16) | v4(*this).sin_port;
    }
    value *= 0xbf58476d1ce4e5b9ull;
    return static_cast<std::size_t>(value ^ (value >> 29));
}

Result<Endpoint> parse_endpoint(std::string_view text, bool to_listen) {
    const char* example = to_listen ? ":18520 or 127.0.0.1:18520" : "192.0.2.1:18520 or [2001:db8::1]:18520";
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos)
        return fail(ErrorCode::kInvalidArgument, "'{}' has no port: write it like {}", text, example);
    std::string host(text.substr(0, colon));
    const std::string port(text.substr(colon + 1));
    unsigned number = 0;
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (port.empty() || error != std::errc{} || end != port.data() + port.size() || number > 65535 ||
        (number == 0 && !to_listen))
        return fail(ErrorCode::kInvalidArgument, "'{}' is not a port, in '{}': write it like {}", port, text, example);
    if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
        host = host.substr(1, host.size() - 2);
    } else if (host.find(':') != std::string::npos) {
        return fail(ErrorCode::kInvalidArgument, "'{}' is ambiguous: put an IPv6 address in brackets, like [::1]:{}",
                    text, port);
    }
    if (host.empty() && !to_listen)
        return fail(ErrorCode::kInvalidArgument, "'{}' has no host: write it like {}", text, example);
    Endpoint endpoint;
    if (host.empty()) {
        auto& any = reinterpret_cast<sockaddr_in&>(endpoint.address);
        any.sin_family = AF_INET;
        any.sin_port = htons(static_cast<std::uint16_t>(number));
        endpoint.length = sizeof any;
        return endpoint;
    }
    addrinfo hints{};
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* found = nullptr;
    if (const int rc = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); rc != 0)
        return fail(ErrorCode::kInvalidArgument, "cannot resolve '{}': {}", host, ::gai_strerror(rc));
    for (const addrinfo* a = found; a != nullptr; a = a->ai_next)
        if ((a->ai_family == AF_INET || a->ai_family == AF_INET6) && endpoint.length == 0) {
            std::memcpy(&endpoint.address, a->ai_addr, a->ai_addrlen);
            endpoint.length = a->ai_addrlen;
        }
    ::freeaddrinfo(found);
    if (endpoint.length == 0)
        return fail(ErrorCode::kInvalidArgument, "'{}' has neither an IPv4 nor an IPv6 address", host);
    return endpoint;
}

}  // namespace farhaul::link
