// `sdr allreduce`: a ring allreduce over UDP, timed and checked, in the manner of nccl-tests.
#include <cstdio>
#include <memory>
#include <new>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "app/allreduce/local_ranks.hpp"
#include "app/allreduce/peers.hpp"
#include "app/allreduce/rank_run.hpp"
#include "app/bench/statistics.hpp"
#include "app/commands.hpp"
#include "app/signals.hpp"
#include "app/transfer/session.hpp"
#include "app/unit_options.hpp"

namespace farhaul::app {
namespace {

using namespace allreduce;

constexpr const char* kExamples = R"(Examples:
  sdr allreduce --local 4                                          # four ranks on this host, over loopback
  sdr allreduce --local 4 --rtt 25ms --loss 1e-3 --rate 1G -b 1MiB -e 16MiB
  sdr allreduce --ranks 3 --rank 0 --peers ring.txt -e 1GiB        # on each host, with its own --rank

The peers file has a line per rank: HOST:PORT [rate=10G] [scheme=NAME], where rate and scheme are those of the link to the next rank.
algbw is bytes / time, busbw algbw * 2(N-1)/N, as in nccl-tests.
Exit status: 0 right results; 1 failed; 2 wrong command line; 3 a rank is gone, or did not come; 4 wrong results.)";

struct Arguments {
    std::uint32_t ranks = 0, rank = 0, local = 0;
    bool rank_given = false;
    std::string peers, listen;
    RankConfig config;
    RunPlan plan;
    BitRate rate;
    bool rate_given = false, scheme_given = false;
    std::string rtt, loss;
    bool json = false;
};

std::string machine_text() {
    const bench::Machine machine = bench::this_machine();
    return fmt::format("{} ({} cores), {}", machine.cpu, machine.cores, machine.kernel);
}

int say_error(std::uint32_t rank, const Error& error) {
    fmt::print(stderr, "sdr allreduce: rank {}: {}\n", rank, error.message);
    return error.code == ErrorCode::kTimeout ? int{kExitPeer} : transfer::exit_code_of(error.code);
}

nlohmann::ordered_json to_json(const SizeResult& r, const RunPlan& plan) {
    return {{"bytes", r.bytes},
            {"count", r.count},
            {"type", collective::to_string(plan.type)},
            {"redop", collective::to_string(plan.operation)},
            {"time_s", r.seconds},
            {"algbw_gbytes", r.algorithm_bytes_per_second / 1e9},
            {"busbw_gbytes", r.bus_bytes_per_second / 1e9},
            {"floor_s", r.floor_seconds},
            {"wrong", plan.check ? nlohmann::ordered_json(r.wrong) : nlohmann::ordered_json(nullptr)},
            {"packets_sent", r.packets_sent},
            {"packets_resent", r.packets_resent},
            {"packets_parity", r.packets_parity}};
}

void print_header(const RankConfig& config, Duration round_trip) {
    fmt::print("# {}\n", machine_text());
    fmt::print("# ring of {} ranks, {} to the right neighbour, rate {}, round trip {}, segments of {}\n", config.ranks,
               reliable::to_string(config.scheme),
               config.rate.unlimited() ? std::string("not limited")
                                       : format_rate(static_cast<double>(config.rate.bits_per_second())),
               format_duration(round_trip), format_size(config.segment_bytes));
    fmt::print("#{:>12} {:>12} {:>9} {:>6} {:>12} {:>9} {:>9} {:>8} {:>8}\n", "size", "count", "type", "redop", "time",
               "algbw", "busbw", "x floor", "#wrong");
    fmt::print("#{:>12} {:>12} {:>9} {:>6} {:>12} {:>9} {:>9} {:>8} {:>8}\n", "(B)", "(elements)", "", "", "(us)",
               "(GB/s)", "(GB/s)", "", "");
    std::fflush(stdout);
}

void print_row(const SizeResult& r, const RunPlan& plan) {
    fmt::print(" {:>12} {:>12} {:>9} {:>6} {:>12.1f} {:>9.3f} {:>9.3f} {:>8} {:>8}\n", r.bytes, r.count,
               collective::to_string(plan.type), collective::to_string(plan.operation), r.seconds * 1e6,
               r.algorithm_bytes_per_second / 1e9, r.bus_bytes_per_second / 1e9,
               r.floor_seconds > 0 ? fmt::format("{:.3f}", r.seconds / r.floor_seconds) : "-",
               plan.check ? std::to_string(r.wrong) : "N/A");
    std::fflush(stdout);
}

/// One rank, from binding its port to its last word. `right`: the address of the next one, given our own port.
int run_rank(const Arguments& a, const RankConfig& config, const udp::Address& listen,
             const std::function<Result<udp::Address>(std::uint16_t)>& right) {
    auto loop = udp::RealLoop::create();
    if (!loop) return say_error(config.rank, loop.error());
    bool interrupted = false;
    const Signals signals(**loop, [&](int) { interrupted = true, (*loop)->stop(); });
    auto rank = Rank::open(**loop, listen, config, interrupted);
    if (!rank) return say_error(config.rank, rank.error());
    auto next = right(config.ranks > 1 ? (*rank)->local_address().port() : std::uint16_t{0});
    if (!next) return say_error(config.rank, next.error());
    if (Status joined = (*rank)->join(*next); !joined) return say_error(config.rank, joined.error());

    const bool shown = config.rank == 0;
    nlohmann::ordered_json results = nlohmann::ordered_json::array();
    std::uint64_t wrong = 0;
    if (shown && !a.json) print_header(config, (*rank)->round_trip());
    const auto each = [&](const SizeResult& result) {
        wrong += result.wrong;
        if (shown && a.json) results.push_back(to_json(result, a.plan));
        if (shown && !a.json) print_row(result, a.plan);
    };
    Status status;
    try {
        status = run_sizes(**loop, **rank, config, a.plan, interrupted, each);
    } catch (const std::bad_alloc&) {
        status = fail(ErrorCode::kIo, "there is no memory for two buffers of {}: choose a smaller --maxbytes",
                      format_size(a.plan.most_bytes));
        (*rank)->ring().abort(status.error());
    }
    if (shown && a.json)
        fmt::print("{}\n", nlohmann::ordered_json{{"machine", machine_text()},
                                                  {"ranks", config.ranks},
                                                  {"scheme", reliable::to_string(config.scheme)},
                                                  {"rate_bps", config.rate.bits_per_second()},
                                                  {"rtt_s", (*rank)->round_trip().seconds()},
                                                  {"segment_bytes", config.segment_bytes},
                                                  {"iterations", a.plan.iterations},
                                                  {"results", results},
                                                  {"error", status ? nlohmann::ordered_json(nullptr)
                                                                   : nlohmann::ordered_json(status.error().message)}}
                               .dump());
    if (!status) {
        const int code = say_error(config.rank, status.error());
        (*loop)->run_until([&] { return !(*rank)->ring().lingering(); }, collective::Ring::kLinger);
        return code;
    }
    if (shown && !a.json)
        fmt::print("# {}\n", !a.plan.check ? "results not checked"
                             : wrong == 0  ? "all results are right"
                                           : fmt::format("{} elements are WRONG", wrong));
    return wrong == 0 ? kExitOk : kExitIntegrity;
}

int usage(const std::string& message) {
    fmt::print(stderr, "sdr allreduce: {}\nTry 'sdr allreduce --help'.\n", message);
    return kExitUsage;
}

int run_local_ranks(Arguments& a) {
    RankConfig config = a.config;
    config.ranks = a.local;
    config.rate = a.rate;
    LocalOptions options{.ranks = a.local, .link = {}, .quiet = a.json};
    if (!a.rtt.empty() || !a.loss.empty()) {
        if (a.rate.unlimited()) config.rate = BitRate::from_gigabits(1);  // what the link carries
        options.link = {"--rate", fmt::format("{}", config.rate.bits_per_second()), "--rtt",
                        a.rtt.empty() ? "0" : a.rtt};
        if (!a.loss.empty()) options.link.insert(options.link.end(), {"--loss", a.loss});
    }
    auto code = run_local(options, [&](std::uint32_t rank, const auto& listening) {
        config.rank = rank;
        auto listen = udp::parse_address("127.0.0.1:0", udp::AddressUse::kListen);
        if (!listen) return say_error(rank, listen.error());
        return run_rank(a, config, *listen, listening);
    });
    if (code) return *code;
    fmt::print(stderr, "sdr allreduce: {}\n", code.error().message);
    return kExitFailure;
}

int run(Arguments& a) {
    if (a.config.timeout < Duration::from_milliseconds(100)) return usage("--timeout is at least 100ms");
    if (a.plan.most_bytes > (std::uint64_t{1} << 40)) return usage("--maxbytes is at most 1TiB");
    const std::uint64_t element = collective::size_of(a.plan.type);
    if (a.plan.least_bytes > a.plan.most_bytes) return usage("--minbytes is more than --maxbytes");
    if (a.plan.most_bytes < element)
        return usage(fmt::format("--maxbytes is less than an element of {} bytes", element));
    if (a.local > 0) {
        if (a.rank_given || !a.peers.empty() || a.ranks > 0 || !a.listen.empty())
            return usage("--local starts all ranks itself: it goes without --rank, --ranks, --peers and --listen");
        return run_local_ranks(a);
    }
    if (!a.rtt.empty() || !a.loss.empty()) return usage("--rtt and --loss emulate the links of --local");
    if (a.peers.empty()) return usage("give --peers FILE and --rank I, or --local N to try it on this host");
    if (!a.rank_given) return usage("which rank of the peers is this one? Give --rank I");
    auto peers = read_peers(a.peers);
    if (!peers) return say_error(a.rank, peers.error());
    if (a.ranks > 0 && a.ranks != peers->size())
        return usage(fmt::format("--ranks is {}, but {} names {}", a.ranks, a.peers, peers->size()));
    if (peers->empty() || a.rank >= peers->size())
        return usage(fmt::format("rank {} of {} in {}: ranks count from 0", a.rank, peers->size(), a.peers));
    RankConfig config = a.config;
    config.rank = a.rank;
    config.ranks = static_cast<std::uint32_t>(peers->size());
    const Peer& own = (*peers)[a.rank];
    const Peer& next = (*peers)[(a.rank + 1) % peers->size()];
    auto listen = udp::parse_address(a.listen.empty() ? own.address : a.listen, udp::AddressUse::kListen);
    if (!listen) return say_error(a.rank, listen.error());
    auto right = udp::parse_address(next.address, udp::AddressUse::kConnect);
    if (!right) return say_error(a.rank, right.error());
    config.scheme = a.scheme_given ? config.scheme : own.scheme.value_or(config.scheme);
    config.rate = a.rate_given ? a.rate : own.rate.value_or(transfer::default_rate(*right));
    return run_rank(a, config, *listen, [&](std::uint16_t) -> Result<udp::Address> { return *right; });
}

}  // namespace

