// A TUN device in a network namespace, with the kernel's segmentation offloads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <sys/uio.h>

#include "base/result.hpp"
#include "io/unique_fd.hpp"

namespace farhaul::link {

struct TunConfig {
    std::string
        network_namespace;  ///< a name that `ip netns` knows, a path, or empty for the namespace of this process
    std::string name = "farhaul%d";        ///< of the device; an existing TUN device of that name is used as it is
    std::vector<std::string> addresses{};  ///< with prefix length, `10.1.0.1/24` or `fd00::1/64`
    std::vector<std::string> routes{};     ///< destinations that lead into the device, `10.2.0.0/16`
    std::uint32_t mtu = 1500;
};

class TunDevice {
 public:
    /// Creates the device (it vanishes with this object) or opens an existing one, and sets MTU, addresses, queue
    /// length, routes and up.
    static Result<TunDevice> open(const TunConfig& config);

    int fd() const { return fd_.get(); }
    const std::string& name() const { return name_; }
    /// What the kernel segments for us: "TCP and UDP", "TCP", or "nothing".
    const std::string& offloads() const { return offloads_; }
    /// Reads one packet with its virtio-net header into `buffer`: its size, 0 when there is none, or an errno value,
    /// negative.
    std::ptrdiff_t read(std::span<std::byte> buffer) const;
    /// Writes one packet: 0, or an errno value.
    int write(std::span<const iovec> parts) const;
    /// Packets (or super-packets) that the kernel dropped because this end did not read them in time, since the device
    /// was opened.
    std::uint64_t dropped_before_read() const { return counter(kTxDropped) - tx_dropped_at_open_; }
    /// Packets that the kernel dropped after they were written.
    std::uint64_t dropped_after_write() const { return counter(kRxDropped) - rx_dropped_at_open_; }

 private:
    enum Counter { kRxDropped = 3, kTxDropped = 11 };
    std::uint64_t counter(Counter which) const;
    io::UniqueFd fd_, statistics_;
    std::string name_, offloads_;
    std::uint64_t tx_dropped_at_open_ = 0, rx_dropped_at_open_ = 0;
};

}  // namespace farhaul::link
