#include "app/simulate.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>
#include <thread>

#include "base/random.hpp"
#include "reliable/connection.hpp"
#include "wire/sim/sim_executor.hpp"

namespace farhaul::app {

namespace {

constexpr std::uint64_t kMostBytes = 1ull << 50;
constexpr std::uint32_t kMostPayload = 1u << 20;

std::uint64_t packets_of(const SimulationConfig& config) {
    return (config.size_bytes + config.mtu_bytes - 1) / config.mtu_bytes;
}

wire::SimLinkConfig link_of(const SimulationConfig& config, const sdr::ImmediateLayout& layout) {
    link::LinkConfig one_way;
    one_way.rate = config.rate;
    one_way.loss = {.probability = config.loss, .mean_burst_packets = config.mean_burst_packets};
    // Acknowledgements are few: a burst must not swallow those of a whole second.
    one_way.burst_outlives_idle = Duration::from_milliseconds(1);
    if (!config.rate.unlimited())
        one_way.burst_outlives_idle = std::max(
            one_way.burst_outlives_idle,
            config.rate.time_for(config.mtu_bytes + config.overhead_bytes).scaled(16 * config.mean_burst_packets));
    one_way.loss_per_group = config.loss_unit == LossUnit::kChunk;
    one_way.jitter = config.jitter;
    one_way.reorder_probability = config.reorder_probability;
    one_way.reorder_delay = config.reorder_delay;
    one_way.overhead_bytes = config.overhead_bytes;

    wire::SimLinkConfig link;
    link.forward = link.backward = one_way;
    link.forward.delay = config.round_trip / 2;
    link.backward.delay = config.round_trip - config.round_trip / 2;
    link.limits.carries_payload = false;
    link.limits.max_payload_bytes = config.mtu_bytes;
    link.lossless_control = config.loss_unit == LossUnit::kChunk;  // a datagram is not a chunk
    link.layout = layout;
    link.packets_per_chunk = config.chunk_bytes / config.mtu_bytes;
    return link;
}

// In virtual time nothing is late but by the simulated card: its queue, its interrupt moderation, and the packet on the
// line.
Duration shortest_timeout(const SimulationConfig& config, const wire::SimLinkConfig& link) {
    Duration packet;
    if (!config.rate.unlimited()) packet = config.rate.time_for(config.mtu_bytes + config.overhead_bytes);
    return (link.coalesce + link.tx_backlog + packet) * 8 + config.jitter;
}

}  // namespace

Status validate(const SimulationConfig& config) {
    const auto bad = [](const std::string& message) { return fail(ErrorCode::kInvalidArgument, "{}", message); };
    if (config.size_bytes > kMostBytes) return bad("the size is above 1 PiB: choose a smaller one");
    if (!(config.loss >= 0 && config.loss < 1))
        return bad("the loss must be at least 0 and below 1: a link that loses everything delivers nothing");
    if (config.mtu_bytes < 1 || config.mtu_bytes > kMostPayload)
        return bad("the MTU must be 1 byte to 1 MiB of payload");
    if (config.chunk_bytes < config.mtu_bytes || config.chunk_bytes % config.mtu_bytes != 0 ||
        config.chunk_bytes / config.mtu_bytes > 64)
        return fail(ErrorCode::kInvalidArgument,
                    "a chunk of {} bytes is not 1 to 64 packets of {} bytes: choose a multiple of the MTU",
                    config.chunk_bytes, config.mtu_bytes);
    if (!(config.mean_burst_packets >= 1)) return bad("the mean burst length must be at least 1 packet");
    if (!(config.reorder_probability >= 0 && config.reorder_probability <= 1))
        return bad("the share of reordered packets must be between 0 and 1");
    if (config.round_trip < Duration() || config.jitter < Duration() || config.reorder_delay < Duration())
        return bad("times cannot be negative");
    if (config.reorder_probability > 0 && config.reorder_delay == Duration())
        return bad("reordered packets need a delay above 0");
    if (!(config.rto_rtts > 0 && config.rto_rtts <= 1000))
        return bad("the timeout must be above 0 and at most 1000 round trips");
    if (!(config.encode_bytes_per_second > 0) || config.encode_workers < 1 || config.encode_workers > 1024)
        return bad("encoding needs a rate above 0 and 1 to 1024 cores");
    if (config.messages < 1 || config.messages > 1'000'000) return bad("a run has 1 to 1,000,000 messages");
    if (config.runs < 1) return bad("at least one run is needed");
    if (std::uint64_t{config.runs} * config.messages > kMostSimulatedRuns)
        return bad(fmt::format("{} runs of {} messages are more than {} results: split them over several seeds",
                               config.runs, config.messages, kMostSimulatedRuns));
    return {};
}

double completion_bound_s(const SimulationConfig& config) {
    const double on_line =
        static_cast<double>(config.size_bytes) + static_cast<double>(packets_of(config)) * config.overhead_bytes;
    const double injection =
        config.rate.unlimited() ? 0 : on_line * 8 / static_cast<double>(config.rate.bits_per_second());
    return injection / (1 - config.loss) + config.round_trip.seconds();
}

double percentile(const std::vector<double>& sorted, double share) {
    // A share such as 0.99 of 100 must give rank 99, not 100, whatever its binary rounding.
    const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size()) - 1e-9));
    return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

