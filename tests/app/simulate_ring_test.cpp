// Rings in virtual time against what physics allows.
#include "app/simulate_ring.hpp"

#include <gtest/gtest.h>

namespace farhaul::app {
namespace {

RingSimulationConfig ring_of(std::uint32_t ranks, double loss, std::string_view scheme) {
    RingSimulationConfig config;
    config.ranks = ranks;
    config.base.size_bytes = 32 << 20;
    config.base.chunk_bytes = 4096;
    config.base.loss = loss;
    config.base.scheme = *reliable::parse_scheme(scheme);
    config.base.runs = 20;
    return config;
}

TEST(SimulateRing, AutoTakesLittleMoreThanTheFloor) {
    for (const std::uint32_t ranks : {2u, 4u, 8u, 16u})
        for (const double loss : {0., 1e-5, 1e-3, 1e-2}) {
            const auto report = simulate_ring(ring_of(ranks, loss, "auto"));
            ASSERT_TRUE(report) << report.error().message;
            EXPECT_LE(report->mean_s, 1.05 * report->floor_s) << ranks << " ranks, packet loss " << loss;
            EXPECT_LE(report->max_s, 1.10 * report->floor_s) << ranks << " ranks, packet loss " << loss;
            // Half a round trip per step is what light needs, segments or not.
            EXPECT_GE(report->min_s, (2 * ranks - 2) * 0.0125);
            EXPECT_GT(report->published_bound_s, report->floor_s);
        }
}

TEST(SimulateRing, CodingBeatsTimeoutsTheMoreTheLossierTheLink) {
    auto config = ring_of(4, 1e-2, "sr");
    config.base.runs = 10;
    const auto sr = simulate_ring(config);
    config.base.scheme = *reliable::parse_scheme("ec:32,8");
    const auto ec = simulate_ring(config);
    ASSERT_TRUE(sr && ec);
    EXPECT_GE(sr->mean_s, 5 * ec->mean_s);
}

TEST(SimulateRing, OneFarLinkIsPassedOnceInNSteps) {
    auto config = ring_of(4, 0, "auto");
    config.base.round_trip = Duration::from_milliseconds(2);
    config.hops[3] = {.round_trip = Duration::from_milliseconds(60),
                      .rate = {},
                      .loss = 1e-3,
                      .scheme = *reliable::parse_scheme("sr-nack")};
    const auto report = simulate_ring(config);
    ASSERT_TRUE(report) << report.error().message;
    // Six steps in a row meet it twice at most.
    EXPECT_NEAR(report->floor_s, 2 * 0.030 + 4 * 0.001 + 6 * (8 << 20) * 8 / 400e9, 1e-4);
    EXPECT_GE(report->min_s, 2 * 0.030 + 4 * 0.001);
}

TEST(SimulateRing, TheSameSeedGivesTheSameTimes) {
    const auto config = ring_of(5, 1e-2, "auto");
    const auto a = simulate_ring_run(config, 3), b = simulate_ring_run(config, 3), c = simulate_ring_run(config, 4);
    ASSERT_TRUE(a && b && c);
    EXPECT_EQ(a->front().completion, b->front().completion);
    EXPECT_EQ(a->front().packets_sent, b->front().packets_sent);
    EXPECT_NE(a->front().completion, c->front().completion);
}

TEST(SimulateRing, CombiningTakesItsTime) {
    auto config = ring_of(4, 0, "sr-nack");
    config.base.runs = 1;
    const auto fast = simulate_ring(config);
    config.reduce_bytes_per_second = 1e9;
    const auto slow = simulate_ring(config);
    ASSERT_TRUE(fast && slow);
    // Chunks are two segments of 4 MiB: the first goes on while the second is combined, so that three steps wait for
    // one each and the last for both.
    EXPECT_NEAR(slow->mean_s - fast->mean_s, 4 * (4 << 20) / 1e9, 1e-3);
}

TEST(SimulateRing, RefusesWhatItCannotDo) {
    auto config = ring_of(4, 0, "auto");
    config.hops[4] = {};
    EXPECT_FALSE(validate(config));
    EXPECT_FALSE(validate(ring_of(0, 0, "auto")));
    config = ring_of(4, 0, "auto");
    config.segment_bytes = 1000;
    EXPECT_FALSE(validate(config));
    config = ring_of(1, 0, "auto");
    config.base.runs = 1;
    EXPECT_TRUE(simulate_ring(config));
}

}  // namespace
}  // namespace farhaul::app
