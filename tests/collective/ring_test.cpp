// Rings over the simulated wire, with real payloads.
#include "collective/ring.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/random.hpp"
#include "wire/sim/sim_network.hpp"

namespace farhaul::collective {
namespace {

struct RingWorld {
    struct Options {
        double loss = 0;
        std::uint64_t segment_bytes = 4096;
        std::uint64_t scratch_bytes = 1 << 20;
        Duration peer_timeout = Duration::from_milliseconds(2000);
        std::vector<std::string_view> schemes = {"auto"};  // of the hops, in turn
    };
    RingWorld(std::uint32_t ranks, const Options& options, std::uint64_t seed = 1) : network(loop) {
        std::vector<std::unique_ptr<reliable::Connection>> lefts(ranks), rights(ranks);
        for (std::uint32_t rank = 0; rank < ranks && ranks > 1; ++rank) {
            wire::SimLinkConfig link;
            link.forward.rate = link.backward.rate = BitRate::from_gigabits(1);
            link.forward.delay = link.backward.delay = Duration::from_milliseconds(1 + rank);
            link.forward.loss.probability = link.backward.loss.probability = options.loss;
            link.limits.max_payload_bytes = 512;
            sdr::QueuePairConfig pair;
            pair.payload_bytes = 512;
            pair.packets_per_chunk = 4;
            pair.max_message_bytes = options.segment_bytes;
            pair.max_messages = 16;
            pair.initial_rtt = Duration::from_milliseconds(2 + 2 * rank);
            reliable::ConnectionConfig config;
            config.scheme = *reliable::parse_scheme(options.schemes[rank % options.schemes.size()]);
            config.initial_rtt = pair.initial_rtt;
            config.min_rto = Duration::from_milliseconds(1);
            config.line_rate = link.forward.rate;
            config.peer_timeout = options.peer_timeout;
            config.keepalive = options.peer_timeout / 5;
            auto ends = network.connect(link, seed * 1000 + rank).value();
            wires.push_back(ends);
            rights[rank] = reliable::Connection::create(loop, *ends.first, pair, config).value();
            lefts[(rank + 1) % ranks] = reliable::Connection::create(loop, *ends.second, pair, config).value();
        }
        for (std::uint32_t rank = 0; rank < ranks; ++rank)
            rings.push_back(Ring::create(loop, std::move(lefts[rank]), std::move(rights[rank]),
                                         {.rank = rank,
                                          .ranks = ranks,
                                          .segment_bytes = options.segment_bytes,
                                          .scratch_bytes = options.scratch_bytes})
                                .value());
    }

    /// Runs it on all ranks to the release of all buffers.
    void run(Collective collective, std::vector<std::vector<std::byte>>& buffers) {
        std::uint32_t done = 0, released = 0;
        for (std::size_t rank = 0; rank < rings.size(); ++rank) {
            collective.buffer = buffers[rank].data();
            ASSERT_TRUE(rings[rank]->prepare(collective));
            rings[rank]->start(
                [&](Status status) {
                    EXPECT_TRUE(status) << status.error().message;
                    ++done;
                },
                [&] { ++released; });
        }
        ASSERT_TRUE(loop.run_while([&] { return released < rings.size(); }));
        EXPECT_EQ(done, rings.size());
    }