void add_allreduce_command(CLI::App& app, int& exit_code) {
    auto a = std::make_shared<Arguments>();
    a->config.scheme = *reliable::parse_scheme("auto");
    CLI::App* command = app.add_subcommand("allreduce", "A ring allreduce between hosts, timed and checked");
    command->footer(kExamples);
    whole_number(command->add_option("--local", a->local, "Start N ranks on this host")->type_name("N"))
        ->check(CLI::Range(1u, 256u));
    whole_number(command->add_option("--ranks", a->ranks, "How many ranks there are: as many as the peers file names")
                     ->type_name("N"))
        ->check(CLI::Range(1u, 65536u));
    whole_number(command
                     ->add_option_function<std::uint32_t>(
                         "--rank", [a](std::uint32_t rank) { a->rank = rank, a->rank_given = true; },
                         "Which of them this is, from 0")
                     ->type_name("I"));
    command->add_option("--peers", a->peers, "A line per rank: HOST:PORT [rate=RATE] [scheme=NAME]")->type_name("FILE");
    command->add_option("--listen", a->listen, "Listen here instead of on this rank's line of the peers file")
        ->type_name("HOST:PORT");
    add_size_option(command, "-b,--minbytes", a->plan.least_bytes, "Least size of the buffer. Default: 8");
    add_size_option(command, "-e,--maxbytes", a->plan.most_bytes, "Largest size of the buffer. Default: 64MiB");
    number_within(
        command->add_option("-f,--stepfactor", a->plan.factor, "From a size to the next. Default: 4")->type_name("X"),
        1.01, 1e9);
    whole_number(
        command->add_option("-n,--iters", a->plan.iterations, "Timed operations per size. Default: 20")->type_name("N"))
        ->check(CLI::Range(1u, 1'000'000u));
    whole_number(
        command->add_option("-w,--warmup_iters", a->plan.warmup, "Operations before them. Default: 2")->type_name("N"))
        ->check(CLI::Range(0u, 1'000'000u));
    add_checked_option(
        command, "-d,--datatype",
        [a](const std::string& text) -> Status {
            auto type = collective::parse_data_type(text);
            if (!type) return propagate(type);
            a->plan.type = *type;
            return {};
        },
        "TYPE", "float32 (default), float64, bfloat16, int32 or int64");
    add_checked_option(
        command, "-o,--op",
        [a](const std::string& text) -> Status {
            auto operation = collective::parse_operation(text);
            if (!operation) return propagate(operation);
            a->plan.operation = *operation;
            return {};
        },
        "OP", "sum (default), min or max");
    whole_number(command
                     ->add_option_function<std::uint32_t>(
                         "-c,--check", [a](std::uint32_t check) { a->plan.check = check != 0; },
                         "0: do not compare the results with a serial reduction. Default: 1")
                     ->type_name("0|1"));
    add_checked_option(
        command, "--scheme",
        [a](const std::string& text) -> Status {
            auto scheme = reliable::parse_scheme(text);
            if (!scheme) return propagate(scheme);
            a->config.scheme = *scheme;
            a->scheme_given = true;
            return {};
        },
        "NAME",
        "Reliability to the right neighbour: " + reliable::scheme_names() + ". Default: the peers file's, else auto");
    add_checked_option(
        command, "--rate",
        [a](const std::string& text) -> Status {
            auto rate = parse_rate(text);
            if (!rate) return propagate(rate);
            a->rate = *rate;
            a->rate_given = true;
            return {};
        },
        "RATE",
        "Most bit/s to the right neighbour, headers included. Default: the peers file's, else 1G; none over loopback");
    add_checked_option(
        command, "--mtu",
        [a](const std::string& text) -> Status {
            auto size = parse_size(text);
            if (!size) return propagate(size);
            if (*size != 0 && (*size < 64 || *size > udp::kMaxPayloadBytes))
                return fail(ErrorCode::kInvalidArgument, "{} is not 64 to {} bytes", text, udp::kMaxPayloadBytes);
            a->config.payload_bytes = static_cast<std::uint32_t>(*size);
            return {};
        },
        "SIZE", "Most payload bytes per packet. Default: what the path carries");
    add_checked_option(
        command, "--segment",
        [a](const std::string& text) -> Status {
            auto size = parse_size(text);
            if (!size) return propagate(size);
            if (*size < 4096 || *size % 8 != 0 || *size > (64u << 20))
                return fail(ErrorCode::kInvalidArgument, "{} is not 4KiB to 64MiB and a multiple of 8", text);
            a->config.segment_bytes = *size;
            return {};
        },
        "SIZE", "Bytes of a Write, the same at all ranks. Default: 1MiB");
    add_duration_option(command, "--timeout", a->config.timeout,
                        "A neighbour that is silent for so long is gone. Default: 3s");
    add_duration_option(command, "--start-timeout", a->config.start_timeout,
                        "How long to wait for the neighbours to come. Default: 60s");
    command->add_option("--rtt", a->rtt, "With --local: emulated links between the ranks, with this round trip")
        ->type_name("TIME")
        ->check([](const std::string& text) {
            auto value = parse_duration(text);
            return value ? std::string() : value.error().message;
        });
    command->add_option("--loss", a->loss, "With --local: share of packets that they lose, in both directions")
        ->type_name("P")
        ->check([](const std::string& text) {
            auto value = parse_probability(text);
            return value ? std::string() : value.error().message;
        });
    command->add_flag("--json", a->json, "One line of JSON instead of the table");
    command->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace farhaul::app
