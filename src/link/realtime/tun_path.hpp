// The link as an IP path between two network namespaces: what one TUN device is given comes out of the other, through
// the model.
//
// The kernels on both sides hand over super-packets (super_packet.hpp). The model decides on each segment, by its size
// with IP and transport headers; what survives leaves in runs (runs.hpp). UDP packets that came one by one and are due
// together are written as one super-packet, which halves their cost. A corrupted segment leaves with the checksum of
// what it was, so that the receiving kernel notices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <sys/uio.h>

#include "link/realtime/clock.hpp"
#include "link/realtime/delay_line.hpp"
#include "link/realtime/forwarder.hpp"
#include "link/realtime/runs.hpp"
#include "link/realtime/super_packet.hpp"
#include "link/realtime/tun_device.hpp"

namespace farhaul::link {

class TunPath final : public Forwarder {
 public:
    /// Direction kForward is from `a` to `b`.
    static Result<std::unique_ptr<TunPath>> create(const TunConfig& a, const TunConfig& b, LinkPair models);
    const TunDevice& device(std::size_t side) const { return devices_[side]; }
    Status step(Duration longest_wait) override;
    ForwarderReport report() override;

 private:
    static constexpr std::size_t kMaxMerged = 64;

    /// A run of segments as it will be written.
    struct Packet {
        std::vector<std::byte> built;
        std::uint32_t segments = 1;
        TimePoint first_due, last_due;
    };
    struct Lane {
        DelayLine<Packet> line;
        DirectionReport report;
        std::uint64_t pending_segments = 0;
    };

    TunPath(TunDevice a, TunDevice b, LinkPair models);
    Status read_from(std::size_t side);
    void enter(Direction direction, std::span<const std::byte> received);
    void deliver(Direction direction);
    std::size_t gather(Lane& lane, std::size_t& parts);
    std::vector<std::byte> take_buffer();
    void note(bool& said, std::string text);

    RealClock clock_;
    Stalls stalls_;
    std::array<LinkModel, 2> models_;
    std::array<Lane, 2> lanes_;
    std::array<TunDevice, 2> devices_;
    TimePoint now_;
    bool received_last_step_ = false;
    bool merge_udp_ = false;
    bool said_write_error_ = false;
    std::vector<std::string> notes_;
    std::unique_ptr<std::byte[]> buffer_;
    std::array<iovec, kMaxMerged> io_{};
    std::vector<std::vector<std::byte>> spare_;  // buffers to be used again
};

}  // namespace farhaul::link
