#include "app/simulate_ring.hpp"

#include <algorithm>

#include "wire/sim/sim_executor.hpp"

namespace farhaul::app {
namespace {

constexpr std::uint32_t kMostSimulatedRanks = 1024;

SimulationConfig config_of_hop(const RingSimulationConfig& config, std::uint32_t rank) {
    SimulationConfig hop = config.base;
    if (const auto found = config.hops.find(rank); found != config.hops.end()) {
        hop.round_trip = found->second.round_trip.value_or(hop.round_trip);
        hop.rate = found->second.rate.value_or(hop.rate);
        hop.loss = found->second.loss.value_or(hop.loss);
        hop.scheme = found->second.scheme.value_or(hop.scheme);
    }
    return hop;
}

std::uint32_t steps_of(const RingSimulationConfig& config) {
    return config.kind == collective::Kind::kAllreduce ? 2 * (config.ranks - 1) : config.ranks - 1;
}

/// What is sent in a step depends on what came in the one before: a chain of steps over neighbouring links. The slowest
/// such chain. Only a broadcast sends the whole buffer each time.
double least_time(const RingSimulationConfig& config, double round_trips) {
    std::vector<double> step(config.ranks);
    for (std::uint32_t rank = 0; rank < config.ranks; ++rank) {
        const SimulationConfig hop = config_of_hop(config, rank);
        const double packets = static_cast<double>((hop.size_bytes + hop.mtu_bytes - 1) / hop.mtu_bytes);
        const double bytes = static_cast<double>(hop.size_bytes) + packets * hop.overhead_bytes;
        const double injection = hop.rate.unlimited() ? 0 : bytes * 8 / static_cast<double>(hop.rate.bits_per_second());
        const double part = config.kind == collective::Kind::kBroadcast ? 1 : config.ranks;
        step[rank] = injection / part + round_trips * hop.round_trip.seconds();
    }
    double slowest = 0;
    for (std::uint32_t first = 0; first < (config.kind == collective::Kind::kBroadcast ? 1 : config.ranks); ++first) {
        double chain = 0;
        for (std::uint32_t i = 0; i < steps_of(config); ++i) chain += step[(first + i) % config.ranks];
        slowest = std::max(slowest, chain);
    }
    return slowest;
}

}  // namespace

Status validate(const RingSimulationConfig& config) {
    if (config.ranks < 1 || config.ranks > kMostSimulatedRanks)
        return fail(ErrorCode::kInvalidArgument, "a ring of {} ranks: it has 1 to {}", config.ranks,
                    kMostSimulatedRanks);
    if (config.base.messages != 1 || !config.base.schedule.empty())
        return fail(ErrorCode::kInvalidArgument,
                    "several messages and changes of the link are not simulated with a ring");
    if (config.segment_bytes < 4096 || config.segment_bytes % 8 != 0 || config.segment_bytes > (std::uint64_t{1} << 30))
        return fail(ErrorCode::kInvalidArgument, "segments have 4 KiB to 1 GiB, a multiple of 8 bytes, not {}",
                    config.segment_bytes);
    if (config.base.size_bytes / config.segment_bytes > 1'000'000)
        return fail(ErrorCode::kInvalidArgument, "more than a million segments: choose longer ones");
    for (const auto& [rank, hop] : config.hops)
        if (rank >= config.ranks)
            return fail(ErrorCode::kInvalidArgument, "there is no rank {} in a ring of {}", rank, config.ranks);
    for (std::uint32_t rank = 0; rank < config.ranks; ++rank)
        if (Status status = validate(config_of_hop(config, rank)); !status) return propagate(status);
    return {};
}

Result<std::vector<SimulatedRun>> simulate_ring_run(const RingSimulationConfig& config, std::uint32_t number) {
    if (Status status = validate(config); !status) return propagate(status);
    wire::SimLoop loop;
    wire::SimNetwork network(loop);
    // Each rank is a host with encoders of its own.
    std::vector<std::unique_ptr<wire::SimExecutor>> workers;
    std::vector<std::unique_ptr<reliable::Connection>> lefts(config.ranks), rights(config.ranks);
    std::vector<wire::SimWire*> wires;
    Duration longest;
    for (std::uint32_t rank = 0; rank < config.ranks && config.ranks > 1; ++rank) {
        const SimulationConfig hop = config_of_hop(config, rank);
        SimulatedPath path = path_of(hop, config.segment_bytes);
        longest = std::max(longest, path.queue_pair.initial_rtt);
        auto ends = network.connect(path.link, seed_of(seed_of(config.base.seed, number), rank));
        if (!ends) return propagate(ends);
        wires.push_back(ends->first);
        workers.push_back(std::make_unique<wire::SimExecutor>(loop, hop.encode_bytes_per_second, hop.encode_workers));
        path.reliability.executor = workers.back().get();
        auto right = reliable::Connection::create(loop, *ends->first, path.queue_pair, path.reliability);
        if (!right) return propagate(right);
        rights[rank] = std::move(*right);
        path.reliability.executor = nullptr;  // only bad news goes that way
        auto left = reliable::Connection::create(loop, *ends->second, path.queue_pair, path.reliability);
        if (!left) return propagate(left);
        lefts[(rank + 1) % config.ranks] = std::move(*left);
    }
    std::vector<std::unique_ptr<collective::Ring>> rings;
    for (std::uint32_t rank = 0; rank < config.ranks; ++rank) {
        collective::RingConfig ring{.rank = rank,
                                    .ranks = config.ranks,
                                    .segment_bytes = config.segment_bytes,
                                    .scratch_bytes = std::max<std::uint64_t>(config.base.size_bytes, 1) * 2,
                                    .reduce_bytes_per_second = config.reduce_bytes_per_second};
        auto made = collective::Ring::create(loop, std::move(lefts[rank]), std::move(rights[rank]), ring);
        if (!made) return propagate(made);
        rings.push_back(std::move(*made));
    }
    // Elements of one byte do not exist; what is simulated is the bytes.
    const collective::Collective operation{.kind = config.kind, .count = (config.base.size_bytes + 3) / 4};
    for (auto& ring : rings)
        if (Status status = ring->prepare(operation); !status) return propagate(status);
    if (Status status = loop.run_for(longest * 10); !status) return propagate(status);

    const TimePoint begin = loop.now();
    std::uint32_t done = 0;
    std::optional<Error> failure;
    for (auto& ring : rings)
        ring->start([&](Status status) {
            ++done;
            if (!status && !failure) failure = status.error();
        });
    if (Status status = loop.run_while([&] { return done < config.ranks && !failure; }); !status)
        return propagate(status);
    if (failure) return std::unexpected(*failure);
    SimulatedRun run{.completion = loop.now() - begin};
    for (std::size_t i = 0; i < wires.size(); ++i) {
        const reliable::ConnectionCounters counters = rings[i]->right()->counters();
        run.packets_sent += wires[i]->counters().packets_sent;
        run.packets_resent += counters.packets_resent;
        run.packets_parity += counters.packets_parity;
        run.packets_spurious += counters.packets_spurious;
        run.timeouts += counters.timeouts;
        run.acks += counters.acks_received;
    }
    return std::vector{run};
}

Result<RingReport> simulate_ring(const RingSimulationConfig& config) {
    if (Status status = validate(config); !status) return propagate(status);
    auto collected = collect(config.base, [&](std::uint32_t number) { return simulate_ring_run(config, number); });
    if (!collected) return propagate(collected);
    RingReport report{std::move(*collected)};
    report.floor_s = report.bound_s = least_time(config, 0.5);
    report.published_bound_s = least_time(config, 1);
    return report;
}

}  // namespace farhaul::app
