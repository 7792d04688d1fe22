// Random connections under random faults, thousands of seeds: every Write arrives exactly, nothing else is touched,
// everything ends, and a seed replays bit for bit. FARHAUL_SEEDS=N sets how many seeds run, FARHAUL_SEED=S runs that
// one only.
#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>

#include "pair.hpp"
#include "wire/sim/sim_executor.hpp"

namespace farhaul::reliable {
namespace {

using testing::Guarded;
using testing::Pair;
using testing::PairConfig;
using testing::pattern;

constexpr std::uint64_t kDefaultSeeds = 10'000;

PairConfig random_config(Random& random, Scheme scheme) {
    PairConfig config;
    config.seed = random();
    for (link::LinkConfig* link : {&config.link.forward, &config.link.backward}) {
        link->rate = BitRate::from_bits_per_second(10'000'000ull << random.below(16));
        link->delay = Duration::from_nanoseconds(
            static_cast<std::int64_t>(random.below(3) == 0 ? random.below(1000) : random.below(30'000'000)));
        switch (random.below(4)) {
            case 0:
                break;
            case 1:
                link->loss.probability = random.uniform() * 0.3;
                break;
            default:
                link->loss.probability = random.uniform() * 0.02;
        }
        if (random.below(3) == 0) link->loss.mean_burst_packets = 1 + static_cast<double>(random.below(40));
        if (random.below(3) == 0) {
            link->reorder_probability = random.uniform() * 0.3;
            link->reorder_delay = Duration::from_nanoseconds(1 + static_cast<std::int64_t>(random.below(5'000'000)));
        }
        if (random.below(4) == 0)
            link->jitter = Duration::from_nanoseconds(static_cast<std::int64_t>(random.below(10'000'000)));
        if (random.below(4) == 0) link->duplicate_probability = random.uniform() * 0.1;
        if (random.below(4) == 0) link->corrupt_probability = random.uniform() * 0.05;
    }
    static constexpr sdr::ImmediateLayout kLayouts[] = {{10, 18, 4}, {8, 22, 2}, {2, 22, 8},
                                                        {1, 23, 8},  {3, 28, 1}, {4, 24, 4}};
    auto& qp = config.queue_pair;
    qp.layout = kLayouts[random.below(std::size(kLayouts))];
    qp.payload_bytes =
        static_cast<std::uint32_t>(random.below(3) == 0 ? random.between(64, 300) : random.between(300, 4096));
    qp.packets_per_chunk = static_cast<std::uint32_t>(random.between(1, 64));
    qp.max_messages =
        static_cast<std::uint32_t>(random.between(1, std::min<std::uint64_t>(qp.layout.message_ids(), 16)));
    qp.max_message_bytes = random.between(1, 60'000);
    config.link.limits.max_payload_bytes = 4096;
    config.link.limits.channels = static_cast<std::uint32_t>(random.between(1, 4));
    config.connection.scheme = scheme;
    if (scheme.coded()) {  // the code itself is random too
        scheme.data_symbols =
            static_cast<std::uint8_t>(random.below(8) == 0 ? random.between(1, 200) : random.between(1, 40));
        scheme.parity_symbols = static_cast<std::uint8_t>(random.between(1, 10));
        if (scheme.kind == Scheme::Kind::kErasureXor)
            scheme.parity_symbols = std::min(scheme.parity_symbols, scheme.data_symbols);
        scheme.chunk_symbols = random.below(3) == 0;
        qp.packets_per_chunk = std::min(qp.packets_per_chunk, 16u);
        config.connection.scheme = scheme;
    }
    if (scheme.kind == Scheme::Kind::kAuto) {
        // Some know the line's rate, and so that only a tail needs parity.
        if (random.below(2) == 0) config.connection.line_rate = config.link.forward.rate;
        if (random.below(3) == 0) config.connection.window_bytes = random.between(1, 200'000);
    }
    // The handshake's estimate may be far off.
    const Duration rtt = config.link.forward.delay + config.link.backward.delay;
    config.connection.initial_rtt = std::max(rtt.scaled(0.3 + 2 * random.uniform()), Duration::from_microseconds(10));
    qp.initial_rtt = config.connection.initial_rtt;
    config.connection.peer_timeout = Duration::from_milliseconds(600'000);  // nobody dies here, links are just bad
    qp.control_timeout = Duration::from_milliseconds(600'000);
    return config;
}

struct Direction {
    std::vector<std::vector<std::byte>> data;
    std::vector<std::unique_ptr<Guarded>> buffers;
    std::vector<bool> with_immediate;
    std::size_t written = 0, received = 0;
};

// Returns a hash of everything that happened.
std::uint64_t run_seed(std::uint64_t seed, Scheme scheme) {
    Random random(seed);
    PairConfig config = random_config(random, scheme);
    config.link.hash_trace = true;
    std::optional<wire::SimExecutor> workers;
    wire::SimLoop loop;
    if (scheme.kind == Scheme::Kind::kAuto && random.below(2) == 0) {
        workers.emplace(loop, 1e6 * static_cast<double>(random.between(1, 10'000)),
                        static_cast<std::uint32_t>(random.between(1, 4)));
        config.connection.executor = &*workers;
    }
    Pair pair(config, loop);
    pair.loop.set_event_budget(30'000'000);
    Direction directions[2];
    for (int d = 0; d < 2; ++d) {
        Direction& direction = directions[d];
        Connection& to = d == 0 ? *pair.b : *pair.a;
        Connection& from = d == 0 ? *pair.a : *pair.b;
        const std::size_t count = d == 0 ? random.between(1, 12) : random.below(4);
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t size =
                random.below(5) == 0 ? random.below(3) : random.below(random.below(4) == 0 ? 150'000 : 9'000);
            const std::size_t posted = size + (random.below(3) == 0 ? random.below(20'000) : 0);
            direction.data.push_back(pattern(size, random()));
            direction.buffers.push_back(std::make_unique<Guarded>(posted));
            direction.with_immediate.push_back(random.below(4) == 0);
        }
        for (std::size_t i = 0; i < count; ++i) {
            const auto post = [&direction, &to, i] {
                auto id = to.receive(
                    direction.buffers[i]->data(), direction.buffers[i]->size(),
                    [&direction, i](Result<ReceiveResult> result) {
                        ASSERT_TRUE(result) << result.error().message;
                        ASSERT_EQ(result->length, direction.data[i].size());
                        if (direction.with_immediate[i]) {
                            ASSERT_EQ(result->immediate, static_cast<std::uint32_t>(i * 0x01234567));
                        }
                        // What the application does with its buffer is its own affair from here on.
                        ASSERT_TRUE(direction.buffers[i]->holds(direction.data[i]));
                        ASSERT_TRUE(direction.buffers[i]->untouched_from(direction.data[i].size()));
                        std::memset(direction.buffers[i]->data(), 0xA5, direction.buffers[i]->size());
                        ++direction.received;
                    },
                    direction.with_immediate[i]);
                ASSERT_TRUE(id);
            };
            const auto write = [&direction, &from, i] {
                std::optional<std::uint32_t> immediate;
                if (direction.with_immediate[i]) immediate = static_cast<std::uint32_t>(i * 0x01234567);
                ASSERT_TRUE(from.write(
                    direction.data[i].data(), direction.data[i].size(),
                    [&direction](Status status) {
                        ASSERT_TRUE(status) << status.error().message;
                        ++direction.written;
                    },
                    immediate));
            };
            // Posted and written at about the same time, in order, now one first and now the other.
            const auto when = Duration::from_microseconds(static_cast<std::int64_t>(i * 1000));
            pair.loop.call_after(when + Duration::from_microseconds(static_cast<std::int64_t>(random.below(1000))),
                                 post);
            pair.loop.call_after(when + Duration::from_microseconds(static_cast<std::int64_t>(random.below(1000))),
                                 write);
        }
    }
    const auto unfinished = [&] {
        for (const Direction& direction : directions)
            if (direction.written < direction.data.size() || direction.received < direction.data.size()) return true;
        return false;
    };
    auto ran = pair.loop.run_while(unfinished, TimePoint{} + Duration::from_milliseconds(3'600'000));
    EXPECT_TRUE(ran) << ran.error().message;
    // What is still on the way must not touch anything.
    EXPECT_TRUE(pair.loop.run_for(Duration::from_milliseconds(1000)));
    for (const Direction& direction : directions) {
        EXPECT_EQ(direction.written, direction.data.size());
        EXPECT_EQ(direction.received, direction.data.size());
        for (const auto& buffer : direction.buffers) {
            EXPECT_TRUE(buffer->guards_intact());
            EXPECT_TRUE(buffer->untouched_from(0));
        }
    }
    EXPECT_EQ(pair.a->counters().malformed + pair.b->counters().malformed, 0u);
    EXPECT_EQ(pair.a->queue_pair().counters().malformed_datagrams + pair.b->queue_pair().counters().malformed_datagrams,
              0u);
    return pair.network.trace_hash();
}

class Property : public ::testing::TestWithParam<Scheme> {};
INSTANTIATE_TEST_SUITE_P(Schemes, Property,
                         ::testing::Values(Scheme::kGoBackN, Scheme::kSelectiveRepeat, Scheme::kSelectiveRepeatNack,
                                           *parse_scheme("ec"), *parse_scheme("ec-xor"), Scheme::kAuto),
                         [](const auto& scheme) {
                             auto name = to_string(scheme.param);
                             name = name.substr(0, name.find(':'));
                             std::erase(name, '-');
                             return name;
                         });

TEST_P(Property, EveryWriteArrivesExactly) {
    const char* one = std::getenv("FARHAUL_SEED");
    const char* many = std::getenv("FARHAUL_SEEDS");
    const std::uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 0) : 0;
    const std::uint64_t count =
        one != nullptr ? 1 : (many != nullptr ? std::strtoull(many, nullptr, 0) : kDefaultSeeds) / 6 + 1;
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
        const std::uint64_t hash = run_seed(seed, GetParam());
        if (seed % 16 == 0 || one != nullptr) {
            EXPECT_EQ(run_seed(seed, GetParam()), hash) << "a seed must replay bit for bit";
        }
        if (HasFailure()) {
            FAIL() << "seed " << seed << " of scheme " << to_string(GetParam())
                   << "; replay with: FARHAUL_SEED=" << seed
                   << " reliable_test --gtest_filter='*EveryWriteArrivesExactly/"
                   << ::testing::UnitTest::GetInstance()->current_test_info()->name() << "*'";
        }
    }
}

}  // namespace
}  // namespace farhaul::reliable
