// Completion times of the real protocol in virtual time against values of the published completion-time model
// (data/selective_repeat.csv: chunks i = 1..M lost independently with probability P, X_i = i T_inj + O (Y_i - 1), O =
// RTO + T_inj, Y_i geometric, T = max X_i + RTT).
//
// A packet is a chunk here: under loss per chunk that is the same process with fewer packets to simulate; one test
// checks that.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "app/simulate.hpp"

namespace farhaul::app {
namespace {

struct Row {
    std::uint64_t size, chunk;
    double rate, rtt, rto, loss, mean, p50, p99, p999;
    double injection() const { return static_cast<double>(size) * 8 / rate; }  // M * T_inj
    std::uint64_t chunks() const { return (size + chunk - 1) / chunk; }
    std::string name() const {
        return fmt::format("{} MiB, chunk {} KiB, {:g} Gbit/s, {:g} ms, RTO {:g}, P {:g}",
                           static_cast<double>(size) / 1048576, chunk / 1024, rate / 1e9, rtt * 1e3, rto, loss);
    }
};

std::vector<Row> rows() {
    std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "data" / "selective_repeat.csv");
    std::vector<Row> all;
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
        std::replace(line.begin(), line.end(), ',', ' ');
        std::istringstream fields(line);
        Row row{};
        if (fields >> row.size >> row.chunk >> row.rate >> row.rtt >> row.rto >> row.loss >> row.mean >> row.p50 >>
            row.p99 >> row.p999)
            all.push_back(row);
    }
    return all;
}

/// FARHAUL_SEEDS (of 10,000) scales the number of runs down, for builds that are slow.
std::uint64_t effort_percent() {
    const char* seeds = std::getenv("FARHAUL_SEEDS");
    return seeds == nullptr ? 100 : std::clamp<std::uint64_t>(std::strtoull(seeds, nullptr, 10) / 100, 1, 100);
}

SimulationConfig config_of(const Row& row, reliable::Scheme scheme) {
    SimulationConfig config;
    config.size_bytes = row.size;
    config.rate = BitRate::from_bits_per_second(static_cast<std::uint64_t>(row.rate));
    config.round_trip = Duration::from_seconds(row.rtt);
    config.loss = row.loss;
    config.loss_unit = LossUnit::kChunk;
    config.scheme = scheme;
    config.rto_rtts = row.rto;
    config.mtu_bytes = config.chunk_bytes = static_cast<std::uint32_t>(row.chunk);
    config.seed = 1;
    // 1000 runs, but where messages are huge: about 2 million chunks per row.
    const std::uint64_t runs = std::clamp<std::uint64_t>(2'000'000 / row.chunks(), 100, 1000);
    config.runs = static_cast<std::uint32_t>(std::max<std::uint64_t>(runs * effort_percent() / 100, 50));
    return config;
}

/// Four standard errors of the mean. Where all runs together expect only a few losses, the sample knows little of its
/// own spread: a run has a loss or not, and one costs a timeout.
double four_errors(const Row& row, const SimulationReport& report) {
    const double runs = static_cast<double>(report.runs.size());
    const double losses_per_run = static_cast<double>(row.chunks()) * row.loss;
    if (losses_per_run * runs > 25) return 4 * report.standard_error_s;
    return 4 * row.rto * row.rtt * std::sqrt(losses_per_run / runs);
}

void print(const Row& row, const SimulationReport& report) {
    fmt::print("{:<64} model {:.6f} s, measured {:.6f} +- {:.6f} s, {:+.2f}%\n", row.name(), row.mean, report.mean_s,
               report.standard_error_s, 100 * (report.mean_s / row.mean - 1));
}

TEST(Oracle, TheFileIsThere) {
    ASSERT_EQ(rows().size(), 35u);
    EXPECT_EQ(rows().front().size, 131'072u);
}

TEST(Oracle, SelectiveRepeatAgreesWithTheModelWhereTheModelHolds) {
    int compared = 0;
    for (const Row& row : rows()) {
        if (row.rto != 3 || row.injection() >= row.rto * row.rtt || row.chunk > 64 * 4096) continue;
        const auto report = simulate(config_of(row, reliable::Scheme::kSelectiveRepeat));
        ASSERT_TRUE(report) << report.error().message;
        const double allowed = std::max(0.05 * row.mean, four_errors(row, *report));
        print(row, *report);
        EXPECT_NEAR(report->mean_s, row.mean, allowed) << row.name();
        ++compared;
    }
    EXPECT_EQ(compared, 17);
}

TEST(Oracle, SelectiveRepeatIsNeverBelowTheModelElsewhere) {
    for (const Row& row : rows()) {
        if (row.rto == 3 && row.injection() < row.rto * row.rtt && row.chunk <= 64 * 4096) continue;
        const auto report = simulate(config_of(row, reliable::Scheme::kSelectiveRepeat));
        ASSERT_TRUE(report) << report.error().message;
        print(row, *report);
        EXPECT_GE(report->mean_s, row.mean - four_errors(row, *report)) << row.name();
    }
}

// The model's RTO of one round trip is what negative acknowledgements would cost at best: the loss known the moment the
// packet should have come, the repair sent the moment that is heard. The real thing waits for the reordering window
// (1/16 of a round trip) before it believes that a packet is lost rather than late, and for the next ack (up to 1/64),
// per repair. The allowance is one eighth of a round trip for each round trip that the model spends on repairs.
TEST(Oracle, NegativeAcknowledgementsExceedTheirIdealByTheReorderingWindow) {
    int compared = 0;
    for (const Row& row : rows()) {
        if (row.rto != 1) continue;
        SimulationConfig config = config_of(row, reliable::Scheme::kSelectiveRepeatNack);
        config.rto_rtts = 3;  // the last resort, not what is measured
        const auto report = simulate(config);
        ASSERT_TRUE(report) << report.error().message;
        print(row, *report);
        const double error = four_errors(row, *report);
        const double repairs = row.mean - row.injection() - row.rtt;
        EXPECT_GE(report->mean_s, row.mean - error) << row.name();
        EXPECT_LE(report->mean_s, row.mean + repairs / 8 + error) << row.name();
        ++compared;
    }
    EXPECT_EQ(compared, 16);
}

TEST(Oracle, AChunkOfOnePacketIsTheSameModelAsOneOfSixteen) {
    Row row{.size = 32 << 20,
            .chunk = 65'536,
            .rate = 400e9,
            .rtt = 0.025,
            .rto = 3,
            .loss = 1e-3,
            .mean = 0,
            .p50 = 0,
            .p99 = 0,
            .p999 = 0};
    SimulationConfig config = config_of(row, reliable::Scheme::kSelectiveRepeat);
    const auto one = simulate(config);
    config.mtu_bytes = 4096;
    const auto sixteen = simulate(config);
    ASSERT_TRUE(one && sixteen);
    EXPECT_NEAR(sixteen->packets_sent / 16, one->packets_sent, 1e-3 * one->packets_sent);
    EXPECT_NEAR(one->mean_s, sixteen->mean_s, 4 * (one->standard_error_s + sixteen->standard_error_s));
}

}  // namespace
}  // namespace farhaul::app
