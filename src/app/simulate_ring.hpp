// Ring collectives in virtual time: the real code of collective/ over the real reliability over simulated links, a link
// between each two neighbours.
//
// The clock starts when all ranks begin, with receives posted and their clear-to-sends there, and stops when the last
// rank has its result.
#pragma once

#include <map>

#include "app/simulate.hpp"
#include "collective/ring.hpp"

namespace farhaul::app {

/// What differs on the link from a rank to the next.
struct RingHop {
    std::optional<Duration> round_trip;
    std::optional<BitRate> rate;
    std::optional<double> loss;
    std::optional<reliable::Scheme> scheme;
};

struct RingSimulationConfig {
    /// Links, scheme, seed, runs. size_bytes is that of the buffer that each rank has; messages must be 1, schedule
    /// empty.
    SimulationConfig base;
    collective::Kind kind = collective::Kind::kAllreduce;
    std::uint32_t ranks = 4;                ///< 1 .. 1024
    std::uint64_t segment_bytes = 4 << 20;  ///< of a Write
    double reduce_bytes_per_second = 0;     ///< 0: combining takes no time
    std::map<std::uint32_t, RingHop> hops;  ///< by the rank that sends
};

struct RingReport : SimulationReport {
    double floor_s = 0;  ///< steps * (chunk injection + half a round trip), of the slowest chain of links: bound_s too
    double published_bound_s = 0;  ///< steps * (chunk injection + a whole round trip)
};

Status validate(const RingSimulationConfig& config);
Result<std::vector<SimulatedRun>> simulate_ring_run(const RingSimulationConfig& config, std::uint32_t number);
Result<RingReport> simulate_ring(const RingSimulationConfig& config);

}  // namespace farhaul::app
