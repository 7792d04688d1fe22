#include "plan/completion.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "oracle.hpp"
#include "plan/loss.hpp"

namespace farhaul::plan {
namespace {

TEST(SelectiveRepeatModel, MatchesTheReferenceValues) {
    const auto rows = read_table("selective_repeat.csv");
    ASSERT_EQ(rows.size(), 35u);
    unsigned quantiles = 0;
    for (const auto& row : rows) {
        const double injection = row[1] * 8 / row[2];
        const SelectiveRepeatModel model{row[0] / row[1], injection, row[4] * row[3], row[3], row[5]};
        const auto name = testing::Message() << row[0] << " bytes, RTO " << row[4] << " RTT, chunk loss " << row[5];
        EXPECT_NEAR(model.mean(), row[6], 0.01 * row[6]) << name;
        if (model.chunks * injection >= model.timeout) continue;
        EXPECT_NEAR(model.quantile(0.5), row[7], 1e-3 * row[7]) << name;
        EXPECT_NEAR(model.quantile(0.99), row[8], 1e-3 * row[8]) << name;
        EXPECT_NEAR(model.quantile(0.999), row[9], 1e-3 * row[9]) << name;
        ++quantiles;
    }
    EXPECT_GE(quantiles, 26u);
}

/// E[T] by adding up the staircase step by step.
double mean_by_steps(const SelectiveRepeatModel& model) {
    std::vector<double> steps;
    const double again = model.timeout + model.injection;
    for (unsigned n = 0; n < 60; ++n) {
        for (double i = 1; i <= model.chunks; ++i) steps.push_back(i * model.injection + n * again + model.rtt);
    }
    std::ranges::sort(steps);
    double mean = 0, before = 0;
    for (const double t : steps) {
        const double cdf = std::exp(model.log_cdf(t));
        mean += t * (cdf - before);
        before = cdf;
    }
    return mean;
}

TEST(SelectiveRepeatModel, MeanIsTheSumOverTheStaircase) {
    for (const double chunks : {1.0, 2.0, 7.0, 100.0, 333.0}) {
        // Timeouts longer and shorter than the injection of the message, with steps that coincide and that do not.
        for (const double timeout : {0.5, 1.0, 9.3, 50.0, 50.25, 1000.7}) {
            for (const double p : {1e-6, 1e-3, 0.1, 0.5}) {
                const SelectiveRepeatModel model{chunks, 1.0, timeout, 10.0, p};
                const double expected = mean_by_steps(model);
                EXPECT_NEAR(model.mean(), expected, 1e-9 * expected) << chunks << " " << timeout << " " << p;
            }
        }
    }
}

TEST(SelectiveRepeatModel, WithoutLossItTakesTheInjectionAndARoundTrip) {
    const SelectiveRepeatModel model{1000, 1e-6, 0.075, 0.025, 0};
    EXPECT_DOUBLE_EQ(model.mean(), 0.026);
    EXPECT_DOUBLE_EQ(model.quantile(0.999), 0.026);
}

TEST(SelectiveRepeatModel, LargeMessagesAreQuickAndSane) {
    const SelectiveRepeatModel model{2097152, 81.92e-9, 0.075, 0.025, 1e-2};  // 8 GiB of 4 KiB at 400 Gbit/s
    EXPECT_GT(model.mean(), model.chunks * model.injection + model.rtt);
    EXPECT_GT(model.quantile(0.999), model.mean());
    EXPECT_LT(model.quantile(0.999), 1.0);
}

ErasureModel coded(double chunks, unsigned k, unsigned m, double p, double injection = 81.92e-9) {
    const double blocks = std::ceil(chunks / k);
    return {
        {chunks, injection, 0.075, 0.025, p}, blocks * m, blocks, static_cast<double>(k), mds_failure(k, m, p), 0.025};
}

TEST(ErasureModel, WithoutFailuresParityIsAllItCosts) {
    const ErasureModel model = coded(32768, 32, 8, 1e-4);
    EXPECT_NEAR(model.mean(), 32768 * 1.25 * 81.92e-9 + 0.025, 1e-12);
    EXPECT_NEAR(model.published_mean(), model.mean(), 1e-12);
    EXPECT_NEAR(model.quantile(0.999), model.mean(), 1e-9);
}

TEST(ErasureModel, AgreesWithThePublishedFormWhereFailuresAreFewOrMany) {
    for (const double p : {0.02, 0.05, 0.1, 0.2}) {
        const ErasureModel model = coded(32768, 32, 8, p);
        EXPECT_NEAR(model.mean(), model.published_mean(), 0.05 * model.mean()) << p;
        EXPECT_GE(model.quantile(0.9999), model.base());
    }
}

// The published comparison: 400 Gbit/s, 25 ms, RTO of 3 RTT, 4 KiB chunks.
TEST(ErasureModel, GainOverSelectiveRepeat) {
    double best_mean = 0, best_tail = 0;
    for (const double size : {0x1p17, 0x1p20, 0x1p23, 0x1p27, 0x1p30}) {
        for (const double p : {1e-6, 1e-5, 1e-4, 1e-3, 1e-2}) {
            const ErasureModel ec = coded(size / 4096, 32, 8, p);
            best_mean = std::max(best_mean, ec.repeat.mean() / ec.mean());
            best_tail = std::max(best_tail, ec.repeat.quantile(0.999) / ec.quantile(0.999));
        }
    }
    EXPECT_NEAR(best_mean, 6.2, 0.1);
    EXPECT_NEAR(best_tail, 9.9, 0.1);
    // And where it does not pay.
    const ErasureModel large = coded(0x1p33 / 4096, 32, 8, 1e-6);
    EXPECT_LT(large.repeat.mean(), large.mean());
}

}  // namespace
}  // namespace farhaul::plan
