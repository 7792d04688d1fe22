// How long one reliable Write takes over a long link: the real protocol code in virtual time, many independent runs.
//
// A run makes a link, two connections and one receive; lets the clear-to-sends arrive; then starts the clock at the
// first data packet's first bit on the line and stops it when the sender knows that everything is delivered. Payload is
// not carried, so memory does not depend on the size beyond a few bytes per packet in flight. Runs differ in their seed
// only and may be spread over threads: the result does not depend on how many.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.hpp"
#include "base/units.hpp"
#include "link/model.hpp"
#include "reliable/connection.hpp"
#include "reliable/scheme.hpp"
#include "wire/sim/sim_network.hpp"

namespace farhaul::app {

enum class LossUnit { kPacket, kChunk };

struct SimulationConfig {
    std::uint64_t size_bytes = 128ull << 20;     ///< of the Write; up to 1 PiB
    BitRate rate = BitRate::from_gigabits(400);  ///< of the line; 0 = infinite
    Duration round_trip = Duration::from_milliseconds(25);
    double loss = 0;  ///< average share of lost packets or chunks, below 1
    LossUnit loss_unit =
        LossUnit::kPacket;  ///< with kChunk all packets of a chunk share their fate and control datagrams are not lost
    double mean_burst_packets = 1;  ///< above 1: Gilbert-Elliott, the same average loss
    Duration jitter;                ///< uniform in [0, jitter], without reordering
    double reorder_probability = 0;
    Duration reorder_delay;
    reliable::Scheme scheme = reliable::Scheme::kSelectiveRepeat;
    double rto_rtts = 3;                     ///< timeout in round trips
    bool measure_round_trip = false;         ///< false: the sender knows round_trip, as models assume
    std::uint32_t mtu_bytes = 4096;          ///< payload per packet
    std::uint32_t chunk_bytes = 64 * 1024;   ///< 1 to 64 packets
    std::uint32_t overhead_bytes = 0;        ///< added to every packet on the line
    double encode_bytes_per_second = 16e9;   ///< of data that one core turns into up to eight rows of parity; `auto`
    std::uint32_t encode_workers = 8;        ///< cores that encode beside the injection, at least 1
    std::uint32_t messages = 1;              ///< Writes of size_bytes on one connection, one after the other
    std::vector<link::LinkChange> schedule;  ///< of the way to the receiver; times count from the first Write
    std::uint32_t runs = 1;
    std::uint64_t seed = 1;
    std::uint32_t threads = 0;  ///< 0: all cores
    /// Called for each event of the first run only.
    std::function<void(const wire::SimEvent&)> observer;
};

/// Most results, runs times messages, that a simulation keeps: about 700 MB.
inline constexpr std::uint64_t kMostSimulatedRuns = 10'000'000;

struct SimulatedRun {
    Duration completion;
    std::uint64_t packets_sent = 0;  ///< data packets on the line, repeats and parity included
    std::uint64_t packets_resent = 0;
    std::uint64_t packets_parity = 0;
    std::uint64_t packets_spurious = 0;  ///< resent although the first copy had arrived
    std::uint64_t timeouts = 0;
    std::uint64_t acks = 0;
};

struct SimulationReport {
    std::vector<SimulatedRun> runs;  ///< one per message, in order of runs and messages
    double mean_s = 0, p50_s = 0, p99_s = 0, p999_s = 0, min_s = 0, max_s = 0;
    double standard_error_s = 0;  ///< of the mean
    double bound_s = 0;           ///< M * T_inj / (1 - p) + RTT
    double packets_sent = 0, packets_resent = 0, packets_parity = 0, packets_spurious = 0;  ///< means per run
};

/// Errors: kInvalidArgument naming the field that cannot be used.
Status validate(const SimulationConfig& config);
/// One run: config.messages results. `number` selects its random numbers together with config.seed.
Result<std::vector<SimulatedRun>> simulate_run(const SimulationConfig& config, std::uint32_t number);
/// All runs and their statistics. Errors: of validate(), or of the first run that failed.
Result<SimulationReport> simulate(const SimulationConfig& config);

// --- for other simulations of the same links ---
using RunFunction = std::function<Result<std::vector<SimulatedRun>>(std::uint32_t number)>;
/// Calls `run` for the numbers 0 .. config.runs - 1, on config.threads threads, and makes the statistics; bound_s is
/// the caller's. Each gives config.messages results. Errors: of the first run that failed.
Result<SimulationReport> collect(const SimulationConfig& config, const RunFunction& run);
/// Random numbers of run `number` are drawn from this.
std::uint64_t seed_of(std::uint64_t seed, std::uint64_t number);
/// What connections of such a simulation are made with; the executor is the caller's. `message_bytes`: the longest
/// Write.
struct SimulatedPath {
    sdr::QueuePairConfig queue_pair;
    wire::SimLinkConfig link;
    reliable::ConnectionConfig reliability;
};
SimulatedPath path_of(const SimulationConfig& config, std::uint64_t message_bytes);

/// The least time that the link allows: all packets with their overhead, sent 1 / (1 - p) times, and one round trip.
double completion_bound_s(const SimulationConfig& config);
/// Nearest rank: the smallest element with at least `share` of all at or below it. `sorted` must not be empty.
double percentile(const std::vector<double>& sorted, double share);

}  // namespace farhaul::app
