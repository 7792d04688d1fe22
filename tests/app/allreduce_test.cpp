// `sdr allreduce` without its processes: ranks on threads, each with a loop of its own.
#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <thread>

#include <gtest/gtest.h>

#include "app/allreduce/peers.hpp"
#include "app/allreduce/rank_run.hpp"
#include "base/random.hpp"

namespace farhaul::app::allreduce {
namespace {

using collective::DataType;
using collective::Operation;

TEST(Peers, OneLineEach) {
    const auto peers =
        parse_peers("# ring\n host-a:1 rate=10G\n\n[::1]:2 scheme=ec:32,8 rate=100M # far\nc:3\n").value();
    ASSERT_EQ(peers.size(), 3u);
    EXPECT_EQ(peers[0].address, "host-a:1");
    EXPECT_EQ(peers[0].rate->bits_per_second(), 10'000'000'000u);
    EXPECT_FALSE(peers[0].scheme);
    EXPECT_EQ(reliable::to_string(*peers[1].scheme), "ec:32,8");
    EXPECT_FALSE(peers[2].rate);
    EXPECT_TRUE(parse_peers("")->empty());
    for (const char* wrong : {"a:1\nb:2 speed=1G", "a:1\nb:2 rate=fast", "a:1\nb:2 scheme=best", "a:1\nb:2 rate"})
        EXPECT_NE(parse_peers(wrong).error().message.find("line 2"), std::string::npos) << wrong;
    EXPECT_EQ(read_peers("/nowhere/peers").error().code, ErrorCode::kIo);
}

TEST(Hello, GarbageIsRefused) {
    const Hello hello{4, 3, *reliable::parse_scheme("ec:32,8"), 1 << 20, 65536};
    const auto bytes = encode(hello);
    const auto decoded = decode_hello(bytes).value();
    EXPECT_EQ(decoded.rank, 3u);
    EXPECT_EQ(decoded.scheme, hello.scheme);
    EXPECT_EQ(decoded.segment_bytes, hello.segment_bytes);
    for (std::size_t length = 0; length < bytes.size(); ++length)
        EXPECT_FALSE(decode_hello(std::span(bytes).first(length)));
    Random random(1);
    for (int i = 0; i < 10'000; ++i) {
        auto broken = bytes;
        broken[random() % broken.size()] ^= static_cast<std::byte>(1 << random() % 8);
        (void)decode_hello(broken);
    }
}

TEST(AllreduceCheck, FindsEveryWrongElement) {
    for (const auto type :
         {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16, DataType::kInt32, DataType::kInt64})
        for (const auto operation : {Operation::kSum, Operation::kMin, Operation::kMax}) {
            constexpr std::uint32_t kRanks = 7;
            constexpr std::uint64_t kCount = 500;
            const std::size_t element = collective::size_of(type);
            std::vector<std::byte> result(kCount * element), other(kCount * element);
            fill(result.data(), kCount, type, kRanks - 1);
            for (std::uint32_t rank = kRanks - 1; rank-- > 0;) {
                fill(other.data(), kCount, type, rank);
                collective::reduce(type, operation, result.data(), other.data(), kCount);
            }
            EXPECT_EQ(count_wrong(result.data(), kCount, type, operation, kRanks), 0u);
            for (const std::uint64_t i : {3u, 77u, 499u}) result[i * element + element - 1] ^= std::byte{0x40};
            EXPECT_EQ(count_wrong(result.data(), kCount, type, operation, kRanks), 3u);
            // One rank left out is not missed.
            fill(result.data(), kCount, type, 0);
            EXPECT_GT(count_wrong(result.data(), kCount, type, operation, kRanks), kCount / 4);
        }
}

TEST(AllreduceCheck, SizesAreWholeElements) {
    EXPECT_EQ(sizes_of({.least_bytes = 8, .most_bytes = 130, .factor = 4}), (std::vector<std::uint64_t>{8, 32, 128}));
    EXPECT_EQ(sizes_of({.least_bytes = 0, .most_bytes = 7, .factor = 2, .type = DataType::kInt64}),
              (std::vector<std::uint64_t>{0}));
}

struct Outcome {
    Status status;
    std::vector<SizeResult> results;
};

/// `victim` stops to answer, without a word, after the first size.
std::vector<Outcome> run_ranks(std::uint32_t ranks, const RunPlan& plan, Duration timeout, std::uint32_t victim) {
    std::vector<Outcome> outcomes(ranks);
    std::vector<std::uint16_t> ports(ranks);
    std::latch bound(ranks), ended(ranks - (victim < ranks ? 1 : 0));
    std::vector<std::jthread> threads;
    for (std::uint32_t number = 0; number < ranks; ++number)
        threads.emplace_back([&, number] {
            auto loop = udp::RealLoop::create().value();
            bool interrupted = false;
            const char* const schemes[] = {"auto", "sr-nack", "ec:8,2"};
            const RankConfig config{.rank = number,
                                    .ranks = ranks,
                                    .segment_bytes = 64 << 10,
                                    .scheme = *reliable::parse_scheme(schemes[number % 3]),
                                    .rate = {},
                                    .payload_bytes = 1448,
                                    .timeout = timeout};
            auto rank = Rank::open(*loop, udp::parse_address("127.0.0.1:0", udp::AddressUse::kListen).value(), config,
                                   interrupted)
                            .value();
            ports[number] = rank->local_address().port();
            bound.arrive_and_wait();
            const auto right =
                udp::parse_address(fmt::format("127.0.0.1:{}", ports[(number + 1) % ranks]), udp::AddressUse::kConnect)
                    .value();
            Outcome& outcome = outcomes[number];
            outcome.status = rank->join(right);
            if (outcome.status)
                outcome.status = run_sizes(*loop, *rank, config, plan, interrupted, [&](const SizeResult& result) {
                    outcome.results.push_back(result);
                    if (number == victim) ended.wait();
                });
            if (number == victim) return;
            if (!outcome.status) loop->run_until([&] { return !rank->ring().lingering(); }, collective::Ring::kLinger);
            ended.count_down();
        });
    threads.clear();
    return outcomes;
}

TEST(Allreduce, RanksOnLoopbackAgree) {
    for (const std::uint32_t ranks : {2u, 3u, 5u}) {
        const RunPlan plan{.least_bytes = 4,
                           .most_bytes = 400'000,
                           .factor = 100,
                           .iterations = 3,
                           .warmup = 1,
                           .type = DataType::kInt32};
        for (const Outcome& outcome : run_ranks(ranks, plan, Duration::from_milliseconds(20'000), ranks)) {
            ASSERT_TRUE(outcome.status) << outcome.status.error().message;
            ASSERT_EQ(outcome.results.size(), 3u);
            for (const SizeResult& result : outcome.results) {
                EXPECT_EQ(result.wrong, 0u);
                EXPECT_GT(result.seconds, 0);
            }
        }
    }
}

TEST(Allreduce, ASilentRankIsNamedByAllOthersInTime) {
    constexpr std::uint32_t kRanks = 4, kVictim = 2;
    const RunPlan plan{
        .least_bytes = 4000, .most_bytes = 400'000, .factor = 10, .iterations = 2, .type = DataType::kInt64};
    const auto begin = std::chrono::steady_clock::now();
    const auto outcomes = run_ranks(kRanks, plan, Duration::from_milliseconds(3000), kVictim);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        if (rank == kVictim) continue;
        ASSERT_FALSE(outcomes[rank].status);
        EXPECT_NE(outcomes[rank].status.error().message.find("rank 2 is gone"), std::string::npos)
            << rank << ": " << outcomes[rank].status.error().message;
    }
    EXPECT_LT(took.count(), 15);  // 3 s and 1 s, and what a busy host adds
}

}  // namespace
}  // namespace farhaul::app::allreduce
