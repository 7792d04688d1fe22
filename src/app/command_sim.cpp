// `sdr sim`: options in, table or JSON out. The work is in simulate.cpp.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/commands.hpp"
#include "app/simulate_ring.hpp"
#include "app/unit_options.hpp"
#include "link/options.hpp"
#include "sdr/immediate.hpp"

namespace farhaul::app {

namespace {

constexpr const char* kExamples = R"(Examples:
  sdr sim --size 128MiB --rate 400G --rtt 25ms --loss 1e-4 --scheme sr --runs 1000
  sdr sim --size 4MiB --loss 1e-3 --burst 8 --scheme sr-nack --runs 200 --json
  sdr sim --size 1MiB --rate 1G --loss 1e-2 --trace trace.csv
  sdr sim --allreduce 4 --size 128MiB --loss 1e-3 --scheme auto --runs 1000
  sdr sim --allreduce 4 --size 128MiB --rtt 2ms --scheme sr-nack --hop 3:rtt=60ms,loss=1e-3,scheme=auto

The bound is M * T_inj / (1 - p) + RTT: all packets once over the line, plus what must be sent again, plus one round trip.)";

struct Arguments {
    SimulationConfig simulation;
    RingSimulationConfig ring;  // used if allreduce says so
    bool allreduce = false;
    std::string trace_file;
    bool chunk_given = false;
    bool json = false;
};

/// An option whose value one of the parsers of base/units.hpp reads.
template <typename T>
CLI::Option* add_parsed(CLI::App& command, const std::string& name, T& target, Result<T> (*parse)(std::string_view),
                        const std::string& help, const std::string& shown_default, const std::string& type) {
    auto* option = command.add_option_function<std::string>(
        name,
        [&target, parse, name](const std::string& text) {
            auto value = parse(text);
            if (!value) throw CLI::ValidationError(name, value.error().message);
            target = *value;
        },
        help);
    option->type_name(type);
    if (!shown_default.empty()) option->default_str(shown_default);
    return option;
}

Result<std::uint32_t> parse_small_size(std::string_view text) {
    auto size = parse_size(text);
    if (!size) return propagate(size);
    if (*size > 0xffff'ffffu) return fail(ErrorCode::kInvalidArgument, "{} is more than 4 GiB", text);
    return static_cast<std::uint32_t>(*size);
}

/// `0.01:2ms`
void read_reorder(const std::string& text, SimulationConfig& config) {
    const auto colon = text.find(':');
    const auto wrong = [&](const std::string& why) {
        throw CLI::ValidationError("--reorder", why + "; expected SHARE:DELAY such as 0.01:2ms");
    };
    if (colon == std::string::npos) wrong("'" + text + "' has no ':'");
    auto share = parse_probability(text.substr(0, colon));
    if (!share) wrong(share.error().message);
    auto delay = parse_duration(text.substr(colon + 1));
    if (!delay) wrong(delay.error().message);
    config.reorder_probability = *share;
    config.reorder_delay = *delay;
}

/// `3:rtt=60ms,rate=100G,loss=1e-3,scheme=auto`. The scheme comes last: its name may have a comma.
Status read_hop(const std::string& text, std::map<std::uint32_t, RingHop>& hops) {
    const auto colon = text.find(':');
    std::uint32_t rank = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + std::min(colon, text.size()), rank);
    if (colon == std::string::npos || error != std::errc{} || end != text.data() + colon)
        return fail(ErrorCode::kInvalidArgument, "'{}' is not RANK:KEY=VALUE,.. such as 3:rtt=60ms,scheme=auto", text);
    RingHop& hop = hops[rank];
    for (std::size_t at = colon + 1; at < text.size();) {
        const bool last = text.compare(at, 7, "scheme=") == 0;
        const std::size_t comma = last ? text.size() : std::min(text.find(',', at), text.size());
        const std::string part = text.substr(at, comma - at);
        const auto equals = std::min(part.find('='), part.size());
        const std::string key = part.substr(0, equals);
        const std::string value = equals < part.size() ? part.substr(equals + 1) : "";
        at = comma + 1;
        const auto set = [](auto& field, auto parsed) -> Status {
            if (!parsed) return propagate(parsed);
            field = *parsed;
            return {};
        };
        Status status =
            fail(ErrorCode::kInvalidArgument, "there is no '{}' of a hop: it has rtt, rate, loss and scheme", key);
        if (key == "rtt") status = set(hop.round_trip, parse_duration(value));
        if (key == "rate") status = set(hop.rate, parse_rate(value));
        if (key == "loss") status = set(hop.loss, parse_probability(value));
        if (key == "scheme") status = set(hop.scheme, reliable::parse_scheme(value));
        if (!status) return status;
    }
    return {};
}

/// Writes events as lines of comma separated values; says so when the disk refuses.
class TraceFile {
 public:
    Status open(const std::string& path) {
        path_ = path;
        file_ = std::fopen(path.c_str(), "w");
        if (file_ == nullptr) return fail_errno(errno, fmt::format("cannot write the trace to {}", path));
        fmt::print(file_, "time_ns,event,endpoint,arrives_ns,bytes,message,packet,fragment,generation\n");
        return {};
    }
    void write(const wire::SimEvent& event) {
        using Kind = wire::SimEvent::Kind;
        const char* who = event.endpoint == 0 ? "sender" : "receiver";
        const bool datagram = event.kind == Kind::kSendDatagram || event.kind == Kind::kLostDatagram ||
                              event.kind == Kind::kDeliverDatagram;
        const bool lost = event.kind == Kind::kLost || event.kind == Kind::kLostDatagram;
        const std::string arrives = lost ? std::string() : std::to_string(event.arrives.nanoseconds());
        if (datagram)
            fmt::print(file_, "{},{},{},{},{},,,,\n", event.at.nanoseconds(), wire::to_string(event.kind), who, arrives,
                       event.length);
        else
            fmt::print(file_, "{},{},{},{},{},{},{},{},{}\n", event.at.nanoseconds(), wire::to_string(event.kind), who,
                       arrives, event.length, layout_.message_id(event.immediate), layout_.packet(event.immediate),
                       layout_.fragment(event.immediate), event.generation);
    }
    Status close() {
        const bool failed = std::ferror(file_) != 0;
        const bool not_flushed = std::fclose(file_) != 0;
        file_ = nullptr;
        if (failed || not_flushed) return fail_errno(errno, fmt::format("the trace in {} is not complete", path_));
        return {};
    }
    ~TraceFile() {
        if (file_ != nullptr) std::fclose(file_);
    }

