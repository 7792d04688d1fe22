// What property tests share: seeds, random links, buffers that notice every byte that somebody should not have touched.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "wire/sim/sim_network.hpp"

namespace farhaul::properties {

/// What one seed led to: empty `problem` when all was well, and a hash of everything that happened.
struct Outcome {
    std::string problem;
    std::uint64_t hash = 0;
};

/// Runs `property(seed)` for `share` of all seeds (10,000, or FARHAUL_SEEDS), or for FARHAUL_SEED alone. One seed in
/// `replay_every` runs twice and must give the same hash. A seed that fails is printed with the command that replays
/// it; after five the test gives up.
inline void for_each_seed(double share, std::uint64_t replay_every,
                          const std::function<Outcome(std::uint64_t)>& property) {
    const char* only = std::getenv("FARHAUL_SEED");
    const char* count_text = std::getenv("FARHAUL_SEEDS");
    const std::uint64_t all = count_text != nullptr ? std::strtoull(count_text, nullptr, 10) : 10'000;
    const std::uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
    const auto count = only != nullptr ? 1
                                       : std::max<std::uint64_t>(
                                             1, static_cast<std::uint64_t>(static_cast<double>(all) * share + 0.5));
    int failures = 0;
    for (std::uint64_t seed = first; seed < first + count && failures < 5; ++seed) {
        Outcome outcome = property(seed);
        if (outcome.problem.empty() && (only != nullptr || seed % replay_every == 0)) {
            const Outcome again = property(seed);
            if (!again.problem.empty())
                outcome.problem = "only the second run failed: " + again.problem;
            else if (again.hash != outcome.hash)
                outcome.problem = "two runs of the seed differ";
        }
        if (outcome.problem.empty()) continue;
        ++failures;
        const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
        ADD_FAILURE() << "seed " << seed << ": " << outcome.problem << "\n  replay: FARHAUL_SEED=" << seed
                      << " build/bin/properties_test --gtest_filter=" << test->test_suite_name() << "." << test->name();
    }
}

/// How bad random_link() may be.
struct Hostility {
    double loss = 0.3;
    bool reorder = true;
    bool duplicate = true;
    bool corrupt = true;
    bool bursts = true;
};

inline link::LinkConfig random_direction(Random& random, const Hostility& hostility) {
    static constexpr std::uint64_t kRates[] = {0, 10'000'000, 1'000'000'000, 10'000'000'000, 400'000'000'000};
    link::LinkConfig link;
    link.rate = BitRate::from_bits_per_second(kRates[random.below(std::size(kRates))]);
    link.delay = Duration::from_nanoseconds(
        random.chance(0.2) ? 0 : static_cast<std::int64_t>(random.below(1ull << random.between(8, 24))));
    link.overhead_bytes = random.chance(0.5) ? 0 : static_cast<std::uint32_t>(random.below(100));
    if (random.chance(0.7))
        link.loss.probability = hostility.loss * (random.chance(0.5) ? random.uniform() : random.uniform() * 0.1);
    if (hostility.bursts && random.chance(0.3)) link.loss.mean_burst_packets = 1 + random.uniform() * 20;
    if (random.chance(0.3))
        link.jitter =
            Duration::from_nanoseconds(static_cast<std::int64_t>(random.below(1ull << random.between(1, 22))));
    if (hostility.reorder && random.chance(0.5)) {
        link.reorder_probability = random.uniform() * (random.chance(0.2) ? 1.0 : 0.2);
        link.reorder_delay =
            Duration::from_nanoseconds(1 + static_cast<std::int64_t>(random.below(1ull << random.between(4, 25))));
    }
    if (hostility.duplicate && random.chance(0.3)) link.duplicate_probability = random.uniform() * 0.3;
    if (hostility.corrupt && random.chance(0.3)) link.corrupt_probability = random.uniform() * 0.2;
    return link;
}

/// A link with payload; limits and layout are the caller's to set.
inline wire::SimLinkConfig random_link(Random& random, const Hostility& hostility) {
    wire::SimLinkConfig config;
    config.forward = random_direction(random, hostility);
    config.backward = random_direction(random, hostility);
    config.coalesce = Duration::from_nanoseconds(static_cast<std::int64_t>(random.below(4) * 1'000));
    config.coalesce_packets = static_cast<std::uint32_t>(random.between(1, 64));
    config.tx_packets = static_cast<std::uint32_t>(random.between(1, 64));
    config.limits.carries_payload = true;
    config.hash_trace = true;
    return config;
}

/// Bytes of a message: every message of a seed has other ones.
inline std::vector<std::byte> message_content(std::uint64_t seed, std::size_t size) {
    Random random(seed);
    std::vector<std::byte> bytes(size);
    for (std::size_t at = 0; at < size; at += 8) {
        const std::uint64_t word = random();
        std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, size - at));
    }
    return bytes;
}

/// A buffer between two guard zones, all of one colour until something is written. repaint() gives it a new colour, so
/// that a late write shows even when it repeats what was there before.
class PaintedBuffer {
 public:
    static constexpr std::size_t kGuard = 128;
    explicit PaintedBuffer(std::size_t size) : bytes_(size + 2 * kGuard) { repaint(); }
    std::byte* data() { return bytes_.data() + kGuard; }
    std::size_t size() const { return bytes_.size() - 2 * kGuard; }
    void repaint() {
        colour_ = static_cast<std::byte>(static_cast<unsigned>(colour_) + 0x35);
        std::memset(bytes_.data(), static_cast<int>(colour_), bytes_.size());
    }
    /// Nothing was written to [offset, offset + length) since repaint().
    bool untouched(std::size_t offset, std::size_t length) const { return all(kGuard + offset, length); }
    /// Nothing was written at or behind `offset`, nor before the buffer.
    bool guards_untouched(std::size_t offset) const {
        return all(0, kGuard) && all(kGuard + offset, bytes_.size() - kGuard - offset);
    }
    bool untouched() const { return all(0, bytes_.size()); }

 private:
    bool all(std::size_t from, std::size_t length) const {
        if (length == 0) return true;
        const std::byte* p = bytes_.data() + from;
        return p[0] == colour_ && std::memcmp(p, p + 1, length - 1) == 0;
    }
    std::vector<std::byte> bytes_;
    std::byte colour_{0x11};
};

}  // namespace farhaul::properties
