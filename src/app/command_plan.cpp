// `sdr plan`: options in, a table or JSON out. The models are in plan/; here is only the measurement of how fast this
// host encodes.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/commands.hpp"
#include "app/unit_options.hpp"
#include "erasure/code.hpp"
#include "link/options.hpp"
#include "plan/plan.hpp"

namespace farhaul::app {

namespace {

constexpr const char* kExamples = R"(Examples:
  sdr plan --size 128MiB --rate 400G --rtt 25ms --loss 1e-3
  sdr plan --size 8MiB --rate 10G --rtt 80ms --loss 1e-3 --burst 64 --mtu 1448 --chunk 1448
  sdr plan --size 1GiB --loss 1e-4 --scheme sr --scheme ec:32,8 --json

The bound is size / rate / (1 - loss) + RTT. Loss is that of packets; a chunk of several packets is lost when one of them is.)";

struct Arguments {
    plan::PlanInput input{
        .bytes = 128 << 20, .rate = BitRate::from_gigabits(400), .rtt = Duration::from_milliseconds(25)};
    std::vector<plan::Scheme> schemes;
    double encode_gigabytes = 0;  ///< per second and core; 0: measure
    bool json = false;
};

/// Bytes of data that this core encodes per second, over a working set that the inner caches do not hold. Takes about
/// 30 ms.
double measure_encoding(const plan::Scheme& scheme, std::size_t chunk_bytes) {
    using Clock = std::chrono::steady_clock;
    if (scheme.kind == plan::Scheme::Kind::kAuto) return measure_encoding(*plan::parse_scheme("ec:228,8"), chunk_bytes);
    const auto kind =
        scheme.kind == plan::Scheme::Kind::kErasureXor ? erasure::Kind::kXor : erasure::Kind::kReedSolomon;
    const auto code = erasure::Code::create({kind, scheme.data_symbols, scheme.parity_symbols});
    if (!code) return 0;
    const std::size_t chunk = std::min<std::size_t>((chunk_bytes + 63) / 64 * 64, 64 << 10);
    const std::size_t block_bytes = chunk * (scheme.data_symbols + scheme.parity_symbols);
    const std::size_t blocks = std::max<std::size_t>((16 << 20) / block_bytes, 1);
    std::vector<std::byte> memory(blocks * block_bytes + 64, std::byte{0x5a});
    void* start = memory.data();
    std::size_t space = memory.size();
    auto* const first = static_cast<std::byte*>(std::align(64, blocks * block_bytes, start, space));
    std::vector<std::byte*> chunks;
    const auto encode_all = [&] {
        for (std::size_t block = 0; block < blocks; ++block) {
            chunks.clear();
            for (unsigned i = 0; i < scheme.data_symbols + scheme.parity_symbols; ++i) {
                chunks.push_back(first + block * block_bytes + i * chunk);
            }
            const std::span<std::byte* const> all(chunks);
            if (!code->encode({chunk, chunk, all.first(scheme.data_symbols), all.subspan(scheme.data_symbols)})) return;
        }
    };
    // The fastest pass counts: the others were interrupted.
    encode_all();
    double fastest = 1e9;
    const auto begin = Clock::now();
    for (auto before = begin; before - begin < std::chrono::milliseconds(25);) {
        encode_all();
        const auto now = Clock::now();
        fastest = std::min(fastest, std::chrono::duration<double>(now - before).count());
        before = now;
    }
    return static_cast<double>(blocks * chunk * scheme.data_symbols) / std::max(fastest, 1e-9);
}

std::string time_text(double seconds) { return format_duration(Duration::from_seconds(seconds)); }

std::string bytes_text(double bytes) { return format_size(static_cast<std::uint64_t>(bytes + 0.5)); }

void print_table(const Arguments& arguments, const plan::Plan& plan) {
    const plan::PlanInput& input = arguments.input;
    fmt::print("{} at {}, RTT {}, packet loss {:g}", format_size(input.bytes),
               format_rate(static_cast<double>(input.rate.bits_per_second())), format_duration(input.rtt),
               input.loss.probability);
    if (input.loss.mean_burst_packets > 1) fmt::print(" in bursts of {:g}", input.loss.mean_burst_packets);
    fmt::print(", packets of {}, chunks of {} (chunk loss {:.3g})\n", format_size(input.mtu),
               format_size(input.chunk_bytes), plan.chunk_loss);
    fmt::print("bound {}; encoding by {}\n\n", time_text(plan.bound),
               arguments.encode_gigabytes > 0 ? fmt::format("{:g} GB/s per core as given", arguments.encode_gigabytes)
                                              : fmt::format("{}, measured", erasure::best_engine().name));
    fmt::print("{:<14} {:>11} {:>11} {:>8} {:>12} {:>12} {:>7} {:>9}\n", "scheme", "mean", "p99.9", "x bound", "parity",
               "sent again", "cores", "fallback");
    for (std::size_t i = 0; i < plan.predictions.size(); ++i) {
        const plan::Prediction& p = plan.predictions[i];
        const bool coded = p.scheme.paired();
        fmt::print("{:<14} {:>11} {:>11} {:>8.3f} {:>12} {:>12} {:>7} {:>9}{}\n", plan::to_string(p.scheme),
                   time_text(p.mean), time_text(p.p999), p.mean / plan.bound, bytes_text(p.parity_bytes),
                   bytes_text(p.resent_bytes), coded ? fmt::format("{:.2f}", p.encode_cores) : "-",
                   coded ? fmt::format("{:.2g}", p.failure) : "-", i == plan.pick ? "  <" : "");
    }
    fmt::print("\npick {}\n", plan.reason);
}

void print_json(const Arguments& arguments, const plan::Plan& plan) {
    const plan::PlanInput& input = arguments.input;
    nlohmann::ordered_json out;
    out["size_bytes"] = input.bytes;
    out["rate_bps"] = input.rate.bits_per_second();
    out["rtt_s"] = input.rtt.seconds();
    out["loss_packet"] = input.loss.probability;
    out["loss_chunk"] = plan.chunk_loss;
    out["mean_burst_packets"] = input.loss.mean_burst_packets;
    out["mtu_bytes"] = input.mtu;
    out["chunk_bytes"] = input.chunk_bytes;
    out["bound_s"] = plan.bound;
    out["encode_engine"] = arguments.encode_gigabytes > 0 ? "given" : std::string(erasure::best_engine().name);
    out["schemes"] = nlohmann::ordered_json::array();
    for (const plan::Prediction& p : plan.predictions) {
        nlohmann::ordered_json row;
        row["scheme"] = plan::to_string(p.scheme);
        row["mean_s"] = p.mean;
        row["p999_s"] = p.p999;
        row["ratio_mean"] = p.mean / plan.bound;
        row["parity_bytes"] = p.parity_bytes;
        row["resent_bytes"] = p.resent_bytes;
        row["overhead_bytes"] = p.overhead_bytes();
        row["encode_cores"] = p.encode_cores;
        row["fallback_probability"] = p.failure;
        row["simulated"] = p.simulated;
        out["schemes"].push_back(row);
    }
    out["pick"] = plan::to_string(plan.predictions[plan.pick].scheme);
    out["reason"] = plan.reason;
    fmt::print("{}\n", out.dump(2));
}

int run(Arguments& arguments) {
    if (arguments.schemes.empty()) arguments.schemes = plan::default_schemes();
    auto plan = plan::plan(arguments.input, arguments.schemes);
    if (!plan) {
        fmt::print(stderr, "sdr plan: {}\n", plan.error().message);
        return kExitUsage;
    }
    for (plan::Prediction& p : plan->predictions) {
        if (!p.scheme.paired()) continue;
        const double speed = arguments.encode_gigabytes > 0
                                 ? arguments.encode_gigabytes * 1e9
                                 : measure_encoding(p.scheme, p.scheme.chunk_symbols ? arguments.input.chunk_bytes
                                                                                     : arguments.input.mtu);
        p.encode_cores = plan::encode_cores(arguments.input, p.scheme, speed);
    }
    if (arguments.json)
        print_json(arguments, *plan);
    else
        print_table(arguments, *plan);
    return kExitOk;
}

}  // namespace