 private:
    std::string path_;
    std::FILE* file_ = nullptr;
    sdr::ImmediateLayout layout_;
};

void print_json(const SimulationConfig& config, const SimulationReport& report, const RingSimulationConfig* ring,
                const RingReport* ring_report) {
    nlohmann::ordered_json out;
    out["mean_s"] = report.mean_s;
    out["p50_s"] = report.p50_s;
    out["p99_s"] = report.p99_s;
    out["p999_s"] = report.p999_s;
    out["bound_s"] = report.bound_s;
    out["packets_sent"] = report.packets_sent;
    out["packets_resent"] = report.packets_resent;
    out["packets_parity"] = report.packets_parity;
    out["runs"] = config.runs;
    out["messages"] = config.messages;
    out["seed"] = config.seed;
    out["min_s"] = report.min_s;
    out["max_s"] = report.max_s;
    out["standard_error_s"] = report.standard_error_s;
    out["ratio_mean"] = report.bound_s > 0 ? report.mean_s / report.bound_s : 0;
    out["packets_spurious"] = report.packets_spurious;
    out["scheme"] = reliable::to_string(config.scheme);
    out["size_bytes"] = config.size_bytes;
    out["rate_bps"] = config.rate.bits_per_second();
    out["rtt_s"] = config.round_trip.seconds();
    out["loss"] = config.loss;
    out["loss_unit"] = config.loss_unit == LossUnit::kChunk ? "chunk" : "packet";
    out["burst_packets"] = config.mean_burst_packets;
    out["rto_rtts"] = config.rto_rtts;
    out["mtu_bytes"] = config.mtu_bytes;
    out["chunk_bytes"] = config.chunk_bytes;
    out["overhead_bytes"] = config.overhead_bytes;
    if (ring != nullptr) {
        out["allreduce"] = ring->ranks;
        out["segment_bytes"] = ring->segment_bytes;
        out["floor_s"] = ring_report->floor_s;
        out["published_bound_s"] = ring_report->published_bound_s;
    }
    fmt::print("{}\n", out.dump(2));
}

void print_table(const SimulationConfig& config, const SimulationReport& report, const RingSimulationConfig* ring,
                 const RingReport* ring_report) {
    if (ring != nullptr)
        fmt::print("ring allreduce over {} ranks in segments of {}\n", ring->ranks, format_size(ring->segment_bytes));
    fmt::print("{} of {}, {} in packets of {} bytes, chunks of {}\n", reliable::to_string(config.scheme),
               format_size(config.size_bytes),
               config.runs == 1 ? std::string("1 run") : fmt::format("{} runs", config.runs), config.mtu_bytes,
               format_size(config.chunk_bytes));
    fmt::print("link: {}, {} round trip, loss {:g} per {}\n\n",
               config.rate.unlimited() ? std::string("no rate limit")
                                       : format_rate(static_cast<double>(config.rate.bits_per_second())),
               format_duration(config.round_trip), config.loss,
               config.loss_unit == LossUnit::kChunk ? "chunk" : "packet");
    fmt::print("{:<8}{:>14}{:>10}\n", "", "seconds", "x bound");
    const auto row = [&](const char* name, double seconds) {
        fmt::print("{:<8}{:>14.9f}{:>10}\n", name, seconds,
                   report.bound_s > 0 ? fmt::format("{:.3f}", seconds / report.bound_s) : std::string("-"));
    };
    row(ring != nullptr ? "floor" : "bound", report.bound_s);
    if (ring != nullptr) row("publ.", ring_report->published_bound_s);
    row("mean", report.mean_s);
    row("p50", report.p50_s);
    row("p99", report.p99_s);
    row("p99.9", report.p999_s);
    row("worst", report.max_s);
    fmt::print("\npackets per run: {:.1f} sent, {:.1f} of them again ({:.1f} in vain)", report.packets_sent,
               report.packets_resent, report.packets_spurious);
    if (report.packets_parity > 0) fmt::print(", {:.1f} parity", report.packets_parity);
    fmt::print("\n");
}

int run(Arguments& arguments) {
    SimulationConfig& config = arguments.simulation;
    // Without a wish of the user's: as much of the usual chunk as are whole packets.
    if (!arguments.chunk_given && config.mtu_bytes > 0)
        config.chunk_bytes = config.mtu_bytes * std::clamp(config.chunk_bytes / config.mtu_bytes, 1u, 64u);
    if (Status status = validate(config); !status) {
        fmt::print(stderr, "sdr sim: {}\n", status.error().message);
        return kExitUsage;
    }
    TraceFile trace;
    if (!arguments.trace_file.empty()) {
        if (Status status = trace.open(arguments.trace_file); !status) {
            fmt::print(stderr, "sdr sim: {}\n", status.error().message);
            return kExitFailure;
        }
        arguments.simulation.observer = [&trace](const wire::SimEvent& event) { trace.write(event); };
    }
    const bool ring = arguments.allreduce;
    arguments.ring.base = config;
    auto ring_report = ring ? simulate_ring(arguments.ring) : Result<RingReport>();
    auto report = ring ? Result<SimulationReport>() : simulate(config);
    if (ring && ring_report)
        *report = *ring_report;
    else if (ring)
        report = propagate(ring_report);
    if (!report) {
        fmt::print(stderr, "sdr sim: {}\n", report.error().message);
        if (report.error().code != ErrorCode::kPeerGone) return kExitFailure;
        fmt::print(stderr,
                   "An end gives up after 10 s of virtual time without a word from the other: try less loss, delay or "
                   "jitter, or a higher rate.\n");
        return kExitPeer;
    }
    if (!arguments.trace_file.empty()) {
        if (Status status = trace.close(); !status) {
            fmt::print(stderr, "sdr sim: {}\n", status.error().message);
            return kExitFailure;
        }
    }
    if (arguments.json)
        print_json(config, *report, ring ? &arguments.ring : nullptr, ring ? &*ring_report : nullptr);
    else
        print_table(config, *report, ring ? &arguments.ring : nullptr, ring ? &*ring_report : nullptr);
    return kExitOk;
}

}  // namespace

