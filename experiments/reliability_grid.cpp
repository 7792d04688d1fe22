// `auto` against the bound and against every fixed scheme, in virtual time by the real protocol code: 400 Gbit/s, 25 ms
// round trip, packets of 4 KiB, loss of packets. Every run is a fresh connection unless said otherwise.
//
//   reliability_grid [grid] [bursts] [jumps] [published] [--effort PERCENT] [--json]
//
// Without a name, all four. Exit status 1 when a figure misses its target. --effort scales the number of runs.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/simulate.hpp"
#include "base/units.hpp"

namespace {

using namespace farhaul;

constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
constexpr std::uint64_t kSizes[] = {128 * kKiB, kMiB, 8 * kMiB, 128 * kMiB, kGiB, 8 * kGiB};
constexpr double kLosses[] = {0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 5e-2};

double effort = 1;
bool json = false;
int missed = 0;
nlohmann::ordered_json results = nlohmann::ordered_json::array();

std::uint32_t runs_for(std::uint64_t size) {
    const double full = size <= 128 * kMiB ? 1000 : size <= kGiB ? 200 : 50;
    return static_cast<std::uint32_t>(std::max(1.0, std::round(full * effort)));
}

struct Cell {
    app::SimulationReport report;
    double mean, p99, p999, extra;  // times the bound; packets beyond the message's own, as a share
};

Cell run(app::SimulationConfig config) {
    auto report = app::simulate(config);
    if (!report) {
        fmt::print(stderr, "reliability_grid: {}\n", report.error().message);
        std::exit(2);
    }
    Cell cell{std::move(*report), 0, 0, 0, 0};
    cell.mean = cell.report.mean_s / cell.report.bound_s;
    cell.p99 = cell.report.p99_s / cell.report.bound_s;
    cell.p999 = cell.report.p999_s / cell.report.bound_s;
    const double own = std::ceil(static_cast<double>(config.size_bytes) / config.mtu_bytes);
    cell.extra = cell.report.packets_sent / own - 1;
    return cell;
}

app::SimulationConfig config_of(std::uint64_t size, double loss, std::string_view scheme) {
    app::SimulationConfig config;
    config.size_bytes = size;
    config.loss = loss;
    config.scheme = *reliable::parse_scheme(scheme);
    config.runs = runs_for(size);
    return config;
}

// Prints a figure and whether it meets its target.
std::string checked(double value, double target, const char* format = "{:.4f}") {
    const bool good = value <= target;
    missed += !good;
    return fmt::format(fmt::runtime(format), value) + (good ? "" : " MISSED");
}

std::string at_least(double value, double target) {
    missed += value < target;
    return fmt::format("{:.2f}", value) + (value < target ? " MISSED" : "");
}

void note(nlohmann::ordered_json entry) {
    if (json) results.push_back(std::move(entry));
    std::fflush(stdout);
}

void print(const std::string& line) {
    fmt::print(json ? stderr : stdout, "{}\n", line);
    std::fflush(json ? stderr : stdout);
}

nlohmann::ordered_json entry_of(std::string_view part, const app::SimulationConfig& config, const Cell& cell) {
    return {{"part", part},
            {"size_bytes", config.size_bytes},
            {"loss_packet", config.loss},
            {"mean_burst_packets", config.mean_burst_packets},
            {"scheme", reliable::to_string(config.scheme)},
            {"runs", config.runs},
            {"mean_over_bound", cell.mean},
            {"p99_over_bound", cell.p99},
            {"p999_over_bound", cell.p999},
            {"max_over_bound", cell.report.max_s / cell.report.bound_s},
            {"extra_packets", cell.extra}};
}

void grid() {
    print("## auto over sizes and losses; of other schemes the mean over the bound\n");
    print(
        "| size | packet loss | runs | mean | p99.9 | extra packets | best other | sr | sr-nack | ec:32,8 | "
        "ec-xor:32,8 |");
    print("|---|---|---|---|---|---|---|---|---|---|---|");
    for (const std::uint64_t size : kSizes)
        for (const double loss : kLosses) {
            const auto config = config_of(size, loss, "auto");
            const Cell cell = run(config);
            note(entry_of("grid", config, cell));
            double best = 1e9;
            std::string others;
            for (const char* name : {"sr", "sr-nack", "ec:32,8", "ec-xor:32,8"}) {
                auto other_config = config_of(size, loss, name);
                // A mean of large messages needs fewer runs than a tail.
                other_config.runs = std::max(1u, other_config.runs / (size >= kGiB ? 10 : 4));
                const Cell other = run(other_config);
                note(entry_of("grid", other_config, other));
                best = std::min(best, other.mean);
                others += fmt::format(" {:.3f} |", other.mean);
            }
            const bool heavy = loss > 1e-2;
            // Up to 1e-2: within 3% of the bound in the mean and 6% at p99.9; bytes are limited.
            const double most_extra = heavy ? 10 : size <= 128 * kKiB ? 0.4 : loss > 1e-3 ? 0.2 : 0.1;
            print(fmt::format("| {} | {:g} | {} | {} | {} | {} | {} |{}", format_size(size), loss, config.runs,
                              checked(cell.mean, heavy ? 1.10 : 1.03), checked(cell.p999, heavy ? 1e9 : 1.06),
                              checked(cell.extra * 100, most_extra * 100, "{:.2f}%"),
                              heavy ? fmt::format("{:.4f}", cell.mean / best) : checked(cell.mean / best, 1.02),
                              others));
        }
}

void bursts() {
    print("\n## auto under bursts (Gilbert-Elliott, average packet loss 1e-3) and reordering\n");
    print("| size | path | runs | mean | p99.9 | packets sent again |");
    print("|---|---|---|---|---|---|");
    for (const std::uint64_t size : {8 * kMiB, 128 * kMiB}) {
        for (const double burst : {8.0, 64.0}) {
            auto config = config_of(size, 1e-3, "auto");
            config.mean_burst_packets = burst;
            const Cell cell = run(config);
            note(entry_of("bursts", config, cell));
            print(fmt::format("| {} | bursts of {:g} | {} | {:.4f} | {} | {:.2f} |", format_size(size), burst,
                              config.runs, cell.mean, checked(cell.p999, 1.15), cell.report.packets_resent));
        }
        auto config = config_of(size, 0, "auto");
        config.reorder_probability = 0.05;
        config.reorder_delay = Duration::from_milliseconds(1);
        const Cell cell = run(config);
        note(entry_of("reordering", config, cell));
        const double own = static_cast<double>(size) / config.mtu_bytes;
        print(fmt::format("| {} | 5% of packets late by up to 1 ms | {} | {:.4f} | {:.4f} | {} |", format_size(size),
                          config.runs, cell.mean, cell.p999,
                          checked(cell.report.packets_resent / own * 100, 1, "{:.3f}%")));
    }
}

// One connection, a hundred messages of 128 MiB; the loss goes from 1e-5 to 1e-2 and back twice.
void jumps() {
    auto config = config_of(128 * kMiB, 1e-5, "auto");
    config.messages = 100;
    config.runs = static_cast<std::uint32_t>(std::max(1.0, std::round(50 * effort)));
    const double message = 0.0278;  // s: a message takes about this long
    std::vector<double> at = {20.3, 40.4, 60.3, 80.6};
    double loss = 1e-5;
    for (const double m : at) {
        loss = loss < 1e-3 ? 1e-2 : 1e-5;
        config.schedule.push_back({.at = Duration::from_seconds(m * message), .loss = link::Loss{.probability = loss}});
    }
    const Cell cell = run(config);
    // The first message that meets a change, and the one after it when the change falls late in a round trip, do not
    // count: "from the second message after each jump".
    std::vector<double> settled, hit;
    for (std::size_t run_number = 0; run_number < config.runs; ++run_number) {
        double start = 0;
        std::size_t next = 0;
        int since = 2;
        for (std::uint32_t i = 0; i < config.messages; ++i) {
            const double took = cell.report.runs[run_number * config.messages + i].completion.seconds();
            bool jumped = false;
            while (next < at.size() && at[next] * message < start + took) ++next, jumped = true;
            since = jumped ? 0 : since + 1;
            (since >= 2 ? settled : hit).push_back(took);
            start += took;
        }
    }
    std::ranges::sort(settled);
    std::ranges::sort(hit);
    const double bound = cell.report.bound_s;
    print("\n## auto on one connection: 100 messages of 128 MiB, packet loss 1e-5, jumping to 1e-2 and back twice\n");
    print("| messages | number | p99 | worst |");
    print("|---|---|---|---|");
    print(fmt::format("| from the second after a jump | {} | {} | {:.4f} |", settled.size(),
                      checked(app::percentile(settled, 0.99) / bound, 1.10), settled.back() / bound));
    print(fmt::format("| at a jump and right after | {} | {:.4f} | {:.4f} |", hit.size(),
                      app::percentile(hit, 0.99) / bound, hit.back() / bound));
    print(fmt::format("\nParity sent: {:.2f}% of the data.", 100 * cell.report.packets_parity / 32768));
    note({{"part", "jumps"},
          {"p99_over_bound_settled", app::percentile(settled, 0.99) / bound},
          {"worst_over_bound_settled", settled.back() / bound},
          {"p99_over_bound_at_jump", app::percentile(hit, 0.99) / bound}});
}

// What the published comparison shows: erasure coding against selective repeat with a timeout of 3 RTT. Chunks of one
// packet, so that chunk loss is packet loss.
void published() {
    print("\n## ec:32,8 over sr (RTO 3 RTT), chunks of one 4 KiB packet\n");
    print("| size | packet loss | sr mean | ec mean | mean ratio | p99.9 ratio | ec-xor:32,8 mean |");
    print("|---|---|---|---|---|---|---|");
    double best_mean = 0, best_p999 = 0;
    for (const std::uint64_t size : {kMiB, 8 * kMiB, 128 * kMiB, kGiB, 8 * kGiB})
        for (const double loss : {1e-6, 1e-5, 1e-4, 1e-3, 1e-2}) {
            std::map<std::string, Cell> cells;
            for (const char* name : {"sr", "ec:32,8", "ec-xor:32,8"}) {
                auto config = config_of(size, loss, name);
                config.chunk_bytes = config.mtu_bytes;
                config.runs = std::max(1u, config.runs / (size >= kGiB ? 10 : 1));
                cells.emplace(name, run(config));
                note(entry_of("published", config, cells.at(name)));
            }
            const Cell &sr = cells.at("sr"), &ec = cells.at("ec:32,8"), &exclusive = cells.at("ec-xor:32,8");
            best_mean = std::max(best_mean, sr.mean / ec.mean);
            if (size <= 128 * kMiB) best_p999 = std::max(best_p999, sr.p999 / ec.p999);
            print(fmt::format("| {} | {:g} | {:.3f} | {:.3f} | {:.2f} | {:.2f} | {:.3f} |", format_size(size), loss,
                              sr.mean, ec.mean, sr.mean / ec.mean, sr.p999 / ec.p999, exclusive.mean));
            if (size == 8 * kGiB && loss == 1e-6 && sr.mean >= ec.mean) {
                ++missed;
                print("MISSED: sr does not beat ec at 8 GiB and 1e-6");
            }
        }
    // Of fewer runs than a thousand, p99.9 is whatever the worst of them met.
    print(fmt::format("\nLargest gains of ec:32,8: {} in the mean (at least 5.5), {} at p99.9 ({}).",
                      at_least(best_mean, 5.5), effort < 1 ? fmt::format("{:.2f}", best_p999) : at_least(best_p999, 9),
                      effort < 1 ? "asked for with all runs only: at least 9" : "at least 9"));
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<std::string_view> parts;
    for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word == "--json") {
            json = true;
        } else if (word == "--effort" && i + 1 < argc) {
            const std::string_view text = argv[++i];
            double percent = 0;
            if (std::from_chars(text.data(), text.data() + text.size(), percent).ec != std::errc{} || !(percent > 0)) {
                fmt::print(stderr, "reliability_grid: --effort takes a percentage above 0, not '{}'\n", text);
                return 2;
            }
            effort = percent / 100;
        } else if (word == "grid" || word == "bursts" || word == "jumps" || word == "published") {
            parts.push_back(word);
        } else {
            fmt::print(word == "--help" ? stdout : stderr,
                       "usage: reliability_grid [grid] [bursts] [jumps] [published] [--effort PERCENT] [--json]\n");
            return word == "--help" ? 0 : 2;
        }
    }
    if (parts.empty()) parts = {"grid", "bursts", "jumps", "published"};
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string_view part : parts) {
        if (part == "grid") grid();
        if (part == "bursts") bursts();
        if (part == "jumps") jumps();
        if (part == "published") published();
    }
    if (json) fmt::print("{}\n", results.dump(2));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    fmt::print(stderr, "\n{} figures missed their target; {:.0f} s\n", missed, took.count());
    return missed == 0 ? 0 : 1;
}
