// Device names: which local address a context sends and receives on.
#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"
#include "wire/udp/address.hpp"

namespace farhaul::capi {

/// `udp` (the address by which this host reaches the network, else its first address, else loopback), `udp:ADDRESS` or
/// `udp:ADDRESS:PORT` (IPv6 with a port in brackets), an interface's name, or an address. Never asks a name server. The
/// port is 0, any, where none is given. Errors: kInvalidArgument, with the devices that there are.
Result<udp::Address> resolve_device(std::string_view name);

/// `lo (127.0.0.1), eth0 (192.0.2.7)`: for messages.
std::string describe_devices();

}  // namespace farhaul::capi
