// A small, fast, seedable generator, the same on every machine, so that a seed replays bit for bit.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/uint128.hpp"

namespace farhaul {

/// xoshiro256++ (Blackman and Vigna, "Scrambled linear pseudorandom number generators"), seeded through splitmix64.
/// Not for secrets: tokens and keys come from the operating system.
class Random {
 public:
    using result_type = std::uint64_t;
    explicit Random(std::uint64_t seed) {
        for (auto& word : state_) {
            seed += 0x9e3779b97f4a7c15ull;
            std::uint64_t z = seed;
            z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
            z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
            word = z ^ (z >> 31);
        }
    }
    static constexpr std::uint64_t min() { return 0; }
    static constexpr std::uint64_t max() { return ~0ull; }

    std::uint64_t operator()() {
        const std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
        const std::uint64_t t = state_[1] << 17;
        state_[2] ^= state_[0];
        state_[3] ^= state_[1];
        state_[1] ^= state_[2];
        state_[0] ^= state_[3];
        state_[2] ^= t;
        state_[3] = std::rotl(state_[3], 45);
        return result;
    }
    /// Uniform in [0, bound); bound must not be 0. Bias below 2^-64 * bound.
    std::uint64_t below(std::uint64_t bound) {
        return static_cast<std::uint64_t>((static_cast<Uint128>((*this)()) * bound) >> 64);
    }
    /// Uniform in [low, high], both included.
    std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + below(high - low + 1); }
    /// Uniform in [0, 1).
    double uniform() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }
    bool chance(double probability) { return uniform() < probability; }
    /// Number of failures before the first success of probability p: how many packets pass before the next loss.
    /// p in (0, 1]; the result is capped at 2^62.
    std::uint64_t geometric(double p) {
        if (p >= 1) return 0;
        const double value = std::floor(std::log1p(-uniform()) / std::log1p(-p));
        return value < 4.6e18 ? static_cast<std::uint64_t>(value) : 1ull << 62;
    }
    /// A generator whose stream is independent of this one's further draws.
    Random split() { return Random((*this)()); }

 private:
    std::array<std::uint64_t, 4> state_{};
};

}  // namespace farhaul
