// A set of chunks of one block: bit i is data chunk i, bit k + i is parity chunk i. Blocks have at most 255 chunks.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace farhaul::erasure {

class Pattern {
 public:
    static constexpr unsigned kCapacity = 256;
    constexpr Pattern() = default;
    /// The chunks 0 .. count-1; count up to kCapacity.
    static constexpr Pattern first(unsigned count) {
        Pattern pattern;
        for (unsigned word = 0; word < 4; ++word) {
            const unsigned bits = count > word * 64 ? count - word * 64 : 0;
            pattern.words_[word] = bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
        }
        return pattern;
    }

    constexpr bool test(unsigned i) const { return words_[i / 64] >> (i % 64) & 1; }
    constexpr void set(unsigned i) { words_[i / 64] |= std::uint64_t{1} << (i % 64); }
    constexpr void clear(unsigned i) { words_[i / 64] &= ~(std::uint64_t{1} << (i % 64)); }
    constexpr bool none() const { return (words_[0] | words_[1] | words_[2] | words_[3]) == 0; }
    constexpr unsigned count() const {
        unsigned bits = 0;
        for (const auto word : words_) bits += static_cast<unsigned>(std::popcount(word));
        return bits;
    }
    /// How many of the chunks 0 .. end-1 are in the set.
    constexpr unsigned count_below(unsigned end) const { return (*this & first(end)).count(); }
    constexpr bool operator==(const Pattern&) const = default;
    constexpr Pattern operator&(const Pattern& other) const {
        Pattern both;
        for (unsigned word = 0; word < 4; ++word) both.words_[word] = words_[word] & other.words_[word];
        return both;
    }
    /// The chunks that are here and not in `other`.
    constexpr Pattern without(const Pattern& other) const {
        Pattern rest;
        for (unsigned word = 0; word < 4; ++word) rest.words_[word] = words_[word] & ~other.words_[word];
        return rest;
    }

 private:
    std::array<std::uint64_t, 4> words_{};
};

}  // namespace farhaul::erasure
