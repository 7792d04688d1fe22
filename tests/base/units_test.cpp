#include "base/units.hpp"

#include <gtest/gtest.h>

namespace farhaul {
namespace {

TEST(Units, ReadsSizes) {
    EXPECT_EQ(parse_size("0").value(), 0u);
    EXPECT_EQ(parse_size("4096").value(), 4096u);
    EXPECT_EQ(parse_size("64KiB").value(), 65536u);
    EXPECT_EQ(parse_size("64k").value(), 65536u);
    EXPECT_EQ(parse_size("1.5MiB").value(), 1572864u);
    EXPECT_EQ(parse_size("1 GB").value(), 1000000000u);
    EXPECT_EQ(parse_size("8GiB").value(), 8ull << 30);
}

TEST(Units, RefusesWhatIsNoSize) {
    for (const char* text : {"", "x", "-1", "1XB", "1e300", "nan", "inf", "12 34", "0x10", "9999999TiB"})
        EXPECT_FALSE(parse_size(text)) << text;
}

TEST(Units, ReadsRates) {
    EXPECT_EQ(parse_rate("400G").value().bits_per_second(), 400'000'000'000u);
    EXPECT_EQ(parse_rate("1.5Mbit/s").value().bits_per_second(), 1'500'000u);
    EXPECT_EQ(parse_rate("10kbps").value().bits_per_second(), 10'000u);
    EXPECT_TRUE(parse_rate("0").value().unlimited());
    for (const char* text : {"", "G", "1X", "-1G", "1e30"}) EXPECT_FALSE(parse_rate(text)) << text;
}

TEST(Units, ReadsDurations) {
    EXPECT_EQ(parse_duration("25ms").value(), Duration::from_milliseconds(25));
    EXPECT_EQ(parse_duration("1.5s").value().nanoseconds(), 1'500'000'000);
    EXPECT_EQ(parse_duration("100ns").value().nanoseconds(), 100);
    EXPECT_EQ(parse_duration("0").value(), Duration{});
    EXPECT_EQ(parse_duration("2m").value(), Duration::from_milliseconds(120'000));
    for (const char* text : {"", "25", "-1ms", "ms", "1e20s"}) EXPECT_FALSE(parse_duration(text)) << text;
}

TEST(Units, ReadsProbabilities) {
    EXPECT_DOUBLE_EQ(parse_probability("1e-4").value(), 1e-4);
    EXPECT_DOUBLE_EQ(parse_probability("1%").value(), 0.01);
    for (const char* text : {"", "2", "-0.1", "101%", "p"}) EXPECT_FALSE(parse_probability(text)) << text;
}

TEST(Units, WritesWhatPeopleRead) {
    EXPECT_EQ(format_size(0), "0 B");
    EXPECT_EQ(format_size(128u << 20), "128 MiB");
    EXPECT_EQ(format_size(1536), "1.50 KiB");
    EXPECT_EQ(format_rate(1.25e9), "1.25 Gbit/s");
    EXPECT_EQ(format_duration(Duration::from_microseconds(25'300)), "25.3 ms");
    EXPECT_EQ(format_duration(Duration::from_nanoseconds(5)), "5 ns");
}

TEST(Units, TimeOnTheLineIsExact) {
    const BitRate rate = BitRate::from_gigabits(400);
    EXPECT_EQ(rate.time_for(1ull << 30).nanoseconds(), 21'474'836);  // 2^33 bits / 4e11 bit/s = 21.47483648 ms
    EXPECT_EQ(BitRate::from_gigabits(1).bytes_in(Duration::from_milliseconds(25)), 3'125'000u);
}

}  // namespace
}  // namespace farhaul
