// `sdr plan` from its command line to its output.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/commands.hpp"

namespace farhaul::app {
namespace {

struct Outcome {
    int exit_code;
    std::string output;
};

Outcome plan(const std::string& arguments) {
    CLI::App app;
    int exit_code = kExitOk;
    add_plan_command(app, exit_code);
    testing::internal::CaptureStdout();
    try {
        app.parse("plan " + arguments);
    } catch (const CLI::ParseError&) {
        exit_code = kExitUsage;
    }
    return {exit_code, testing::internal::GetCapturedStdout()};
}

TEST(PlanCommand, PrintsARowPerSchemeAndThePick) {
    const auto [exit_code, output] = plan("--size 128MiB --rate 400G --rtt 25ms --loss 1e-3 --encode-rate 10");
    EXPECT_EQ(exit_code, kExitOk);
    for (const char* word : {"sr ", "sr-nack", "ec:32,8", "ec-xor:32,8", "bound 27.69 ms", "pick auto:"}) {
        EXPECT_NE(output.find(word), std::string::npos) << word << "\n" << output;
    }
}

TEST(PlanCommand, Json) {
    const auto [exit_code, output] =
        plan("--size 128MiB --loss 1e-2 --scheme sr --scheme ec:32,8 --encode-rate 5 --json");
    ASSERT_EQ(exit_code, kExitOk);
    const auto json = nlohmann::json::parse(output);
    ASSERT_EQ(json["schemes"].size(), 2u);
    EXPECT_EQ(json["pick"], "ec:32,8");
    EXPECT_EQ(json["schemes"][1]["encode_cores"], 8.0);
    EXPECT_EQ(json["schemes"][1]["parity_bytes"], 33554432.0);
    EXPECT_GT(json["schemes"][0]["mean_s"].get<double>(), 4 * json["schemes"][1]["mean_s"].get<double>());
    EXPECT_FALSE(json["schemes"][0]["simulated"].get<bool>());
}

TEST(PlanCommand, MeasuresEncoding) {
    const auto [exit_code, output] = plan("--scheme ec:4,2 --scheme ec-xor:4,2 --json");
    ASSERT_EQ(exit_code, kExitOk);
    for (const auto& row : nlohmann::json::parse(output)["schemes"]) EXPECT_GT(row["encode_cores"].get<double>(), 0);
}

TEST(PlanCommand, BurstsAreDrawn) {
    const auto [exit_code, output] = plan("--size 1MiB --loss 1e-3 --burst 64 --scheme sr --json");
    ASSERT_EQ(exit_code, kExitOk);
    EXPECT_TRUE(nlohmann::json::parse(output)["schemes"][0]["simulated"].get<bool>());
}

TEST(PlanCommand, RefusesWhatItCannotPlan) {
    for (const char* arguments : {"--scheme gbn", "--scheme ec:248,8", "--chunk 5000", "--loss 2", "--loss 0.95",
                                  "--rate 0", "--size 0", "--rtt 0", "--nonsense"}) {
        EXPECT_EQ(plan(arguments).exit_code, kExitUsage) << arguments;
    }
}

}  // namespace
}  // namespace farhaul::app
