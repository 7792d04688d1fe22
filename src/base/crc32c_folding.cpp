// CRC32C by two units of the CPU at once. The crc32 instruction takes 8 bytes per cycle when three independent streams
// hide its latency of three cycles. Carry-less multiplication of 256-bit registers (VPCLMULQDQ) folds at about the same
// speed on another execution port. So a block is cut in two: its first half is folded, its second half goes through
// three crc32 streams, in one loop, and the four parts are joined at the end:
//
//   [ folded: 128 (k + 1) bytes ][ lane 0 ][ lane 1 ][ lane 2 ][ rest, less than 32 bytes ]
//
// Sources of the arithmetic: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction" (Intel, 2009), and "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction" (Intel, 2011).
// Everything is bit-reflected, as the CRC is:
//   - folding a 128-bit value by D bits multiplies its first 64 bits by x^(D+31) and its last 64 by x^(D-33) (mod P):
//   32 of the missing powers
//     come from where the constant lies in its 64-bit operand, one from the reflected product;
//   - appending m bytes to data with CRC c multiplies c by x^(8m); crc32(0, c * x^(8m-33)) does that, as the
//   instruction multiplies by x^32.
#include "base/crc32c.hpp"

#if defined(__x86_64__)

#include <array>
#include <cstring>

#include <immintrin.h>

namespace farhaul::detail {

namespace {

constexpr std::uint32_t times_x(std::uint32_t value) { return (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0); }

/// x^n mod P, reflected.
constexpr std::uint32_t power_of_x(unsigned n) {
    std::uint32_t value = 0x80000000u;
    while (n-- > 0) value = times_x(value);
    return value;
}

constexpr std::uint64_t fold_first(unsigned bits) { return power_of_x(bits + 31); }
constexpr std::uint64_t fold_last(unsigned bits) { return power_of_x(bits - 33); }

/// Longest lane, in words of 8 bytes. Longer data goes in several blocks of about 4 KiB, so that each can prefetch all
/// of the next.
constexpr std::size_t kMaxLaneWords = 100;

/// [i] multiplies a CRC by x^(64 i) together with a crc32 instruction, for appending i words.
constexpr auto kAppend = [] {
    std::array<std::uint32_t, 3 * kMaxLaneWords + 1> table{};
    std::uint32_t value = power_of_x(64 - 33);
    for (std::size_t i = 1; i < table.size(); ++i) {
        table[i] = value;
        for (int bit = 0; bit < 64; ++bit) value = times_x(value);
    }
    return table;
}();

#define FARHAUL_FOLDING __attribute__((target("avx2,pclmul,vpclmulqdq,sse4.2"), always_inline)) inline

FARHAUL_FOLDING __m256i fold(__m256i value, __m256i constants, __m256i with) {
    const __m256i first = _mm256_clmulepi64_epi128(value, constants, 0x00);
    const __m256i last = _mm256_clmulepi64_epi128(value, constants, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(first, last), with);
}

FARHAUL_FOLDING __m256i load(const std::byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(from));
}

FARHAUL_FOLDING std::uint64_t word(const std::byte* from) {
    std::uint64_t value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

template <unsigned kBits>
FARHAUL_FOLDING __m256i constants() {
    constexpr auto kFirst = static_cast<long long>(fold_first(kBits)), kLast = static_cast<long long>(fold_last(kBits));
    return _mm256_set_epi64x(kLast, kFirst, kLast, kFirst);
}

/// c * x^(64 words - 32), as 64 bits.
FARHAUL_FOLDING std::uint64_t append(std::uint64_t crc, std::size_t words) {
    const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(crc)),
                                                 _mm_cvtsi32_si128(static_cast<int>(kAppend[words])), 0x00);
    return static_cast<std::uint64_t>(_mm_cvtsi128_si64(product));
}

/// The register after `data` of 8 or fewer bytes per step.
__attribute__((target("sse4.2"))) std::uint32_t plain(const std::byte* data, std::size_t size, std::uint32_t crc) {
    std::uint64_t state = crc;
    for (; size >= 8; size -= 8, data += 8) {
        std::uint64_t value;
        std::memcpy(&value, data, sizeof(value));
        state = _mm_crc32_u64(state, value);
    }
    crc = static_cast<std::uint32_t>(state);
    if ((size & 4) != 0) {
        std::uint32_t value;
        std::memcpy(&value, data, sizeof(value));
        crc = _mm_crc32_u32(crc, value);
        data += 4;
    }
    if ((size & 2) != 0) {
        std::uint16_t value;
        std::memcpy(&value, data, sizeof(value));
        crc = _mm_crc32_u16(crc, value);
        data += 2;
    }
    if ((size & 1) != 0) crc = _mm_crc32_u8(crc, static_cast<std::uint8_t>(*data));
    return crc;
}

constexpr std::size_t kFoldStep = 128;        // four registers
constexpr std::size_t kLaneWordsPerStep = 5;  // as long as a fold step takes: 3 * 5 cycles
constexpr std::size_t kStep = kFoldStep + 3 * 8 * kLaneWordsPerStep;
constexpr std::size_t kMaxSteps =
    kMaxLaneWords / kLaneWordsPerStep - 3;  // the lanes take what is left over: less than 3 steps' worth
