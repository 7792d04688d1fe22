// `sdr bench`: bandwidth and latency between two hosts or two processes, in the manner of perftest's ib_write_bw and
// ib_write_lat.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "app/bench/runner.hpp"
#include "app/commands.hpp"
#include "app/signals.hpp"
#include "app/unit_options.hpp"
#include "wire/udp/blast.hpp"

namespace farhaul::app {
namespace {

using namespace bench;

constexpr std::uint16_t kBenchPort = 18515;
constexpr int kBlastRounds = 5;

struct BenchArguments {
    std::string host;
    std::uint16_t port = kBenchPort;
    std::string scheme;      // empty: sr-nack
    std::string connection;  // -c
    std::uint64_t bytes = 65536;
    std::uint64_t iterations = 0;  // 0: 5000, or 1000 for latency
    Duration duration;
    bool all_sizes = false, both_ways = false, latency = false, validate = false, local = false, blast = false,
         json = false;
    std::uint32_t queue_pairs = 1;
    std::uint32_t depth = 128;
    std::uint32_t packet_bytes = 4096;
    std::uint64_t chunk_bytes = 65536;
    BitRate rate;
    double rto_rtts = 3;
    std::uint32_t channels = 1;
    bool checksum = true;
    Duration timeout = Duration::from_milliseconds(10'000);

    bool tcp() const { return scheme == "tcp" || scheme.starts_with("tcp-"); }
    std::string tcp_algorithm() const { return scheme.size() > 4 ? scheme.substr(4) : std::string(); }
};

int say_error(const Error& error) {
    fmt::print(stderr, "sdr bench: {}\n", error.message);
    return transfer::exit_code_of(error.code);
}

int usage_error(const std::string& message) {
    fmt::print(stderr, "sdr bench: {}\n", message);
    return kExitUsage;
}

/// Keeps this thread, and those that it starts, on one core.
void pin(unsigned core_rank) {
    cpu_set_t all, one;
    CPU_ZERO(&all);
    CPU_ZERO(&one);
    if (::sched_getaffinity(0, sizeof all, &all) != 0) return;
    for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &all) && core_rank-- == 0) {
            CPU_SET(core, &one);
            ::sched_setaffinity(0, sizeof one, &one);
            return;
        }
}

EndpointOptions endpoint_options(const BenchArguments& arguments) {
    return {.channels = arguments.channels,
            .checksum = arguments.checksum,
            .checksum_optional = true,
            .timeout = arguments.timeout};
}

// --- server ---

int run_server(const BenchArguments& arguments) {
    auto loop = udp::RealLoop::create();
    if (!loop) return say_error(loop.error());
    const Signals signals(**loop, [&](int) { (*loop)->stop(); });
    auto address = udp::parse_address(fmt::format(":{}", arguments.port), udp::AddressUse::kListen);
    if (!address) return say_error(address.error());
    auto server = Server::open(**loop, *address, endpoint_options(arguments), [&](const std::string& text) {
        if (!arguments.json) fmt::print("{}\n", text);
        std::fflush(stdout);
    });
    if (!server) return say_error(server.error());
    if (arguments.json)
        fmt::print("{{\"listening\":\"{}\"}}\n", (*server)->local_address().to_string());
    else
        fmt::print("waiting for clients on {} (interrupt to end)\n", (*server)->local_address().to_string());
    std::fflush(stdout);
    (*loop)->run();
    return kExitOk;
}

/// The server of --local: a process of its own, on the second core if there is one.
class LocalServer {
 public:
    static Result<std::unique_ptr<LocalServer>> start(const BenchArguments& arguments) {
        int ends[2];
        if (::pipe(ends) != 0) return fail_errno(errno, "cannot make a pipe");
        io::UniqueFd read_end(ends[0]), write_end(ends[1]);
        std::fflush(nullptr);
        const pid_t child = ::fork();
        if (child < 0) return fail_errno(errno, "cannot start the server process");
        if (child == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            pin(1);
            auto loop = udp::RealLoop::create();
            auto address = udp::parse_address("127.0.0.1:0", udp::AddressUse::kListen);
            if (!loop || !address) ::_exit(1);
            auto server = Server::open(**loop, *address, endpoint_options(arguments), [](const std::string&) {});
            if (!server) ::_exit(1);
            const std::uint16_t port = (*server)->local_address().port();
            if (::write(write_end.get(), &port, sizeof port) != static_cast<ssize_t>(sizeof port)) ::_exit(1);
            (*loop)->run();
            ::_exit(0);
        }
        std::unique_ptr<LocalServer> server(new LocalServer);
        server->child_ = child;
        write_end.reset();
        if (::read(read_end.get(), &server->port_, sizeof server->port_) != static_cast<ssize_t>(sizeof server->port_))
            return fail(ErrorCode::kIo, "the server process did not come up");
        return server;
    }
    ~LocalServer() {
        if (child_ <= 0) return;
        ::kill(child_, SIGKILL);
        ::waitpid(child_, nullptr, 0);
    }
    std::uint16_t port() const { return port_; }