    wire::SimLoop loop;
    wire::SimNetwork network;
    std::vector<std::pair<wire::SimWire*, wire::SimWire*>> wires;
    std::vector<std::unique_ptr<Ring>> rings;
};

std::vector<std::vector<std::byte>> random_buffers(std::uint32_t ranks, DataType type, std::uint64_t count,
                                                   std::uint64_t seed) {
    Random random(seed);
    std::vector<std::vector<std::byte>> buffers(ranks, std::vector<std::byte>(count * size_of(type)));
    for (auto& buffer : buffers)
        for (std::uint64_t i = 0; i < count; ++i) {
            std::byte* at = buffer.data() + i * size_of(type);
            const double real = static_cast<double>(random() % 2000) - 1000;
            const auto put = [at](auto value) { std::memcpy(at, &value, sizeof value); };
            switch (type) {
                case DataType::kFloat32:
                    put(static_cast<float>(real / 7));
                    break;
                case DataType::kFloat64:
                    put(real / 7);
                    break;
                case DataType::kBfloat16:
                    put(to_bfloat16(static_cast<float>(real / 7)));
                    break;
                case DataType::kInt32:
                    put(static_cast<std::int32_t>(random()));
                    break;
                case DataType::kInt64:
                    put(static_cast<std::int64_t>(random()));
                    break;
            }
        }
    return buffers;
}

double value_at(DataType type, const std::vector<std::byte>& buffer, std::uint64_t i) {
    const std::byte* at = buffer.data() + i * size_of(type);
    const auto get = [at](auto value) {
        std::memcpy(&value, at, sizeof value);
        return value;
    };
    switch (type) {
        case DataType::kFloat32:
            return get(0.f);
        case DataType::kFloat64:
            return get(0.);
        case DataType::kBfloat16:
            return from_bfloat16(get(std::uint16_t{}));
        case DataType::kInt32:
            return get(std::int32_t{});
        case DataType::kInt64:
            return static_cast<double>(get(std::int64_t{}));
    }
    return 0;
}

/// The same by a plain loop over the ranks.
std::vector<std::byte> serial(DataType type, Operation operation, const std::vector<std::vector<std::byte>>& buffers) {
    std::vector<std::byte> result = buffers[0];
    for (std::size_t rank = 1; rank < buffers.size(); ++rank)
        reduce(type, operation, result.data(), buffers[rank].data(), result.size() / size_of(type));
    return result;
}

void expect_equal(DataType type, Operation operation, const std::vector<std::byte>& got,
                  const std::vector<std::byte>& want, std::uint32_t ranks, Range part) {
    if (part.length == 0) return;
    const bool exact = type == DataType::kInt32 || type == DataType::kInt64 || operation != Operation::kSum;
    if (exact) {
        EXPECT_EQ(std::memcmp(got.data() + part.offset, want.data() + part.offset, part.length), 0);
        return;
    }
    // Every addition rounds once, of terms below 143 in magnitude: the order of the sum may differ by that much.
    const double epsilon = type == DataType::kFloat32 ? 6e-8 : type == DataType::kFloat64 ? 1.2e-16 : 4e-3;
    for (std::uint64_t i = part.offset / size_of(type); i < (part.offset + part.length) / size_of(type); ++i)
        ASSERT_NEAR(value_at(type, got, i), value_at(type, want, i), 2 * epsilon * ranks * ranks * 143) << i;
}

constexpr DataType kAllTypes[] = {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16, DataType::kInt32,
                                  DataType::kInt64};
constexpr Operation kAllOperations[] = {Operation::kSum, Operation::kMin, Operation::kMax};

TEST(Ring, AllreduceOfEveryTypeOperationAndAwkwardCount) {
    for (const std::uint32_t ranks : {1u, 2u, 3u, 5u, 8u}) {
        RingWorld world(ranks, {});
        for (const DataType type : kAllTypes)
            for (const Operation operation : kAllOperations)
                for (const std::uint64_t count :
                     {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{ranks - 1}, std::uint64_t{ranks},
                      std::uint64_t{ranks + 1}, std::uint64_t{1000}, std::uint64_t{7001}}) {
                    auto buffers = random_buffers(ranks, type, count, count + ranks);
                    const auto want = serial(type, operation, buffers);
                    ASSERT_NO_FATAL_FAILURE(world.run({.count = count, .type = type, .operation = operation}, buffers));
                    for (const auto& buffer : buffers) {
                        expect_equal(type, operation, buffer, want, ranks, {0, buffer.size()});
                        EXPECT_EQ(buffer, buffers[0]) << "all ranks have the same bits";
                    }
                }
    }
}

TEST(Ring, ReduceScatterAllgatherAndBroadcast) {
    for (const std::uint32_t ranks : {2u, 4u, 7u}) {
        RingWorld world(ranks, {.schemes = {"sr-nack", "auto", "ec:8,2"}});
        for (const std::uint64_t count : {std::uint64_t{3}, std::uint64_t{5003}}) {
            auto buffers = random_buffers(ranks, DataType::kInt32, count, 9);
            const auto sum = serial(DataType::kInt32, Operation::kSum, buffers);
            ASSERT_NO_FATAL_FAILURE(
                world.run({.kind = Kind::kReduceScatter, .count = count, .type = DataType::kInt32}, buffers));
            for (std::uint32_t rank = 0; rank < ranks; ++rank) {
                expect_equal(DataType::kInt32, Operation::kSum, buffers[rank], sum, ranks,
                             chunk_of(count, 4, ranks, rank));
            }
            ASSERT_NO_FATAL_FAILURE(
                world.run({.kind = Kind::kAllgather, .count = count, .type = DataType::kInt32}, buffers));
            for (const auto& buffer : buffers) EXPECT_EQ(buffer, sum);
            for (std::uint32_t root = 0; root < ranks; ++root) {
                auto others = random_buffers(ranks, DataType::kInt64, count, root);
                const auto want = others[root];
                ASSERT_NO_FATAL_FAILURE(world.run(
                    {.kind = Kind::kBroadcast, .count = count, .type = DataType::kInt64, .root = root}, others));
                for (const auto& buffer : others) EXPECT_EQ(buffer, want);
            }
        }
    }
}

TEST(Ring, LossesAndLittleScratchMemory) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        RingWorld world(
            2 + seed % 4,
            {.loss = 0.05, .scratch_bytes = seed % 3 * 8192, .schemes = {"auto", "sr-nack", "sr", "ec:8,2"}}, seed);
        auto buffers = random_buffers(static_cast<std::uint32_t>(world.rings.size()), DataType::kInt64, 20'011, seed);
        const auto want = serial(DataType::kInt64, Operation::kSum, buffers);
        ASSERT_NO_FATAL_FAILURE(world.run({.count = 20'011, .type = DataType::kInt64}, buffers)) << seed;
        for (const auto& buffer : buffers) EXPECT_EQ(buffer, want) << seed;
    }
}

TEST(Ring, ARankThatDiesEndsTheOthersWithItsName) {
    for (const std::uint32_t ranks : {2u, 3u, 6u})
        for (std::uint32_t victim = 0; victim < ranks; ++victim)
            for (const int milliseconds : {0, 5, 40}) {
                RingWorld world(ranks, {});
                auto buffers = random_buffers(ranks, DataType::kFloat32, 2'000'000, 1);
                std::map<std::uint32_t, std::string> errors;
                for (std::uint32_t rank = 0; rank < ranks; ++rank) {
                    Collective collective{.buffer = buffers[rank].data(), .count = 2'000'000};
                    ASSERT_TRUE(world.rings[rank]->prepare(collective));
                    world.rings[rank]->start([&, rank](Status status) {
                        if (!status) errors[rank] = status.error().message;
                    });
                }
                ASSERT_TRUE(world.loop.run_for(Duration::from_milliseconds(milliseconds)));
                world.wires[victim].first->kill();
                world.wires[(victim + ranks - 1) % ranks].second->kill();
                // peer_timeout, kLinger, and the way round
                ASSERT_TRUE(world.loop.run_for(Duration::from_milliseconds(2000 + 1000 + 200)));
                for (std::uint32_t rank = 0; rank < ranks; ++rank) {
                    if (rank == victim) continue;
                    EXPECT_NE(errors[rank].find(fmt::format("rank {} is gone", victim)), std::string::npos)
                        << ranks << " ranks, " << victim << " died: rank " << rank << " says '" << errors[rank] << "'";
                    EXPECT_FALSE(world.rings[rank]->prepare({})) << "it stays failed";
                    EXPECT_FALSE(world.rings[rank]->lingering());
                }
            }
}

TEST(Ring, AnAbortReachesAllOthers) {
    RingWorld world(4, {});
    int errors = 0;
    std::vector<std::vector<std::byte>> buffers(4, std::vector<std::byte>(400'000));
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
        ASSERT_TRUE(world.rings[rank]->prepare({.buffer = buffers[rank].data(), .count = 100'000}));
        world.rings[rank]->start([&](Status status) { errors += !status; });
    }
    world.rings[2]->abort({ErrorCode::kClosed, "the user wants it"});
    ASSERT_TRUE(world.loop.run_for(Duration::from_milliseconds(100)));
    EXPECT_EQ(errors, 4);
}

TEST(Ring, DifferentCountsAreAnErrorAndNothingIsWrittenOutside) {
    RingWorld world(2, {});
    std::vector<std::vector<std::byte>> buffers(2, std::vector<std::byte>(4000));
    int errors = 0;
    ASSERT_TRUE(world.rings[0]->prepare({.buffer = buffers[0].data(), .count = 1000}));
    ASSERT_TRUE(world.rings[1]->prepare({.buffer = buffers[1].data(), .count = 100}));
    for (auto& ring : world.rings) ring->start([&](Status status) { errors += !status; });
    ASSERT_TRUE(world.loop.run_for(Duration::from_milliseconds(5000)));
    EXPECT_EQ(errors, 2);
}

TEST(Ring, RefusesWhatCannotBe) {
    wire::SimLoop loop;
    EXPECT_FALSE(Ring::create(loop, nullptr, nullptr, {.rank = 1, .ranks = 1}));
    EXPECT_FALSE(Ring::create(loop, nullptr, nullptr, {.rank = 0, .ranks = 2}));
    EXPECT_FALSE(Ring::create(loop, nullptr, nullptr, {.segment_bytes = 100}));
    RingWorld world(2, {});
    EXPECT_FALSE(world.rings[0]->prepare({.kind = Kind::kBroadcast, .root = 2}));
    EXPECT_FALSE(world.rings[0]->prepare({.count = ~std::uint64_t{0}}));
    std::vector<std::byte> buffer(40);
    EXPECT_TRUE(world.rings[0]->prepare({.buffer = buffer.data(), .count = 10}));
    for (std::size_t i = 1; i < Ring::kMostOperations; ++i) EXPECT_TRUE(world.rings[0]->prepare({}));
    EXPECT_EQ(world.rings[0]->prepare({}).error().code, ErrorCode::kRetry);
}

TEST(Ring, ManyOperationsAreQueuedWhileTheOnesBeforeAreNotReleased) {
    RingWorld world(3, {.loss = 0.02, .scratch_bytes = 16384, .schemes = {"auto", "sr-nack"}});
    constexpr int kOperations = 40;
    std::vector<std::vector<std::vector<std::byte>>> all;
    std::vector<std::vector<std::byte>> want;
    for (int i = 0; i < kOperations; ++i) {
        all.push_back(random_buffers(3, DataType::kInt32, 1 + i * 300, i));
        want.push_back(serial(DataType::kInt32, Operation::kSum, all.back()));
    }
    int done = 0, released = 0;
    for (std::size_t rank = 0; rank < 3; ++rank)
        for (int i = 0; i < kOperations; ++i)
            ASSERT_TRUE(world.rings[rank]->prepare(
                {.buffer = all[i][rank].data(), .count = all[i][rank].size() / 4, .type = DataType::kInt32}));
    for (int i = 0; i < kOperations; ++i)
        for (auto& ring : world.rings)
            ring->start([&](Status status) { done += status.has_value(); }, [&] { ++released; });
    ASSERT_TRUE(world.loop.run_while([&] { return released < 3 * kOperations; }));
    EXPECT_EQ(done, 3 * kOperations);
    for (int i = 0; i < kOperations; ++i)
        for (const auto& buffer : all[i]) EXPECT_EQ(buffer, want[i]) << i;
}

TEST(Schedule, WhatIsWrittenIsWhatTheRightNeighbourReceives) {
    for (const auto kind : {Kind::kAllreduce, Kind::kReduceScatter, Kind::kAllgather, Kind::kBroadcast})
        for (std::uint32_t ranks = 2; ranks < 10; ++ranks)
            for (const std::uint64_t count : {0u, 1u, 5u, 77u, 4096u})
                for (std::uint32_t rank = 0; rank < ranks; ++rank) {
                    const auto own = Schedule::make(kind, count, 4, rank, ranks, 1, 4096);
                    const auto next = Schedule::make(kind, count, 4, (rank + 1) % ranks, ranks, 1, 4096);
                    ASSERT_EQ(own.writes.size(), next.receives.size());
                    for (std::size_t i = 0; i < own.writes.size(); ++i) {
                        EXPECT_EQ(own.writes[i], next.receives[i].range);
                        if (i >= own.ready_writes) {
                            EXPECT_EQ(own.writes[i], own.receives[i - own.ready_writes].range);
                        }
                    }
                }
}

}  // namespace
}  // namespace farhaul::collective
