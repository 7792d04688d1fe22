// `auto` over a sample of the grid that `make experiments` runs whole: sizes from 128 KiB to 8 GiB at 400 Gbit/s and
// 25 ms, packets of 4 KiB, loss of packets. Every run is a connection that knows the rate and the round trip and
// nothing else. The bound is M * T_inj / (1 - p) + RTT.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "app/simulate.hpp"

namespace farhaul::app {
namespace {

constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

/// FARHAUL_SEEDS (of 10,000) scales the number of runs down, for builds that are slow.
std::uint32_t runs_of(std::uint32_t full) {
    const char* seeds = std::getenv("FARHAUL_SEEDS");
    const std::uint64_t percent =
        seeds == nullptr ? 100 : std::clamp<std::uint64_t>(std::strtoull(seeds, nullptr, 10) / 100, 1, 100);
    return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, full * percent / 100));
}

SimulationConfig config_of(std::uint64_t size, double loss, std::uint32_t runs) {
    SimulationConfig config;
    config.size_bytes = size;
    config.loss = loss;
    config.scheme = reliable::Scheme::kAuto;
    config.runs = runs_of(runs);
    return config;
}

double extra_packets(const SimulationConfig& config, const SimulationReport& report) {
    return report.packets_sent / (static_cast<double>(config.size_bytes) / config.mtu_bytes) - 1;
}

struct Cell {
    std::uint64_t size;
    std::uint32_t runs;
};

class AutoGrid : public ::testing::TestWithParam<Cell> {};
INSTANTIATE_TEST_SUITE_P(Sizes, AutoGrid,
                         ::testing::Values(Cell{128 * kKiB, 1000}, Cell{kMiB, 1000}, Cell{8 * kMiB, 400},
                                           Cell{128 * kMiB, 60}, Cell{kGiB, 3}, Cell{8 * kGiB, 1}),
                         [](const auto& cell) { return fmt::format("{}KiB", cell.param.size / kKiB); });

TEST_P(AutoGrid, StaysCloseToTheBound) {
    for (const double loss : {0.0, 1e-5, 1e-3, 1e-2}) {
        const auto config = config_of(GetParam().size, loss, GetParam().runs);
        const auto report = simulate(config);
        ASSERT_TRUE(report) << report.error().message;
        EXPECT_LE(report->mean_s, report->bound_s * 1.03) << loss;
        EXPECT_LE(report->p999_s, report->bound_s * 1.06) << loss;
        EXPECT_LE(extra_packets(config, *report), config.size_bytes < kMiB ? 0.4 : loss > 1e-3 ? 0.2 : 0.1) << loss;
    }
}

TEST(Auto, HeavyLossIsWithinTenPercent) {
    for (const auto [size, runs] :
         {Cell{128 * kKiB, 1000}, Cell{kMiB, 1000}, Cell{8 * kMiB, 400}, Cell{128 * kMiB, 60}}) {
        const auto report = simulate(config_of(size, 5e-2, runs));
        ASSERT_TRUE(report) << report.error().message;
        // Few runs see few of the messages that need a second round.
        const double sampling = 3 * report->standard_error_s;
        EXPECT_LE(report->mean_s - sampling, report->bound_s * 1.10) << size;
    }
}

TEST(Auto, BurstsAreSpreadOverTheBlocks) {
    for (const double burst : {8.0, 64.0})
        for (const auto [size, runs] : {Cell{8 * kMiB, 500}, Cell{128 * kMiB, 60}}) {
            auto config = config_of(size, 1e-3, runs);
            config.mean_burst_packets = burst;
            const auto report = simulate(config);
            ASSERT_TRUE(report) << report.error().message;
            // One message of 8 MiB in 700 meets a burst that is longer than all of its parity.
            EXPECT_LE(report->p99_s, report->bound_s * 1.15) << size << " " << burst;
            EXPECT_LE(report->mean_s, report->bound_s * 1.03);
        }
}

TEST(Auto, ReorderingAloneResendsNothing) {
    for (const std::uint64_t size : {8 * kMiB, 128 * kMiB}) {
        auto config = config_of(size, 0, 60);
        config.reorder_probability = 0.05;
        config.reorder_delay = Duration::from_milliseconds(1);
        const auto report = simulate(config);
        ASSERT_TRUE(report) << report.error().message;
        EXPECT_LE(report->packets_resent, static_cast<double>(size) / config.mtu_bytes * 0.01);
        EXPECT_LE(report->mean_s, report->bound_s * 1.06);
    }
}

// Loss that goes from 1e-5 to 1e-2 and back while messages of 128 MiB are sent one after the other.
TEST(Auto, FollowsALossThatJumps) {
    auto config = config_of(128 * kMiB, 1e-5, 1);
    config.messages = 60;
    const auto message = Duration::from_microseconds(27'800);
    config.schedule = {{.at = message * 20, .loss = link::Loss{.probability = 1e-2}},
                       {.at = message * 40, .loss = link::Loss{.probability = 1e-5}}};
    const auto report = simulate(config);
    ASSERT_TRUE(report) << report.error().message;
    ASSERT_EQ(report->runs.size(), 60u);
    Duration start;
    for (std::size_t i = 0; i < report->runs.size(); ++i) {
        const Duration took = report->runs[i].completion;
        const auto near = [&](Duration change) { return start + took > change && start < change + message * 2; };
        if (!near(config.schedule[0].at) && !near(config.schedule[1].at)) {
            EXPECT_LE(took.seconds(), report->bound_s * 1.10) << "message " << i;
        }
        start = start + took;
    }
    // And it does not pay for a bad path when the path is good.
    EXPECT_LT(static_cast<double>(report->runs[19].packets_parity), 0.05 * 32'768);
    EXPECT_GT(report->runs[35].packets_parity, report->runs[19].packets_parity);
}

// A block of 32 + 8 packets fails as often as the closed form says.
TEST(Coded, BlocksFailAsTheFormulaSays) {
    SimulationConfig config;
    config.size_bytes = 128 * kMiB;
    config.scheme = *reliable::parse_scheme("ec:32,8");
    config.chunk_bytes = config.mtu_bytes;
    config.loss = 0.1;
    config.runs = runs_of(20);
    const auto report = simulate(config);
    ASSERT_TRUE(report) << report.error().message;
    // P(more than 8 of 40 are lost at 0.1) = 0.01545; such a block has on average 7.7 lost data packets of its own, and
    // each of them is sent again 1 / (1 - 0.1) times.
    double failure = 0, lost_data = 0;
    for (int lost = 9; lost <= 40; ++lost) {
        const double p = std::exp(std::lgamma(41) - std::lgamma(lost + 1) - std::lgamma(41 - lost) +
                                  lost * std::log(0.1) + (40 - lost) * std::log(0.9));
        failure += p;
        lost_data += p * lost * 32 / 40;
    }
    EXPECT_NEAR(failure, 0.01545, 1e-4);
    const double blocks = 1024.0 * config.runs;
    const double expected = blocks * lost_data / 0.9;
    double resent = 0;
    for (const auto& run : report->runs) resent += static_cast<double>(run.packets_resent);
    // The number of failed blocks is binomial; each brings about 7.5 packets.
    EXPECT_NEAR(resent, expected, expected * 4.5 / std::sqrt(blocks * failure));
}

}  // namespace
}  // namespace farhaul::app