 private:
    pid_t child_ = -1;
    std::uint16_t port_ = 0;
};

// --- client ---

nlohmann::ordered_json to_json(const BandwidthRow& row) {
    return {{"bytes", row.bytes},
            {"iterations", row.iterations},
            {"seconds", row.seconds},
            {"bw_peak_gbits", row.peak_bits_per_second / 1e9},
            {"bw_average_gbits", row.average_bits_per_second / 1e9},
            {"msg_rate_mpps", row.messages_per_second / 1e6},
            {"message_min_s", row.message_min},
            {"message_median_s", row.message_median},
            {"message_max_s", row.message_max},
            {"packets_sent", row.packets_sent},
            {"packets_resent", row.packets_resent},
            {"messages_incomplete", row.incomplete},
            {"messages_invalid", row.invalid}};
}

nlohmann::ordered_json to_json(const LatencyRow& row) {
    return {{"bytes", row.bytes},          {"iterations", row.iterations},
            {"t_min_us", row.min},         {"t_max_us", row.max},
            {"t_typical_us", row.typical}, {"t_avg_us", row.average},
            {"t_stdev_us", row.deviation}, {"p99_us", row.p99},
            {"p999_us", row.p999}};
}

class ClientRun {
 public:
    ClientRun(const BenchArguments& arguments, const udp::Address& server, udp::RealLoop* loop)
        : a_(arguments), server_(server), loop_(loop) {}

    int run() {
        if (!a_.tcp()) {
            auto client = Client::open(*loop_, server_, endpoint_options(a_));
            if (!client) return say_error(client.error());
            client_ = std::move(*client);
        }
        describe();
        if (a_.blast) return run_blast_rounds();
        if (!a_.json) fmt::print("{}\n", a_.latency ? latency_header() : bandwidth_header());
        std::vector<std::uint64_t> sizes{a_.bytes};
        if (a_.all_sizes) {
            sizes.clear();
            for (std::uint64_t size = 2; size <= (8u << 20); size *= 2) sizes.push_back(size);
        }
        int code = kExitOk;
        for (const std::uint64_t size : sizes) {
            auto result = measure(size);
            if (!result) return say_error(result.error());
            if (const int bad = show(*result); bad != kExitOk) code = bad;
        }
        finish();
        return code;
    }

 private:
    std::string name() const { return a_.scheme.empty() ? "sr-nack" : a_.scheme; }

    Plan plan(std::uint64_t size) const {
        Plan plan;
        plan.raw = name() == "raw";
        if (!plan.raw && !a_.tcp()) plan.scheme = *reliable::parse_scheme(name());
        plan.latency = a_.latency;
        plan.both_ways = a_.both_ways;
        plan.validate = a_.validate;
        plan.bytes = size;
        plan.iterations = a_.iterations > 0 ? a_.iterations : a_.latency ? 1000 : 5000;
        // Not so many that a run of large messages takes minutes: at least 32 MiB in flight is enough for any of them.
        plan.depth = static_cast<std::uint32_t>(std::clamp<std::uint64_t>((256u << 20) / size, 1, a_.depth));
        plan.chunk_bytes = static_cast<std::uint32_t>(a_.chunk_bytes);
        plan.rate = a_.rate;
        plan.rto_rtts = a_.rto_rtts;
        return plan;
    }

    Result<RunResult> measure(std::uint64_t size) {
        const Plan p = plan(size);
        if (!a_.tcp()) return client_->run(p, a_.queue_pairs, a_.duration, a_.packet_bytes);
        auto row = run_tcp_client(server_, a_.tcp_algorithm(), size, p.iterations, p.depth == 1, a_.timeout);
        if (!row) return propagate(row);
        return RunResult{
            .bandwidth = *row, .latency = {}, .payload_bytes = 0, .round_trip = {}, .segmentation_offload = false};
    }

