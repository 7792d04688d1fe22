// A UDP address: IPv4 or IPv6 and a port, as users write it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/result.hpp"

namespace farhaul::udp {

inline constexpr std::uint16_t kDefaultPort = 18520;

class Address {
 public:
    Address() = default;
    /// `length` bytes of a sockaddr_in or sockaddr_in6 as the kernel gives them; anything else makes an empty address.
    static Address from_sockaddr(const sockaddr* address, socklen_t length);

    bool empty() const { return length_ == 0; }
    bool is_ipv6() const { return any_.sa.sa_family == AF_INET6; }
    /// IPv4 address inside an IPv6 one (::ffff:a.b.c.d), as dual-stack sockets report their IPv4 peers.
    bool is_mapped_ipv4() const;
    bool is_wildcard() const;
    bool is_loopback() const;
    std::uint16_t port() const;
    Address with_port(std::uint16_t port) const;
    /// The same IPv4 address in the form in which a dual-stack IPv6 socket takes it; IPv6 addresses are returned
    /// unchanged.
    Address mapped_to_ipv6() const;
    /// `192.0.2.1:18520`, `[2001:db8::1]:18520`; mapped IPv4 addresses are written as IPv4.
    std::string to_string() const;

    /// 64 bits that differ for different addresses (IPv4: always; IPv6: but for chance), cheap to compare with.
    std::uint64_t fingerprint() const;

    const sockaddr* sockaddr_ptr() const { return &any_.sa; }
    socklen_t length() const { return length_; }
    bool operator==(const Address& other) const;

 private:
    // The largest comes first: `{}` zeroes the first member and promises nothing about what lies beyond it.
    union Any {
        sockaddr_in6 v6;
        sockaddr_in v4;
        sockaddr sa;
    };
    Any any_{};
    socklen_t length_ = 0;
};

/// A local address that a peer reached us at, in the form in which sendmsg() takes it as the source: replies must come
/// from where the request went to, or a host with several addresses is not understood.
struct LocalAddress {
    std::array<std::byte, 48> control{};  ///< one complete control message; empty when size is 0
    std::size_t size = 0;
};

/// What the text names.
enum class AddressUse {
    kConnect,  ///< a peer: the host must be given
    kListen,   ///< ours: `:18520` means every local address, IPv4 and IPv6
};

/// `HOST:PORT`, `HOST` (port 18520), `:PORT` (kListen only), `[::1]:PORT`, `[::1]`, `::1`. HOST is an address or a
/// name, which is looked up (this may block for as long as the resolver takes). Port 0 is allowed with kListen only and
/// means any free port. Errors: kInvalidArgument with what is wrong with the text; kIo when the name cannot be
/// resolved.
Result<Address> parse_address(std::string_view text, AddressUse use);

}  // namespace farhaul::udp
