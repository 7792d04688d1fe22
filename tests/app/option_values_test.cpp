// Values that an option's conversion would let pass with another meaning, or that would be ignored, are usage errors.
#include <string>

#include <gtest/gtest.h>

#include "app/commands.hpp"

namespace farhaul::app {
namespace {

int exit_code_of_command(const std::string& line) {
    CLI::App app;
    int exit_code = kExitOk;
    add_send_command(app, exit_code);
    add_bench_command(app, exit_code);
    add_sim_command(app, exit_code);
    add_link_command(app, exit_code);
    add_plan_command(app, exit_code);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    try {
        app.parse(line);
    } catch (const CLI::ParseError&) {
        exit_code = kExitUsage;
    }
    testing::internal::GetCapturedStdout();
    testing::internal::GetCapturedStderr();
    return exit_code;
}

TEST(OptionValues, NumbersThatAreNoneAreRefused) {
    for (const char* line : {
             "send /etc --to 127.0.0.1:1 --timeout 100ms --rto nan",
             "bench 127.0.0.1 --port 1 --timeout 100ms --rto nan",
             "sim --size 1 --seed -1",
             "sim --size 1 --seed 18446744073709551616",
             "sim --size 1 --seed ''",
             "sim --size 1 --threads 1025",
             "sim --size 1 --burst 1e18",
             "sim --size 1 --trace ''",
             "plan --encode-rate nan --scheme sr",
             "plan --encode-rate -1 --scheme sr",
             "plan --burst 0 --scheme sr",
             "plan --burst '' --scheme sr",
             "link --listen 127.0.0.1:0 --to 127.0.0.1:9 --duration 1ms --seed -1",
         })
        EXPECT_EQ(exit_code_of_command(line), kExitUsage) << line;
}

TEST(OptionValues, TheLargestSeedIsTaken) {
    EXPECT_EQ(exit_code_of_command("sim --size 1 --seed 18446744073709551615 --threads 2"), kExitOk);
    EXPECT_EQ(exit_code_of_command("plan --scheme sr --encode-rate 2.5 --burst 2"), kExitOk);
}

TEST(OptionValues, OptionsOfTheOtherFormOfLinkAreNotIgnored) {
    const std::string relay = "link --listen 127.0.0.1:0 --to 127.0.0.1:9 --duration 1ms --quiet";
    EXPECT_EQ(exit_code_of_command(relay), kExitOk);
    for (const char* option :
         {" --ns-a x", " --dev-b x", " --addr-a 10.1.0.1/24", " --route-b 10.1.0.0/24", " --mtu 900"})
        EXPECT_EQ(exit_code_of_command(relay + option), kExitUsage) << option;
    EXPECT_EQ(exit_code_of_command("link --tun --ns-a no-such-space --idle-timeout 1s"), kExitUsage);
}

}  // namespace
}  // namespace farhaul::app