    void describe() {
        const Machine machine = this_machine();
        const Plan p = plan(a_.bytes);
        json_["machine"] = {{"cpu", machine.cpu}, {"cores", machine.cores}, {"kernel", machine.kernel}};
        json_["parameters"] = {{"server", server_.to_string()},
                               {"scheme", name()},
                               {"test", a_.latency ? "latency" : "bandwidth"},
                               {"bidirectional", a_.both_ways},
                               {"queue_pairs", a_.queue_pairs},
                               {"tx_depth", p.depth},
                               {"packet_bytes", a_.packet_bytes},
                               {"chunk_bytes", a_.chunk_bytes},
                               {"channels", a_.channels},
                               {"checksum", a_.checksum},
                               {"rate_bits_per_second", a_.rate.bits_per_second()}};
        if (a_.json) return;
        fmt::print("{} ({} cores), {}\n", machine.cpu, machine.cores, machine.kernel);
        fmt::print("{} {}{} to {}", name(), a_.latency ? "latency" : "bandwidth", a_.both_ways ? ", both ways" : "",
                   server_.to_string());
        if (!a_.tcp()) {
            fmt::print(
                ": {} queue pair{}, {} messages in flight, packets of at most {} bytes, chunks of {}, {} channel{}, "
                "checksum {}, {}",
                a_.queue_pairs, a_.queue_pairs == 1 ? "" : "s", p.depth,
                a_.packet_bytes > 0 ? a_.packet_bytes : udp::kMaxPayloadBytes, format_size(a_.chunk_bytes), a_.channels,
                a_.channels == 1 ? "" : "s", a_.checksum ? "on" : "off",
                a_.rate.unlimited() ? std::string("no rate limit")
                                    : format_rate(static_cast<double>(a_.rate.bits_per_second())));
        }
        fmt::print("\n");
        std::fflush(stdout);
    }

    int show(const RunResult& result) {
        const BandwidthRow& row = result.bandwidth;
        auto json = a_.latency ? to_json(result.latency) : to_json(row);
        if (!a_.tcp()) {
            json["payload_bytes"] = result.payload_bytes;
            json["rtt_s"] = result.round_trip.seconds();
        }
        json_["results"].push_back(std::move(json));
        if (!a_.json) fmt::print("{}\n", a_.latency ? to_line(result.latency) : to_line(row));
        std::fflush(stdout);
        if (!a_.json && row.incomplete > 0)
            fmt::print("            {} messages lost a packet and are not counted\n", row.incomplete);
        if (!a_.json && row.packets_resent > 0)
            fmt::print("            {} of {} packets resent\n", row.packets_resent, row.packets_sent);
        if (row.invalid == 0) return kExitOk;
        fmt::print(stderr, "sdr bench: {} messages of {} bytes arrived with wrong data\n", row.invalid, row.bytes);
        return kExitIntegrity;
    }

    void finish() {
        if (a_.json) fmt::print("{}\n", json_.dump());
    }

    /// Alternating rounds, so that both see the same moods of the machine.
    int run_blast_rounds() {
        cpu_set_t pinned, all;
        CPU_ZERO(&all);
        for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &all);
        const bool restore = ::sched_getaffinity(0, sizeof pinned, &pinned) == 0;
        std::vector<double> ours, blast, ratios;
        auto rounds = nlohmann::ordered_json::array();
        for (int round = 0; round < kBlastRounds; ++round) {
            auto result = measure(a_.bytes);
            if (!result) return say_error(result.error());
            if (restore) ::sched_setaffinity(0, sizeof all, &all);  // the blast's two threads want a core each
            udp::BlastOptions options;
            options.payload_bytes = result->payload_bytes;
            options.segmentation_offload = result->segmentation_offload;
            auto bare = udp::run_blast(options);
            if (restore) ::sched_setaffinity(0, sizeof pinned, &pinned);
            if (!bare) return say_error(bare.error());
            ours.push_back(result->bandwidth.average_bits_per_second / 1e9);
            blast.push_back(bare->bytes_per_second * 8 / 1e9);
            ratios.push_back(blast.back() > 0 ? ours.back() / blast.back() : 0);
            rounds.push_back({{"sdr_gbits", ours.back()},
                              {"blast_gbits", blast.back()},
                              {"ratio", ratios.back()},
                              {"payload_bytes", result->payload_bytes}});
            if (!a_.json)
                fmt::print("round {}: {:8.3f} Gbit/s; bare UDP blast {:8.3f} Gbit/s; ratio {:.3f}\n", round + 1,
                           ours.back(), blast.back(), ratios.back());
            std::fflush(stdout);
        }
        const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
        json_["results"] = rounds;
        json_["median"] = {{"sdr_gbits", median(ours)},
                           {"blast_gbits", median(blast)},
                           {"ratio", median(ratios)},
                           {"ratio_min", *low},
                           {"ratio_max", *high}};
        if (a_.json)
            fmt::print("{}\n", json_.dump());
        else
            fmt::print("median : {:8.3f} Gbit/s; bare UDP blast {:8.3f} Gbit/s; ratio {:.3f} ({:.3f} to {:.3f})\n",
                       median(ours), median(blast), median(ratios), *low, *high);
        return kExitOk;
    }

