#include "collective/reduction.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.hpp"

namespace farhaul::collective {
namespace {

template <typename T>
T reduced(DataType type, Operation operation, T a, T b) {
    // Unaligned, and enough of them that the vector loop takes part.
    std::vector<std::byte> into(1 + 100 * sizeof(T)), from(1 + 100 * sizeof(T));
    for (int i = 0; i < 100; ++i) {
        std::memcpy(into.data() + 1 + i * sizeof(T), &a, sizeof a);
        std::memcpy(from.data() + 1 + i * sizeof(T), &b, sizeof b);
    }
    reduce(type, operation, into.data() + 1, from.data() + 1, 100);
    for (int i = 1; i < 100; ++i)
        EXPECT_EQ(std::memcmp(into.data() + 1, into.data() + 1 + i * sizeof(T), sizeof(T)), 0);
    T result;
    std::memcpy(&result, into.data() + 1, sizeof result);
    return result;
}

TEST(Reduction, IntegersWrapAround) {
    EXPECT_EQ(reduced<std::int32_t>(DataType::kInt32, Operation::kSum, std::numeric_limits<std::int32_t>::max(), 1),
              std::numeric_limits<std::int32_t>::min());
    EXPECT_EQ(reduced<std::int64_t>(DataType::kInt64, Operation::kSum, -5, 3), -2);
    EXPECT_EQ(reduced<std::int64_t>(DataType::kInt64, Operation::kMin, -5, 3), -5);
    EXPECT_EQ(reduced<std::int32_t>(DataType::kInt32, Operation::kMax, -5, 3), 3);
}

TEST(Reduction, NansWinWhereverTheyStand) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const auto operation : {Operation::kSum, Operation::kMin, Operation::kMax}) {
        EXPECT_TRUE(std::isnan(reduced(DataType::kFloat32, operation, nan, 1.f)));
        EXPECT_TRUE(std::isnan(reduced(DataType::kFloat32, operation, 1.f, nan)));
        EXPECT_TRUE(std::isnan(reduced(DataType::kFloat64, operation, 1., static_cast<double>(nan))));
        EXPECT_TRUE(
            std::isnan(from_bfloat16(reduced(DataType::kBfloat16, operation, to_bfloat16(nan), to_bfloat16(1)))));
    }
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(reduced(DataType::kFloat32, Operation::kMax, -infinity, 2.f), 2.f);
    EXPECT_EQ(reduced(DataType::kFloat32, Operation::kMin, infinity, 2.f), 2.f);
}

TEST(Reduction, Bfloat16RoundsToNearestEven) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const float value = from_bfloat16(static_cast<std::uint16_t>(bits));
        if (std::isnan(value))
            EXPECT_TRUE(std::isnan(from_bfloat16(to_bfloat16(value)))) << bits;
        else
            EXPECT_EQ(to_bfloat16(value), bits);
    }
    EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // a tie goes to the even one
    EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
    EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
    EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);  // rounds to infinity, as the standard has it
    EXPECT_TRUE(std::isnan(from_bfloat16(to_bfloat16(std::bit_cast<float>(0x7f800001u)))));
    EXPECT_EQ(from_bfloat16(reduced(DataType::kBfloat16, Operation::kSum, to_bfloat16(1), to_bfloat16(2))), 3);
}

TEST(Reduction, NamesRoundTrip) {
    for (const char* name : {"float32", "float64", "bfloat16", "int32", "int64"})
        EXPECT_EQ(to_string(parse_data_type(name).value()), name);
    for (const char* name : {"sum", "min", "max"}) EXPECT_EQ(to_string(parse_operation(name).value()), name);
    EXPECT_EQ(parse_data_type("float").value(), DataType::kFloat32);
    EXPECT_NE(parse_data_type("half").error().message.find("bfloat16"), std::string::npos);
    EXPECT_FALSE(parse_operation("avg"));
}

}  // namespace
}  // namespace farhaul::collective
