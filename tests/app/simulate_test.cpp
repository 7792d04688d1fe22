#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "app/simulate.hpp"

namespace farhaul::app {
namespace {

SimulationConfig small() {
    SimulationConfig config;
    config.size_bytes = 1 << 20;
    config.round_trip = Duration::from_milliseconds(10);
    return config;
}

TEST(Simulate, PercentilesAreNearestRank) {
    std::vector<double> sorted;
    for (int i = 1; i <= 1000; ++i) sorted.push_back(i);
    EXPECT_EQ(percentile(sorted, 0.5), 500);
    EXPECT_EQ(percentile(sorted, 0.99), 990);
    EXPECT_EQ(percentile(sorted, 0.999), 999);
    EXPECT_EQ(percentile({7}, 0.999), 7);
    EXPECT_EQ(percentile({1, 2}, 0.5), 1);
    EXPECT_EQ(percentile({1, 2}, 0.51), 2);
}

TEST(Simulate, TheBoundCountsPayloadOverheadLossAndOneRoundTrip) {
    SimulationConfig config = small();
    config.rate = BitRate::from_gigabits(8);  // 1e9 bytes per second
    config.size_bytes = 10'000;               // three packets
    config.overhead_bytes = 100;
    config.loss = 0.5;
    EXPECT_DOUBLE_EQ(completion_bound_s(config), 2 * 10'300e-9 + 0.01);
    config.rate = BitRate();
    EXPECT_DOUBLE_EQ(completion_bound_s(config), 0.01);
}

TEST(Simulate, WithoutLossAWriteTakesExactlyInjectionAndOneRoundTrip) {
    for (const auto scheme :
         {reliable::Scheme::kGoBackN, reliable::Scheme::kSelectiveRepeat, reliable::Scheme::kSelectiveRepeatNack}) {
        SimulationConfig config = small();
        config.scheme = scheme;
        const auto run = simulate_run(config, 0);
        ASSERT_TRUE(run) << run.error().message;
        // The ack's few bytes on the line are the only excess.
        EXPECT_GE(run->front().completion.seconds(), completion_bound_s(config) - 1e-9);
        EXPECT_LE(run->front().completion.seconds(), completion_bound_s(config) + 100e-9);
        EXPECT_EQ(run->front().packets_sent, 256u);
        EXPECT_EQ(run->front().packets_resent, 0u);
    }
}

TEST(Simulate, OverheadAndRateSetTheTime) {
    SimulationConfig config = small();
    config.rate = BitRate::from_gigabits(1);
    config.mtu_bytes = 1024;
    config.chunk_bytes = 16 * 1024;
    config.overhead_bytes = 76;
    const auto run = simulate_run(config, 0);
    ASSERT_TRUE(run) << run.error().message;
    EXPECT_NEAR(run->front().completion.seconds(), 1024 * 1100 * 8e-9 + 0.01, 10e-6);
}

TEST(Simulate, MoreResultsThanMemoryHoldsAreRefused) {
    SimulationConfig config = small();
    config.runs = 4'294'967'295;
    EXPECT_FALSE(validate(config));
    config.runs = 10'001;
    config.messages = 1000;
    EXPECT_FALSE(validate(config));
    config.runs = 10'000;
    EXPECT_TRUE(validate(config));
}

TEST(Simulate, ALongMessageIsSplit) {
    SimulationConfig config = small();
    config.size_bytes = 40ull << 20;
    config.mtu_bytes = 64;  // 16 MiB per message
    config.chunk_bytes = 4096;
    const auto run = simulate_run(config, 0);
    ASSERT_TRUE(run) << run.error().message;
    EXPECT_EQ(run->front().packets_sent, (40u << 20) / 64);
    // What a message's start and end cost must not show.
    EXPECT_LE(run->front().completion.seconds(), completion_bound_s(config) * 1.01);
}

TEST(Simulate, AnEmptyWriteEndsAfterARoundTrip) {
    SimulationConfig config = small();
    config.size_bytes = 0;
    const auto run = simulate_run(config, 0);
    ASSERT_TRUE(run) << run.error().message;
    EXPECT_EQ(run->front().packets_sent, 0u);
    EXPECT_GE(run->front().completion.seconds(), 0.01);
    EXPECT_LE(run->front().completion.seconds(), 0.02);
}

TEST(Simulate, TheResultDoesNotDependOnTheThreadsButOnTheSeed) {
    SimulationConfig config = small();
    config.loss = 0.01;
    config.mean_burst_packets = 2;
    config.reorder_probability = 0.01;
    config.reorder_delay = Duration::from_milliseconds(1);
    config.jitter = Duration::from_microseconds(10);
    config.runs = 40;
    config.threads = 1;
    const auto one = simulate(config);
    config.threads = 7;
    const auto seven = simulate(config);
    config.seed = 2;
    const auto other = simulate(config);
    ASSERT_TRUE(one && seven && other);
    ASSERT_EQ(one->runs.size(), 40u);
    for (std::size_t i = 0; i < 40; ++i) {
        EXPECT_EQ(one->runs[i].completion, seven->runs[i].completion);
        EXPECT_EQ(one->runs[i].packets_resent, seven->runs[i].packets_resent);
    }
    EXPECT_EQ(one->mean_s, seven->mean_s);
    EXPECT_NE(one->mean_s, other->mean_s);
    EXPECT_LE(one->p50_s, one->p99_s);
    EXPECT_EQ(one->p999_s, one->max_s);
}

TEST(Simulate, SchemesRankAsExpectedUnderLoss) {
    SimulationConfig config = small();
    config.size_bytes = 16 << 20;
    config.loss = 1e-3;
    config.runs = 20;
    double mean[3];
    for (const auto scheme :
         {reliable::Scheme::kSelectiveRepeatNack, reliable::Scheme::kSelectiveRepeat, reliable::Scheme::kGoBackN}) {
        config.scheme = scheme;
        const auto report = simulate(config);
        ASSERT_TRUE(report) << report.error().message;
        EXPECT_GE(report->min_s, completion_bound_s(small()));
        mean[scheme == reliable::Scheme::kGoBackN           ? 2
             : scheme == reliable::Scheme::kSelectiveRepeat ? 1
                                                            : 0] = report->mean_s;
    }
    EXPECT_LT(mean[0], mean[1]);
    EXPECT_LT(mean[1], mean[2]);
}

TEST(Simulate, TheTraceTellsEveryPacketOfTheFirstRun) {
    SimulationConfig config = small();
    config.loss = 0.02;
    config.runs = 3;
    config.threads = 1;
    std::uint64_t sent = 0, lost = 0, delivered = 0;
    config.observer = [&](const wire::SimEvent& event) {
        sent += event.kind == wire::SimEvent::Kind::kSend && event.endpoint == 0;
        lost += event.kind == wire::SimEvent::Kind::kLost && event.endpoint == 0;
        delivered += event.kind == wire::SimEvent::Kind::kDeliver && event.endpoint == 1;
    };
    const auto report = simulate(config);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(sent + lost, report->runs[0].packets_sent);
    EXPECT_GE(delivered, 256u);
    EXPECT_LE(delivered, sent);
    EXPECT_GT(lost, 0u);
}

TEST(Simulate, ImpossibleRequestsAreRefusedWithAReason) {
    const auto refused = [](auto change) {
        SimulationConfig config = small();
        change(config);
        const auto report = simulate(config);
        return !report && report.error().code == ErrorCode::kInvalidArgument && !report.error().message.empty();
    };
    EXPECT_TRUE(refused([](SimulationConfig& c) { c.loss = 1; }));
    EXPECT_TRUE(refused([](SimulationConfig& c) { c.mtu_bytes = 0; }));
    EXPECT_TRUE(refused([](SimulationConfig& c) { c.chunk_bytes = 5'000; }));
    EXPECT_TRUE(refused([](SimulationConfig& c) { c.chunk_bytes = 65 * 4096; }));
    EXPECT_TRUE(refused([](SimulationConfig& c) { c.runs = 0; }));
    EXPECT_TRUE(refused([](SimulationConfig& c) { c.rto_rtts = 0; }));
    EXPECT_TRUE(refused([](SimulationConfig& c) { c.mean_burst_packets = 0.5; }));
    EXPECT_TRUE(refused([](SimulationConfig& c) { c.reorder_probability = 0.1; }));
    EXPECT_TRUE(refused([](SimulationConfig& c) { c.size_bytes = 1ull << 60; }));
}

}  // namespace
}  // namespace farhaul::app