    const BenchArguments& a_;
    udp::Address server_;
    udp::RealLoop* loop_;
    std::unique_ptr<Client> client_;
    nlohmann::ordered_json json_;
};

int run_bench(BenchArguments a) {
    if (!a.connection.empty()) {
        const bool unreliable = a.connection == "UC";
        if (!a.scheme.empty() && (a.scheme == "raw") != unreliable)
            return usage_error(
                fmt::format("--connection {} and --scheme {} contradict each other", a.connection, a.scheme));
        if (a.scheme.empty()) a.scheme = unreliable ? "raw" : "sr-nack";
    }
    if (!a.scheme.empty() && a.scheme != "raw" && !a.tcp())
        if (auto parsed = reliable::parse_scheme(a.scheme); !parsed)
            return usage_error(parsed.error().message + "; bench also has raw and tcp-ALGORITHM");
    if (a.latency && (a.scheme == "raw" || a.tcp()))
        return usage_error("--latency needs a reliable scheme: a ping-pong ends at the first lost message");
    if (a.latency && a.both_ways) return usage_error("--latency and --bidirectional exclude each other");
    if (a.both_ways && a.scheme == "raw") return usage_error("--bidirectional needs a reliable scheme");
    if (a.tcp() && (a.both_ways || a.queue_pairs > 1 || a.duration > Duration{} || a.validate || a.blast))
        return usage_error("--scheme tcp-* knows only --size, --iters, --all and --timeout");
    if (a.blast && (a.latency || a.all_sizes))
        return usage_error("--blast compares the bandwidth of one size: no --latency, no --all");
    if (a.duration > Duration{} && a.iterations > 0) return usage_error("--duration and --iters exclude each other");
    if (a.local && !a.host.empty()) return usage_error("--local starts its own server: no HOST");
    if (a.blast && !a.local) return usage_error("--blast compares over loopback: use it with --local");
    if (a.host.empty() && !a.local) return run_server(a);

    std::unique_ptr<LocalServer> local;
    std::string target =
        a.host.find(':') == std::string::npos || a.host.ends_with("]") ? fmt::format("{}:{}", a.host, a.port) : a.host;
    if (a.local) {
        auto started = LocalServer::start(a);
        if (!started) return say_error(started.error());
        local = std::move(*started);
        target = fmt::format("127.0.0.1:{}", local->port());
        pin(0);
    }
    auto server = udp::parse_address(target, udp::AddressUse::kConnect);
    if (!server)
        return say_error(server.error()),
               server.error().code == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailure;
    auto loop = udp::RealLoop::create();
    if (!loop) return say_error(loop.error());
    if (a.tcp()) return ClientRun(a, *server, loop->get()).run();  // blocks: a signal just ends it
    const Signals signals(**loop, [&](int) { (*loop)->stop(); });
    return ClientRun(a, *server, loop->get()).run();
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
    auto* command =
        app.add_subcommand("bench", "Measure bandwidth and latency: without HOST the server, with HOST the client");
    auto a = std::make_shared<BenchArguments>();
    command->add_option("HOST", a->host, "The server; nothing: be the server");
    command->add_option("-p,--port", a->port, "Port of the server")->capture_default_str();
    command
        ->add_option("--scheme", a->scheme,
                     "raw, " + reliable::scheme_names() + ", or tcp-ALGORITHM for kernel TCP. Default: sr-nack")
        ->type_name("NAME");
    add_size_option(command, "-s,--size", a->bytes, "Bytes per message. Default: 65536")
        ->check([](const std::string& text) {
            const auto size = parse_size(text);
            return size && (*size < 1 || *size > kMaxMessageBytes) ? std::string("a message has 1 byte to 1 TiB")
                                                                   : std::string();
        });
    command->add_option("-n,--iters", a->iterations, "Messages. Default: 5000; 1000 with --latency")
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40));
    add_checked_option(
        command, "-D,--duration",
        [a](const std::string& text) -> Status {
            auto time = parse_duration(text.find_first_not_of("0123456789.") == std::string::npos ? text + "s" : text);
            if (!time) return propagate(time);
            a->duration = *time;
            return {};
        },
        "TIME", "Run for so long (seconds without a unit) instead of a number of messages");
    command->add_flag("-a,--all", a->all_sizes, "Sizes 2, 4, ... 8388608");
    command->add_flag("-b,--bidirectional", a->both_ways, "Both ends write at the same time");
    command->add_option("-q,--qp", a->queue_pairs, "Queue pairs (connections) at once")
        ->check(CLI::Range(1u, kMaxQueuePairs))
        ->capture_default_str();
    command->add_option("-t,--tx-depth", a->depth, "Messages in flight per queue pair")
        ->check(CLI::Range(1u, kMaxDepth))
        ->capture_default_str();
    add_checked_option(
        command, "-m,--mtu",
        [a](const std::string& text) -> Status {
            auto size = parse_size(text);
            if (!size) return propagate(size);
            if (*size != 0 && (*size < 64 || *size > udp::kMaxPayloadBytes))
                return fail(ErrorCode::kInvalidArgument, "a packet carries 64 to {} bytes; 0 is what the path carries",
                            udp::kMaxPayloadBytes);
            a->packet_bytes = static_cast<std::uint32_t>(*size);
            return {};
        },
        "SIZE", "Most payload bytes per packet; 0: what the path carries. Default: 4096");
    add_checked_option(
        command, "--chunk",
        [a](const std::string& text) -> Status {
            auto size = parse_size(text);
            if (!size) return propagate(size);
            if (*size < 1 || *size > (16u << 20))
                return fail(ErrorCode::kInvalidArgument, "a chunk is 1 byte to 16 MiB");
            a->chunk_bytes = *size;
            return {};
        },
        "SIZE", "Bytes per bit of the bitmap, in whole packets (1 to 64). Default: 64KiB");
    command->add_option("-c,--connection", a->connection, "UC: --scheme raw; RC: a reliable scheme")
        ->check([](const std::string& text) {
            return text == "UC" || text == "RC" ? std::string() : "UC and RC are what there is, not '" + text + "'";
        });
    add_checked_option(
        command, "--rate_limit,--rate",
        [a](const std::string& text) -> Status {
            // perftest counts in Gbit/s when no unit is given.
            auto rate = parse_rate(text.find_first_not_of("0123456789.") == std::string::npos ? text + "G" : text);
            if (!rate) return propagate(rate);
            a->rate = *rate;
            return {};
        },
        "RATE", "Most bits per second of each sender, headers included (Gbit/s without a unit). Default: none");
    number_within(command->add_option("--rto", a->rto_rtts, "Retransmission timeout in round trips (gbn, sr)")
                      ->check(CLI::Range(1.0, 100.0))
                      ->capture_default_str(),
                  1, 100);
    command->add_option("--channels", a->channels, "Sockets to spread packets over")
        ->check(CLI::Range(1u, udp::kMaxChannels))
        ->capture_default_str();
    add_checked_option(
        command, "--checksum",
        [a](const std::string& text) -> Status {
            if (text != "on" && text != "off")
                return fail(ErrorCode::kInvalidArgument, "it is on or off, not '{}'", text);
            a->checksum = text == "on";
            return {};
        },
        "on|off", "CRC32C of every packet. Default: on");
    add_duration_option(command, "--timeout", a->timeout,
                        "Without a sign of life for so long, the peer is gone. Default: 10s");
    command->add_flag("--latency", a->latency, "Half the round trip of a ping-pong, instead of bandwidth");
    command->add_flag("--data_validation", a->validate,
                      "Every message carries a pattern that the other end checks (slower)");
    command->add_flag_callback("--report_gbits", [] {}, "Gbit/s is what is reported in any case");
    command->add_flag("--json,--out_json", a->json, "One line of JSON instead of the table");
    command->add_flag("--local", a->local, "Server and client at once over loopback, on a core each");
    command->add_flag("--blast", a->blast,
                      "With --local: alternate with a bare UDP blast of the same packet size and print the ratio");
    for (const auto& refused :
         {std::pair{"-d,--ib-dev", "there is no device to choose: packets take the route to HOST"},
          std::pair{"-x,--gid-index", "there are no GIDs: packets take the route to HOST"}})
        command
            ->add_option_function<std::string>(
                refused.first,
                [refused](const std::string&) { throw CLI::ValidationError(refused.first, refused.second); })
            ->group("");
    command->footer(
        "Examples:\n  sdr bench                           # server\n  sdr bench -a host                   # all sizes "
        "to it\n"
        "  sdr bench --local --blast           # loopback, beside a bare UDP blast\n  sdr bench --latency -s 8 host\n\n"
        "Exit status: 0 measured; 1 failed; 2 wrong command line; 3 no server, or it vanished; 4 wrong data "
        "(--data_validation).");
    command->callback([a, &exit_code] { exit_code = run_bench(*a); });
}

}  // namespace farhaul::app
