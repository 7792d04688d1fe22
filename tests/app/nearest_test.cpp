#include "app/nearest.hpp"

#include <array>

#include <gtest/gtest.h>

namespace farhaul::app {
namespace {

const std::array<std::string, 5> kKnown = {"--scheme", "--rate", "--mtu", "--chunk", "--listen"};

TEST(Nearest, FindsTypos) {
    EXPECT_EQ(nearest("--schem", kKnown), "--scheme");
    EXPECT_EQ(nearest("--shceme", kKnown), "--scheme");
    EXPECT_EQ(nearest("--chunks", kKnown), "--chunk");
    EXPECT_EQ(nearest("--mut", kKnown), "--mtu");
}

TEST(Nearest, CompletesBeginnings) { EXPECT_EQ(nearest("--lis", kKnown), "--listen"); }

TEST(Nearest, DoesNotGuessWildly) {
    EXPECT_EQ(nearest("--verbose", kKnown), "");
    EXPECT_EQ(nearest("x", kKnown), "");
    EXPECT_EQ(nearest("", kKnown), "");
    EXPECT_EQ(nearest("--mtu", {}), "");
}

}  // namespace
}  // namespace farhaul::app