void add_plan_command(CLI::App& app, int& exit_code) {
    auto arguments = std::make_shared<Arguments>();
    plan::PlanInput& input = arguments->input;
    CLI::App& command = *app.add_subcommand("plan", "Predict what each scheme would take on a link, and pick one");
    command.footer(kExamples);

    add_size_option(&command, "--size", input.bytes, "Bytes of the message")->default_str("128MiB");
    add_rate_option(&command, "--rate", input.rate, "Rate of the line in bit/s")->default_str("400G");
    add_duration_option(&command, "--rtt", input.rtt, "Round trip")->default_str("25ms");
    add_checked_option(
        &command, "--loss",
        [&input](const std::string& text) -> Status {
            auto value = parse_probability(text);
            if (!value) return propagate(value);
            input.loss.probability = *value;
            return {};
        },
        "P", "Average share of packets lost")
        ->default_str("0");
    add_checked_option(
        &command, "--burst",
        [&input](const std::string& text) -> Status {
            auto value = link::parse_burst(text);
            if (!value) return propagate(value);
            input.loss.mean_burst_packets = *value;
            return {};
        },
        "PACKETS", "Mean length of a burst of losses in packets; 1: independent losses")
        ->default_str("1");
    const auto small_size = [](std::uint32_t& target) {
        return [&target](const std::string& text) -> Status {
            auto value = parse_size(text);
            if (!value) return propagate(value);
            if (*value > 1 << 30) return fail(ErrorCode::kInvalidArgument, "{} is more than 1 GiB", text);
            target = static_cast<std::uint32_t>(*value);
            return {};
        };
    };
    add_checked_option(&command, "--mtu", small_size(input.mtu), "SIZE", "Payload of a packet in bytes")
        ->default_str("4096");
    add_checked_option(
        &command, "--chunk", small_size(input.chunk_bytes), "SIZE",
        "Bytes of a chunk, what sr and sr-nack repeat and what ec:K,M/chunk codes: a multiple of the MTU")
        ->default_str("4096");
    command.add_option("--rto", input.rto_rtts, "Retransmission timeout of sr in round trips")
        ->type_name("RTTS")
        ->default_str("3");
    command
        .add_option_function<std::vector<std::string>>(
            "--scheme",
            [list = &arguments->schemes](const std::vector<std::string>& names) {
                for (const std::string& name : names) {
                    auto scheme = plan::parse_scheme(name);
                    if (!scheme) throw CLI::ValidationError("--scheme", scheme.error().message);
                    list->push_back(*scheme);
                }
            },
            "Compare this one: auto, sr, sr-nack, ec:K,M or ec-xor:K,M (of packets; with /chunk of chunks); may be "
            "repeated. Default: a choice of all")
        ->type_name("NAME")
        ->allow_extra_args(false);
    number_within(command
                      .add_option("--encode-rate", arguments->encode_gigabytes,
                                  "GB/s of data that one core encodes; 0: measure it here, for each code")
                      ->type_name("GB/S")
                      ->default_str("0"),
                  0, 1e6);
    whole_number(
        command.add_option("--seed", input.seed, "Seed of the simulation of bursts")->type_name("N")->default_str("1"));
    command.add_flag("--json", arguments->json, "Print JSON");
    command.callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace farhaul::app
