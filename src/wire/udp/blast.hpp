// A bare UDP blast over loopback: the yardstick of `sdr bench`. One thread sends, one receives; segmentation offload
// both ways, the same packet size and batches as the wire, and one copy of each payload into place, as we must make. No
// checks, no protocol.
//
// run_wire_blast() does the same through two endpoints of this wire, so that a ratio of the two says what the wire
// itself costs.
#pragma once

#include <cstdint>

#include "base/result.hpp"
#include "base/time.hpp"

namespace farhaul::udp {

struct BlastOptions {
    std::uint32_t payload_bytes = 4096;  ///< 64 .. 65483
    std::uint32_t header_bytes = 24;     ///< sent before each payload, not copied into place (run_blast() only)
    Duration duration = Duration::from_milliseconds(500);
    std::uint64_t buffer_bytes = 16u << 20;  ///< the payload comes from, and goes to, buffers of this size
    bool segmentation_offload = true;
    bool checksum = true;  ///< run_wire_blast() only
};

struct BlastResult {
    double bytes_per_second = 0;  ///< payload that was received and copied into place
    double packets_per_second = 0;
    double sent_bytes_per_second = 0;  ///< payload that was sent: the rest was dropped because the receiver was slower
    /// Payload per second of CPU time of each thread (polling included): steadier than the above on a machine that
    /// others use too.
    double sent_bytes_per_cpu_second = 0, received_bytes_per_cpu_second = 0;
};

/// Both take about options.duration and two cores. Errors: kInvalidArgument; kIo.
Result<BlastResult> run_blast(const BlastOptions& options);
Result<BlastResult> run_wire_blast(const BlastOptions& options);

}  // namespace farhaul::udp
