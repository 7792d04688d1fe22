// The figures of sdr bench, and both ends of it over loopback.
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "app/bench/runner.hpp"
#include "app/transfer/progress.hpp"
#include "base/random.hpp"

using namespace farhaul;
using namespace farhaul::app;
using namespace farhaul::app::bench;

TEST(BenchStatistics, RatesAndPeak) {
    BandwidthRow row{.bytes = 1000, .iterations = 4, .seconds = 8e-6};
    fill_rates(row, {1000, 2000, 3000, 8000}, 2);
    EXPECT_DOUBLE_EQ(row.messages_per_second, 5e5);
    EXPECT_DOUBLE_EQ(row.average_bits_per_second, 4e9);
    EXPECT_DOUBLE_EQ(row.peak_bits_per_second, 8e9);
    fill_rates(row, {}, 2);
    EXPECT_DOUBLE_EQ(row.peak_bits_per_second, row.average_bits_per_second);
    EXPECT_EQ(row.message_median, 0);
    BandwidthRow single;
    fill_rates(single, {9000, 10'000, 12'000, 15'000}, 1);
    EXPECT_DOUBLE_EQ(single.message_min, 1e-6);
    EXPECT_DOUBLE_EQ(single.message_median, 2e-6);
    EXPECT_DOUBLE_EQ(single.message_max, 3e-6);
}

TEST(BenchStatistics, AcknowledgementsInLumpsAreNoPeak) {
    // A message takes 1 us; every 100 us the last 100 of them are acknowledged within 1 us.
    std::vector<std::int64_t> completions;
    for (std::int64_t lump = 1; lump <= 100; ++lump)
        for (std::int64_t i = 0; i < 100; ++i) completions.push_back(lump * 100'000 + i * 10);
    BandwidthRow row{.bytes = 1000, .iterations = completions.size(), .seconds = 0.0101};
    fill_rates(row, completions, 99);
    EXPECT_NEAR(row.average_bits_per_second, 8e9, 0.1e9);
    EXPECT_LE(row.peak_bits_per_second, 1.1 * 8e9);
    EXPECT_GE(row.peak_bits_per_second, row.average_bits_per_second);
}

TEST(BenchStatistics, Latency) {
    std::vector<std::int64_t> samples;
    for (int i = 1000; i >= 1; --i) samples.push_back(i * 1000);
    const LatencyRow row = latency_row(8, samples);
    EXPECT_DOUBLE_EQ(row.min, 1);
    EXPECT_DOUBLE_EQ(row.max, 1000);
    EXPECT_DOUBLE_EQ(row.typical, 500);
    EXPECT_DOUBLE_EQ(row.average, 500.5);
    EXPECT_DOUBLE_EQ(row.p99, 990);
    EXPECT_DOUBLE_EQ(row.p999, 999);
    EXPECT_NEAR(row.deviation, 288.675, 0.001);
    std::vector<std::int64_t> none;
    EXPECT_EQ(latency_row(8, none).iterations, 0u);
    EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
    EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
}

TEST(BenchPlan, RoundTripAndHostileBytes) {
    Plan plan;
    plan.raw = plan.validate = true;
    plan.bytes = 12345;
    plan.depth = 7;
    auto bytes = encode(plan);
    auto back = decode_plan(bytes);
    ASSERT_TRUE(back);
    EXPECT_TRUE(back->raw && back->validate && !back->latency && !back->both_ways);
    EXPECT_EQ(back->bytes, 12345u);
    EXPECT_EQ(back->depth, 7u);
    for (std::size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(decode_plan(std::span(bytes).first(n))) << n;
    plan.depth = kMaxDepth + 1;
    EXPECT_FALSE(decode_plan(encode(plan)));
    plan.depth = 1;
    plan.bytes = 0;
    EXPECT_FALSE(decode_plan(encode(plan)));
    Random random(1);
    for (int i = 0; i < 10'000; ++i) {
        auto mutant = bytes;
        mutant[random() % mutant.size()] = static_cast<std::byte>(random());
        auto decoded = decode_plan(mutant);
        EXPECT_TRUE(!decoded || (decoded->depth >= 1 && decoded->depth <= kMaxDepth));
    }
}

TEST(BenchPlan, QueuePairsShareTheReceiversBuffer) {
    Plan plan;
    const std::uint64_t buffer = 32u << 20;
    const auto window = [&](std::uint32_t queue_pairs) {
        plan.queue_pairs = queue_pairs;
        return connection_config(plan, {}, Duration::from_seconds(1), buffer).window_bytes;
    };
    EXPECT_EQ(window(1), 0u) << "the connection's own choice";
    for (const std::uint32_t n : {2u, 3u, 16u, kMaxQueuePairs}) {
        EXPECT_GT(window(n), 0u);
        EXPECT_LE(window(n) * n, buffer / 4) << n;
    }
    plan.rate = BitRate::from_gigabits(1);
    EXPECT_EQ(window(2), 0u) << "the rate holds it back";
    plan.queue_pairs = kMaxQueuePairs + 1;
    EXPECT_FALSE(decode_plan(encode(plan)));
    plan.queue_pairs = 0;
    EXPECT_FALSE(decode_plan(encode(plan)));
}

TEST(BenchPlan, PatternNoticesEveryFlippedByte) {
    for (const std::size_t size : {1, 7, 8, 9, 100}) {
        std::vector<std::byte> message(size);
        fill_pattern(message, 5);
        EXPECT_TRUE(check_pattern(message, 5));
        EXPECT_FALSE(check_pattern(message, 6));
        for (std::size_t i = 0; i < size; ++i) {
            message[i] ^= std::byte{1};
            EXPECT_FALSE(check_pattern(message, 5));
            message[i] ^= std::byte{1};
        }
    }
}

namespace {

class RunningServer {
 public:
    RunningServer() {
        loop_ = std::move(*udp::RealLoop::create());
        auto server = Server::open(*loop_, *udp::parse_address("127.0.0.1:0", udp::AddressUse::kListen), {},
                                   [](const std::string&) {});
        EXPECT_TRUE(server);
        server_ = std::move(*server);
        address_ = server_->local_address();
        thread_ = std::thread([this] {
            loop_->run();
            server_.reset();
        });
    }
    ~RunningServer() {
        loop_->stop();
        thread_.join();
    }
    const udp::Address& address() const { return address_; }

 private:
    std::unique_ptr<udp::RealLoop> loop_;
    std::unique_ptr<Server> server_;
    udp::Address address_;
    std::thread thread_;
};

Result<RunResult> run(const RunningServer& server, const Plan& plan, std::uint32_t queue_pairs = 1,
                      Duration duration = {}) {
    auto loop = udp::RealLoop::create();
    auto client = Client::open(**loop, server.address(), {});
    EXPECT_TRUE(client);
    return (*client)->run(plan, queue_pairs, duration, 1400);
}

Plan small_plan() {
    Plan plan;
    plan.bytes = 20'000;
    plan.iterations = 200;
    plan.depth = 8;
    plan.validate = true;
    plan.rate = BitRate::from_gigabits(0.5);
    return plan;
}

}  // namespace

TEST(BenchLoopback, EverySchemeDeliversEveryMessage) {
    const RunningServer server;
    for (const auto scheme :
         {reliable::Scheme::kGoBackN, reliable::Scheme::kSelectiveRepeat, reliable::Scheme::kSelectiveRepeatNack}) {
        Plan plan = small_plan();
        plan.scheme = scheme;
        auto result = run(server, plan, 2);
        ASSERT_TRUE(result) << result.error().message;
        EXPECT_EQ(result->bandwidth.iterations, 400u) << "two queue pairs";
        EXPECT_EQ(result->bandwidth.invalid, 0u);
        EXPECT_GT(result->bandwidth.average_bits_per_second, 0);
        EXPECT_EQ(result->payload_bytes, 1400u);
    }
}

TEST(BenchLoopback, ThePeakOfSeveralQueuePairsIsWhatTheyDidTogether) {
    const RunningServer server;
    Plan plan = small_plan();
    plan.rate = BitRate::from_gigabits(0.05);
    auto result = run(server, plan, 4);
    ASSERT_TRUE(result) << result.error().message;
    const BandwidthRow& row = result->bandwidth;
    EXPECT_EQ(row.iterations, 800u);
    EXPECT_GE(row.peak_bits_per_second, row.average_bits_per_second);
    // The line's rate covers headers as well, so the payload's stays below it, but for the first burst.
    EXPECT_LE(row.peak_bits_per_second, 1.25 * 4 * 0.05e9);
    EXPECT_LE(row.average_bits_per_second, 1.05 * 4 * 0.05e9);
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSlowBuild = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
constexpr bool kSlowBuild = true;
#else
constexpr bool kSlowBuild = false;
#endif
#else
constexpr bool kSlowBuild = false;
#endif

TEST(BenchLoopback, ManyQueuePairsOverrunNothing) {
    const std::uint32_t queue_pairs = kSlowBuild ? 8 : kMaxQueuePairs;
    const RunningServer server;
    Plan plan = small_plan();
    plan.bytes = 65536;
    plan.iterations = kSlowBuild ? 20 : 100;
    plan.depth = 128;
    plan.validate = false;
    plan.rate = {};
    auto result = run(server, plan, queue_pairs);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(result->bandwidth.iterations, plan.iterations * queue_pairs);
    if (kSlowBuild) return;  // a host that is far slower than its timers are set for
    // Before the first round trips are known, some are taken for lost.
    EXPECT_LE(result->bandwidth.packets_resent, result->bandwidth.packets_sent / 8);
}

TEST(BenchLoopback, BothWaysCountsBoth) {
    const RunningServer server;
    Plan plan = small_plan();
    plan.both_ways = true;
    auto result = run(server, plan);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(result->bandwidth.iterations, 400u);
    EXPECT_EQ(result->bandwidth.invalid, 0u);
}

TEST(BenchLoopback, RawMessagesAreCountedByTheReceiver) {
    const RunningServer server;
    Plan plan = small_plan();
    plan.raw = true;
    auto result = run(server, plan);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(result->bandwidth.iterations + result->bandwidth.incomplete, 200u);
    EXPECT_GT(result->bandwidth.iterations, 0u);
    EXPECT_EQ(result->bandwidth.invalid, 0u);
}

TEST(BenchLoopback, RunByTimeEnds) {
    const RunningServer server;
    auto result = run(server, small_plan(), 1, Duration::from_milliseconds(200));
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_GT(result->bandwidth.iterations, 0u);
}

TEST(BenchLoopback, LatencyHasASampleForEachPing) {
    const RunningServer server;
    Plan plan = small_plan();
    plan.latency = true;
    plan.bytes = 8;
    auto result = run(server, plan);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(result->latency.iterations, 200u);
    EXPECT_GT(result->latency.min, 0);
    EXPECT_LE(result->latency.min, result->latency.typical);
    EXPECT_LE(result->latency.typical, result->latency.p99);
    EXPECT_LE(result->latency.p99, result->latency.max);
}

TEST(BenchLoopback, TcpPeer) {
    const RunningServer server;
    auto row = run_tcp_client(server.address(), "", 100'000, 10, false, Duration::from_milliseconds(5000));
    ASSERT_TRUE(row) << row.error().message;
    EXPECT_EQ(row->iterations, 10u);
    EXPECT_GT(row->average_bits_per_second, 0);
    EXPECT_EQ(row->message_median, 0);
    auto each = run_tcp_client(server.address(), "", 100'000, 10, true, Duration::from_milliseconds(5000));
    ASSERT_TRUE(each) << each.error().message;
    EXPECT_GT(each->message_min, 0);
    EXPECT_LE(each->message_min, each->message_median);
    EXPECT_LE(each->message_median, each->message_max);
    EXPECT_LE(each->message_max, each->seconds);
    auto unknown = run_tcp_client(server.address(), "no-such", 1, 1, false, Duration::from_milliseconds(1000));
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().code, ErrorCode::kUnsupported);
}

TEST(Progress, LineFitsAndSaysWhatIsLeft) {
    transfer::ProgressMeter meter;
    EXPECT_EQ(meter.line("f", 0, 80), "f  0 B  0 bit/s");
    for (int i = 0; i <= 10; ++i)
        meter.update(TimePoint::from_nanoseconds(i * 1'000'000'000ll), static_cast<std::uint64_t>(i) * 1'000'000);
    EXPECT_NEAR(meter.rate(), 8e6, 1);
    EXPECT_EQ(meter.line("file", 20'000'000, 100), "file   50%  9.54 MiB / 19.07 MiB  8 Mbit/s  ETA 0:10");
    EXPECT_EQ(meter.line("a very long name that does not fit", 20'000'000, 50).size(), 50u);
    EXPECT_EQ(transfer::format_clock(3661), "1:01:01");
    EXPECT_EQ(transfer::format_clock(1e9), "-:--");
}
