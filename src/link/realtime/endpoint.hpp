// UDP addresses as users write them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/result.hpp"

namespace farhaul::link {

/// An IPv4 or IPv6 address with a port.
struct Endpoint {
    sockaddr_storage address{};
    socklen_t length = 0;

    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
    bool is_ipv6() const { return address.ss_family == AF_INET6; }
    std::string to_string() const;
    /// Compares family, address, port and, for IPv6, the scope.
    bool operator==(const Endpoint& other) const;
    std::size_t hash() const;
};

/// `HOST:PORT`, `[V6]:PORT`, or `:PORT` when `to_listen` (every local address). Names are resolved.
Result<Endpoint> parse_endpoint(std::string_view text, bool to_listen);

}  // namespace farhaul::link