void add_sim_command(CLI::App& app, int& exit_code) {
    auto arguments = std::make_shared<Arguments>();
    SimulationConfig& config = arguments->simulation;
    CLI::App& command =
        *app.add_subcommand("sim", "Completion time of one reliable Write in virtual time, by the real protocol code");
    command.footer(kExamples);

    add_parsed(command, "--size", config.size_bytes, parse_size, "Bytes to write", "128MiB", "SIZE");
    add_parsed(command, "--rate", config.rate, parse_rate, "Rate of the line in bit/s; 0: infinite", "400G", "RATE");
    add_parsed(command, "--rtt", config.round_trip, parse_duration, "Round trip", "25ms", "TIME");
    add_parsed(command, "--loss", config.loss, parse_probability,
               "Average share of packets (or chunks, see --loss-unit) lost", "0", "P");
    command
        .add_option_function<std::string>(
            "--loss-unit",
            [&config](const std::string& text) {
                config.loss_unit = text == "chunk" ? LossUnit::kChunk : LossUnit::kPacket;
            },
            "What is lost at once: packet, or chunk (then control datagrams are not lost)")
        ->check(CLI::IsMember({"packet", "chunk"}))
        ->type_name("UNIT")
        ->default_str("packet");
    add_parsed(command, "--burst", config.mean_burst_packets, link::parse_burst,
               "Mean length of a burst of losses in packets; 1: independent losses", "1", "PACKETS");
    command
        .add_option_function<std::string>(
            "--reorder", [&config](const std::string& text) { read_reorder(text, config); },
            "Delay a share P of the packets by up to D")
        ->type_name("P:D");
    add_parsed(command, "--jitter", config.jitter, parse_duration, "Delay every packet by 0 to D, without reordering",
               "0", "D");
    command
        .add_option_function<std::string>(
            "--scheme",
            [&config](const std::string& text) {
                auto scheme = reliable::parse_scheme(text);
                if (!scheme) throw CLI::ValidationError("--scheme", scheme.error().message);
                config.scheme = *scheme;
            },
            "How losses are repaired: " + reliable::scheme_names())
        ->type_name("NAME")
        ->default_str("sr");
    command.add_option("--rto", config.rto_rtts, "Retransmission timeout in round trips")
        ->type_name("RTTS")
        ->default_str("3");
    command.add_flag("--measure-rtt", config.measure_round_trip,
                     "The sender measures the round trip instead of knowing it");
    add_parsed(command, "--mtu", config.mtu_bytes, parse_small_size, "Payload of a packet in bytes", "4096", "SIZE");
    auto* const chunk = add_parsed(command, "--chunk", config.chunk_bytes, parse_small_size,
                                   "Bytes of a chunk: 1 to 64 packets", "about 64KiB", "SIZE");
    number_within(
        command
            .add_option_function<double>(
                "--encode-rate", [&config](double gigabytes) { config.encode_bytes_per_second = gigabytes * 1e9; },
                "GB/s of data that one core encodes into up to eight rows of parity (auto)")
            ->type_name("GBPS")
            ->default_str("16"),
        1e-3, 1e6);
    whole_number(command.add_option("--encode-cores", config.encode_workers, "Cores that encode (auto)")
                     ->type_name("N")
                     ->default_str("8"))
        ->check(CLI::Range(1u, 1024u));
    add_parsed(command, "--overhead", config.overhead_bytes, parse_small_size,
               "Bytes that a packet occupies on the line beside its payload", "0", "SIZE");
    whole_number(
        command.add_option("--messages", config.messages, "Writes of this size on one connection, one after the other")
            ->type_name("N")
            ->default_str("1"));
    whole_number(
        command
            .add_option_function<std::uint32_t>(
                "--allreduce",
                [arguments](std::uint32_t ranks) { arguments->ring.ranks = ranks, arguments->allreduce = true; },
                "A ring allreduce over N ranks instead of one Write: --size is each rank's buffer, the "
                "link options are those between neighbours")
            ->type_name("N"))
        ->check(CLI::Range(1u, 1024u));
    add_parsed(command, "--segment", arguments->ring.segment_bytes, parse_size, "Bytes of a Write of the allreduce",
               "4MiB", "SIZE");
    number_within(command
                      .add_option_function<double>(
                          "--reduce-rate",
                          [arguments](double gigabytes) { arguments->ring.reduce_bytes_per_second = gigabytes * 1e9; },
                          "GB/s that a rank combines; 0: combining takes no time")
                      ->type_name("GB/S")
                      ->default_str("0"),
                  0, 1e6);
    add_checked_option(
        &command, "--hop",
        [arguments](const std::string& text) -> Status { return read_hop(text, arguments->ring.hops); },
        "RANK:KEY=VALUE,..",
        "What differs on the link from this rank to the next: rtt, rate, loss, scheme (last); may be repeated");
    add_checked_option(
        &command, "--schedule",
        [&config](const std::string& text) -> Status {
            auto changes = link::parse_schedule(text);
            if (!changes) return propagate(changes);
            config.schedule = std::move(*changes);
            return {};
        },
        "CHANGES", "Changes of the way to the receiver, timed from the first Write: loss=1e-2@3s,loss=1e-5@6s");
    whole_number(command.add_option("--runs", config.runs, "Independent runs")->type_name("N")->default_str("1"));
    whole_number(command.add_option("--seed", config.seed, "Seed: the same one gives the same result")
                     ->type_name("N")
                     ->default_str("1"));
    whole_number(command
                     .add_option("--threads", config.threads,
                                 "Threads to spread the runs over, without effect on the result; 0: all cores")
                     ->type_name("N")
                     ->default_str("0"))
        ->check(CLI::Range(0u, 1024u));
    add_checked_option(
        &command, "--trace",
        [arguments](const std::string& text) -> Status {
            if (text.empty()) return fail(ErrorCode::kInvalidArgument, "the name of the file is empty");
            arguments->trace_file = text;
            return {};
        },
        "FILE", "Write every event of the first run to FILE as comma separated values");
    command.add_flag("--json", arguments->json, "Print JSON");
    command.callback([arguments, chunk, &exit_code] {
        arguments->chunk_given = chunk->count() > 0;
        exit_code = run(*arguments);
    });
}

}  // namespace farhaul::app