std::uint64_t seed_of(std::uint64_t seed, std::uint64_t number) {
    Random random(seed ^ (number + 1) * 0xd1342543de82ef95ull);
    return random();
}

SimulatedPath path_of(const SimulationConfig& config, std::uint64_t message_bytes) {
    SimulatedPath path;
    sdr::QueuePairConfig& queue_pair = path.queue_pair;
    queue_pair.payload_bytes = config.mtu_bytes;
    queue_pair.packets_per_chunk = config.chunk_bytes / config.mtu_bytes;
    queue_pair.initial_rtt = std::max(config.round_trip, Duration::from_microseconds(10));
    queue_pair.control_timeout = std::max(Duration::from_milliseconds(10'000), config.round_trip * 200);
    const std::uint64_t most_per_message =
        static_cast<std::uint64_t>(queue_pair.layout.max_packets()) * config.mtu_bytes;
    queue_pair.max_message_bytes = std::clamp<std::uint64_t>(message_bytes, 1, most_per_message);

    path.link = link_of(config, queue_pair.layout);

    reliable::ConnectionConfig& reliability = path.reliability;
    reliability.scheme = config.scheme;
    reliability.rto_rtts = config.rto_rtts;
    reliability.initial_rtt = queue_pair.initial_rtt;
    reliability.fixed_rtt = !config.measure_round_trip;
    reliability.min_rto = reliability.granularity = shortest_timeout(config, path.link);
    reliability.peer_timeout = queue_pair.control_timeout;
    reliability.line_rate = config.rate;
    return path;
}

Result<std::vector<SimulatedRun>> simulate_run(const SimulationConfig& config, std::uint32_t number) {
    if (Status status = validate(config); !status) return propagate(status);

    SimulatedPath path = path_of(config, config.size_bytes);
    const Duration set_up = path.queue_pair.initial_rtt * 30;
    path.link.forward_schedule = config.schedule;
    for (link::LinkChange& change : path.link.forward_schedule) change.at = change.at + set_up;
    if (number == 0) path.link.observer = config.observer;

    wire::SimLoop loop;
    wire::SimExecutor workers(loop, config.encode_bytes_per_second, config.encode_workers);
    path.reliability.executor = &workers;
    wire::SimNetwork network(loop);
    auto ends = network.connect(path.link, seed_of(config.seed, number));
    if (!ends) return propagate(ends);
    auto sender = reliable::Connection::create(loop, *ends->first, path.queue_pair, path.reliability);
    if (!sender) return propagate(sender);
    auto receiver = reliable::Connection::create(loop, *ends->second, path.queue_pair, path.reliability);
    if (!receiver) return propagate(receiver);

    std::optional<Error> failure;
    const auto note = [&failure](const Error& error) {
        if (!failure) failure = error;
    };
    (*receiver)->on_failure(note);
    for (std::uint32_t i = 0; i < config.messages; ++i) {
        auto posted = (*receiver)->receive(nullptr, config.size_bytes, [&](Result<reliable::ReceiveResult> result) {
            if (!result) note(result.error());
        });
        if (!posted) return propagate(posted);
    }
    // Set-up is not part of the measurement: let every clear-to-send arrive, repeated ones too.
    Status ready = loop.run_while([&] { return !failure && !(*sender)->queue_pair().can_start_send(); });
    if (!ready) return propagate(ready);
    if (ready = loop.run_for(path.queue_pair.initial_rtt * 10); !ready) return propagate(ready);
    if (!config.schedule.empty() && loop.now() < TimePoint() + set_up)
        if (ready = loop.run_for(TimePoint() + set_up - loop.now()); !ready) return propagate(ready);
    if (failure) return std::unexpected(*failure);

    std::vector<SimulatedRun> runs;
    for (std::uint32_t i = 0; i < config.messages; ++i) {
        ends->first->reset_clock();
        const std::uint64_t packets_before = ends->first->counters().packets_sent;
        const reliable::ConnectionCounters before = (*sender)->counters();
        TimePoint begin = loop.now();
        bool done = false;
        TimePoint end;
        Status started = (*sender)->write(nullptr, config.size_bytes, [&](Status status) {
            done = true;
            end = loop.now();
            if (!status) note(status.error());
        });
        if (!started) return propagate(started);
        if (Status status = loop.run_while([&] { return !done && !failure; }); !status) return propagate(status);
        if (failure) return std::unexpected(*failure);
        const auto& wire = ends->first->counters();
        if (wire.first_packet_sent != TimePoint::never()) begin = wire.first_packet_sent;
        const reliable::ConnectionCounters counters = (*sender)->counters();
        runs.push_back({.completion = end - begin,
                        .packets_sent = wire.packets_sent - packets_before,
                        .packets_resent = counters.packets_resent - before.packets_resent,
                        .packets_parity = counters.packets_parity - before.packets_parity,
                        .packets_spurious = counters.packets_spurious - before.packets_spurious,
                        .timeouts = counters.timeouts - before.timeouts,
                        .acks = counters.acks_received - before.acks_received});
    }
    return runs;
}

Result<SimulationReport> simulate(const SimulationConfig& config) {
    if (Status status = validate(config); !status) return propagate(status);
    auto report = collect(config, [&](std::uint32_t number) { return simulate_run(config, number); });
    if (report) report->bound_s = completion_bound_s(config);
    return report;
}

Result<SimulationReport> collect(const SimulationConfig& config, const RunFunction& run_number) {
    SimulationReport report;
    report.runs.resize(std::size_t{config.runs} * config.messages);

    std::atomic<std::uint32_t> next{0};
    std::mutex mutex;
    std::uint32_t failed_run = config.runs;
    std::optional<Error> failure;
    const auto work = [&] {
        for (;;) {
            const std::uint32_t number = next.fetch_add(1);
            if (number >= config.runs) return;
            auto run = run_number(number);
            if (run) {
                std::ranges::copy(*run, report.runs.begin() + std::ptrdiff_t{number} * config.messages);
                continue;
            }
            // Every run below the first that fails is still done, so that the error reported does not depend on the
            // threads either.
            const std::lock_guard lock(mutex);
            if (number < failed_run) {
                failed_run = number;
                failure = run.error();
            }
            next = config.runs;
            return;
        }
    };
    const std::uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
    const std::uint32_t threads = std::min(config.threads == 0 ? cores : config.threads, config.runs);
    std::vector<std::jthread> helpers;
    for (std::uint32_t i = 1; i < threads; ++i) helpers.emplace_back(work);
    work();
    helpers.clear();
    if (failure) return fail(failure->code, "run {} of seed {}: {}", failed_run, config.seed, failure->message);

    std::vector<double> times;
    times.reserve(report.runs.size());
    const double count = static_cast<double>(report.runs.size());
    for (const SimulatedRun& run : report.runs) {
        times.push_back(run.completion.seconds());
        report.mean_s += run.completion.seconds() / count;
        report.packets_sent += static_cast<double>(run.packets_sent) / count;
        report.packets_resent += static_cast<double>(run.packets_resent) / count;
        report.packets_parity += static_cast<double>(run.packets_parity) / count;
        report.packets_spurious += static_cast<double>(run.packets_spurious) / count;
    }
    double squares = 0;
    for (const double time : times) squares += (time - report.mean_s) * (time - report.mean_s);
    if (times.size() > 1) report.standard_error_s = std::sqrt(squares / (count - 1) / count);
    std::sort(times.begin(), times.end());
    report.min_s = times.front();
    report.max_s = times.back();
    report.p50_s = percentile(times, 0.5);
    report.p99_s = percentile(times, 0.99);
    report.p999_s = percentile(times, 0.999);
    return report;
}

}  // namespace farhaul::app
