#include "base/random.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "base/serializer.hpp"

namespace farhaul {
namespace {

TEST(Random, SameSeedSameStream) {
    Random a(42), b(42), c(43);
    bool differs = false;
    for (int i = 0; i < 100; ++i) {
        const auto value = a();
        EXPECT_EQ(value, b());
        differs = differs || value != c();
    }
    EXPECT_TRUE(differs);
}

TEST(Random, GeometricHasItsMean) {
    Random random(7);
    for (double p : {0.5, 0.1, 1e-3}) {
        double sum = 0;
        const int n = 200'000;
        for (int i = 0; i < n; ++i) sum += static_cast<double>(random.geometric(p));
        const double mean = (1 - p) / p, deviation = std::sqrt(1 - p) / p;
        EXPECT_NEAR(sum / n, mean, 5 * deviation / std::sqrt(n)) << p;
    }
    EXPECT_EQ(random.geometric(1.0), 0u);
}

TEST(Random, BelowIsBelow) {
    Random random(9);
    std::uint64_t seen = 0;
    for (int i = 0; i < 10'000; ++i) {
        const auto value = random.below(10);
        ASSERT_LT(value, 10u);
        seen |= 1ull << value;
    }
    EXPECT_EQ(seen, 0x3ffu);
}

TEST(Serializer, CarriesTheRemainder) {
    // 4096 bytes at 400 Gbit/s take 81.92 ns each: a million of them take exactly 81.92 ms.
    Serializer line(BitRate::from_gigabits(400));
    for (int i = 0; i < 1'000'000; ++i) line.send(TimePoint{}, 4096);
    EXPECT_EQ(line.idle_at().nanoseconds(), 81'920'000);
}

TEST(Serializer, IdleTimeIsNotSavedUp) {
    Serializer line(BitRate::from_bits_per_second(8'000'000'000));  // 1 byte per ns
    EXPECT_EQ(line.send(TimePoint::from_nanoseconds(100), 10).nanoseconds(), 110);
    EXPECT_EQ(line.send(TimePoint::from_nanoseconds(105), 10).nanoseconds(), 120);
    EXPECT_EQ(line.send(TimePoint::from_nanoseconds(500), 10).nanoseconds(), 510);
}

}  // namespace
}  // namespace farhaul
