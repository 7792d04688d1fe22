#include "link/options.hpp"

#include <gtest/gtest.h>

namespace farhaul::link {
namespace {

TEST(LinkOptions, Reorder) {
    auto r = parse_reorder("0.01:5ms");
    ASSERT_TRUE(r.has_value());
    EXPECT_EQ(r->probability, 0.01);
    EXPECT_EQ(r->delay, Duration::from_milliseconds(5));
    EXPECT_TRUE(parse_reorder("0:0").has_value());
    EXPECT_EQ(parse_reorder("17%:64us")->probability, 0.17);
    for (const char* text : {"", "0.1", "0.1:", ":5ms", "2:5ms", "0.1:0", "0.1:5", "0.1:5ms:3"})
        EXPECT_FALSE(parse_reorder(text).has_value()) << text;
}

TEST(LinkOptions, Burst) {
    EXPECT_EQ(*parse_burst("1"), 1);
    EXPECT_EQ(*parse_burst("2.5"), 2.5);
    for (const char* text : {"", "0", "0.5", "-3", "x", "3x", "nan", "inf"})
        EXPECT_FALSE(parse_burst(text).has_value()) << text;
}

TEST(LinkOptions, DefaultQueueIsABandwidthDelayProduct) {
    EXPECT_EQ(default_queue_bytes(BitRate::from_gigabits(1), Duration::from_milliseconds(25)), 3'125'000u);
    EXPECT_EQ(default_queue_bytes(BitRate::from_gigabits(0.01), Duration::from_milliseconds(1)), 1u << 20);
    EXPECT_EQ(default_queue_bytes(BitRate(), Duration::from_milliseconds(1)), 0u);
}

}  // namespace
}  // namespace farhaul::link
