#include "plan/loss.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "oracle.hpp"

namespace farhaul::plan {
namespace {

TEST(Loss, BlockFailuresMatchTheReferenceValues) {
    const auto rows = read_table("erasure.csv");
    ASSERT_EQ(rows.size(), 35u);
    for (const auto& row : rows) {
        const auto k = static_cast<unsigned>(row[0]), m = static_cast<unsigned>(row[1]);
        const auto name = testing::Message() << k << "," << m << " p " << row[2];
        const double mds = mds_failure(k, m, row[2]);
        EXPECT_NEAR(mds, row[4], 1e-6 * row[4]) << name;
        EXPECT_NEAR(any_failure(mds, row[3]), row[6], 1e-6 * row[6]) << name;
        if (!std::isnan(row[5])) {
            EXPECT_NEAR(1 - xor_failure(k, m, row[2]), row[5], 1e-6 * row[5]) << name;
        }
    }
}

TEST(Loss, Limits) {
    EXPECT_EQ(mds_failure(32, 8, 0), 0);
    EXPECT_EQ(mds_failure(32, 8, 1), 1);
    EXPECT_NEAR(mds_failure(1, 1, 0.5), 0.25, 1e-15);
    EXPECT_NEAR(mds_failure(200, 55, 0.9), 1, 1e-12);
    EXPECT_EQ(xor_failure(32, 8, 0), 0);
    EXPECT_EQ(xor_failure(32, 8, 1), 1);
    // With one parity the two codes are the same; a group of unequal size counts as such.
    EXPECT_NEAR(xor_failure(9, 1, 1e-3), mds_failure(9, 1, 1e-3), 1e-18);
    EXPECT_NEAR(xor_failure(5, 2, 1e-9), mds_failure(3, 1, 1e-9) + mds_failure(2, 1, 1e-9), 1e-26);
    EXPECT_EQ(any_failure(0, 100), 0);
    EXPECT_EQ(any_failure(1, 100), 1);
}

TEST(Loss, OfChunks) {
    EXPECT_NEAR(chunk_loss({1e-3, 1}, 16), 1 - std::pow(0.999, 16), 1e-12);
    EXPECT_EQ(chunk_loss({0, 1}, 16), 0);
    EXPECT_EQ(chunk_loss({1, 8}, 16), 1);
    EXPECT_NEAR(chunk_loss({1e-3, 8}, 1), 1e-3, 1e-12);
    EXPECT_LT(chunk_loss({1e-3, 8}, 16), chunk_loss({1e-3, 1}, 16));
}

TEST(Loss, WindowsLoseMoreThanStatedAsOftenAsStated) {
    Random random(5);
    for (const auto& [p, burst, packets] :
         {std::tuple{1e-3, 1.0, 5000.0}, {1e-3, 8.0, 20000.0}, {1e-2, 1.0, 100.0}, {1e-2, 4.0, 400'000.0}}) {
        const std::uint64_t limit = losses_exceeded_with({p, burst}, packets, 0.01);
        constexpr unsigned kRuns = 20'000;
        unsigned over = 0, at_or_over = 0;
        for (unsigned run = 0; run < kRuns; ++run) {
            // Bursts begin at random; each has a geometric length.
            std::uint64_t lost = 0;
            const double begin = p / burst;
            for (double at = static_cast<double>(random.geometric(begin)); at < packets;
                 at += 1 + static_cast<double>(random.geometric(begin))) {
                lost += 1 + random.geometric(1 / burst);
            }
            over += lost > limit;
            at_or_over += lost >= limit;
        }
        EXPECT_LE(over, kRuns * 0.01 * 1.3) << p << " " << burst;
        EXPECT_GE(at_or_over, kRuns * 0.01 * 0.7) << p << " " << burst;
    }
    EXPECT_EQ(losses_exceeded_with({0, 1}, 1e6, 1e-6), 0u);
    EXPECT_EQ(losses_exceeded_with({1, 1}, 10, 1e-6), 10u);
    EXPECT_LE(losses_exceeded_with({0.5, 64}, 10, 1e-6), 10u);
}

TEST(Loss, ParityNeeded) {
    EXPECT_EQ(parity_needed(32, {0, 1}, 1e-6, 8), 0u);
    const auto m = parity_needed(32, {1e-3, 1}, 1e-6, 100);
    ASSERT_TRUE(m);
    EXPECT_LE(mds_failure(32, *m, 1e-3), 1e-6);
    EXPECT_GT(mds_failure(32, *m - 1, 1e-3), 1e-6);
    EXPECT_GT(parity_needed(32, {1e-3, 8}, 1e-6, 200).value(), *m);
    EXPECT_FALSE(parity_needed(32, {0.5, 1}, 1e-6, 8));
}

}  // namespace
}  // namespace farhaul::plan