constexpr std::size_t kMaxBlock = kFoldStep + kMaxSteps * kStep;
/// Below this, joining the parts costs more than it brings (measured: 512 bytes).
constexpr std::size_t kShortest = 512;
static_assert(kShortest >= kFoldStep + kStep);

/// The register after a block of kShortest..kMaxBlock bytes, all of them.
__attribute__((target("avx2,pclmul,vpclmulqdq,sse4.2"))) std::uint32_t block(const std::byte* data, std::size_t size,
                                                                             std::uint32_t crc) {
    const std::size_t steps = (size - kFoldStep) / kStep;
    const std::size_t folded = kFoldStep * (steps + 1);
    const std::size_t lane_words = (size - folded) / 24;
    const std::byte* lane0 = data + folded;
    const std::byte* lane1 = lane0 + lane_words * 8;
    const std::byte* lane2 = lane1 + lane_words * 8;
    const std::byte* const end = data + size;
    const std::byte* ahead = end;

    __m256i a = _mm256_xor_si256(load(data), _mm256_set_epi64x(0, 0, 0, static_cast<long long>(crc)));
    __m256i b = load(data + 32), c = load(data + 64), d = load(data + 96);
    const __m256i by_step = constants<kFoldStep * 8>();
    std::uint64_t crc0 = 0, crc1 = 0, crc2 = 0;
    for (std::size_t i = 0; i < steps; ++i) {
        // Four short streams are too much for the hardware's prefetcher. What comes next in memory is most likely the
        // next packet.
        for (std::size_t line = 0; line < 5; ++line)
            _mm_prefetch(reinterpret_cast<const char*>(ahead + 64 * line), _MM_HINT_T0);
        ahead += 5 * 64;
        data += kFoldStep;
        a = fold(a, by_step, load(data));
        b = fold(b, by_step, load(data + 32));
        c = fold(c, by_step, load(data + 64));
        d = fold(d, by_step, load(data + 96));
#pragma GCC unroll 5
        for (std::size_t k = 0; k < kLaneWordsPerStep; ++k) {
            crc0 = _mm_crc32_u64(crc0, word(lane0 + 8 * k));
            crc1 = _mm_crc32_u64(crc1, word(lane1 + 8 * k));
            crc2 = _mm_crc32_u64(crc2, word(lane2 + 8 * k));
        }
        lane0 += 8 * kLaneWordsPerStep;
        lane1 += 8 * kLaneWordsPerStep;
        lane2 += 8 * kLaneWordsPerStep;
    }
    for (std::size_t i = steps * kLaneWordsPerStep; i < lane_words; ++i) {
        crc0 = _mm_crc32_u64(crc0, word(lane0));
        crc1 = _mm_crc32_u64(crc1, word(lane1));
        crc2 = _mm_crc32_u64(crc2, word(lane2));
        lane0 += 8;
        lane1 += 8;
        lane2 += 8;
    }
    // Four registers to one, one to its second half, that to 32 bits.
    const __m256i by_register = constants<256>();
    b = fold(a, by_register, b);
    d = fold(c, by_register, d);
    d = fold(b, constants<512>(), d);
    const __m128i first = _mm256_castsi256_si128(d), second = _mm256_extracti128_si256(d, 1);
    const __m128i by_half = _mm256_castsi256_si128(constants<128>());
    const __m128i joined = _mm_xor_si128(
        second, _mm_xor_si128(_mm_clmulepi64_si128(first, by_half, 0x00), _mm_clmulepi64_si128(first, by_half, 0x11)));
    std::uint64_t state = _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(joined)));
    state = _mm_crc32_u64(state, static_cast<std::uint64_t>(_mm_extract_epi64(joined, 1)));

    const std::uint64_t parts = append(state, 3 * lane_words) ^ append(crc0, 2 * lane_words) ^ append(crc1, lane_words);
    const std::uint64_t all = _mm_crc32_u64(0, parts) ^ crc2;
    return plain(lane2, static_cast<std::size_t>(end - lane2), static_cast<std::uint32_t>(all));
}

}  // namespace

bool crc32c_has_folding() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("vpclmulqdq") &&
           __builtin_cpu_supports("sse4.2");
}

std::uint32_t crc32c_folding(std::span<const std::byte> bytes, std::uint32_t previous) {
    const std::byte* data = bytes.data();
    std::size_t left = bytes.size();
    std::uint32_t crc = ~previous;
    while (left >= kShortest) {
        const std::size_t size = left < kMaxBlock ? left : kMaxBlock;
        crc = block(data, size, crc);
        data += size;
        left -= size;
    }
    if (left >= 64) return crc32c_isal({data, left}, ~crc);
    return ~plain(data, left, crc);
}

}  // namespace farhaul::detail

#else

namespace farhaul::detail {

bool crc32c_has_folding() { return false; }
std::uint32_t crc32c_folding(std::span<const std::byte> bytes, std::uint32_t previous) {
    return crc32c_isal(bytes, previous);
}

}  // namespace farhaul::detail

#endif
