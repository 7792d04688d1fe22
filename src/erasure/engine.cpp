// ISA-L's loops behind the Engine interface, and the choice of an engine.
#include "erasure/engine.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include <isa-l/erasure_code.h>

#include "base/log.hpp"

namespace farhaul::erasure {

namespace {

constexpr std::size_t kTableBytes = 32;
// ISA-L's vector loops want at least this many bytes in a row; its plain ones take any.
constexpr std::size_t kLeastBytes = 64;
// Sources are added one after the other to a stretch of the targets that stays in the first-level cache. ISA-L's own
// product over all sources reads half a cache line of each in turn: the chunks of a block often lie a power of two
// apart and so compete for the same few places in the cache, and the line is gone when its second half is wanted.
constexpr std::size_t kStretch = 4096;

// ISA-L's interface knows no const.
unsigned char* bytes_of(const std::byte* p) { return reinterpret_cast<unsigned char*>(const_cast<std::byte*>(p)); }

void isal_prepare(const std::uint8_t* coefficients, std::size_t count, std::byte* tables) {
    for (std::size_t i = 0; i < count; ++i) gf_vect_mul_init(coefficients[i], bytes_of(tables + i * kTableBytes));
}

void isal_add(const Product& p, std::size_t begin, std::size_t bytes) {
    std::array<unsigned char*, 256> targets;
    for (unsigned r = 0; r < p.rows; ++r) targets[r] = bytes_of(p.targets[r] + begin);
    const auto update = bytes < kLeastBytes ? ec_encode_data_update_base : ec_encode_data_update;
    for (unsigned c = 0; c < p.columns; ++c) {
        update(static_cast<int>(bytes), static_cast<int>(p.stride), static_cast<int>(p.rows), static_cast<int>(c),
               bytes_of(p.tables), bytes_of(p.sources[c] + begin), targets.data());
    }
}

void isal_multiply(const Product& p) {
    // The last stretch is between one and two long, so that none is shorter than the vector loops take.
    for (std::size_t begin = 0; begin < p.bytes;) {
        const std::size_t left = p.bytes - begin;
        const std::size_t bytes = left < 2 * kStretch ? left : kStretch;
        if (!p.add) {
            for (unsigned r = 0; r < p.rows; ++r) std::memset(p.targets[r] + begin, 0, bytes);
        }
        isal_add(p, begin, bytes);
        begin += bytes;
    }
}

struct Registry {
    Registry() {
        __builtin_cpu_init();
        const bool avx2_here = __builtin_cpu_supports("avx2");
        const bool avx512_here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
        const bool gfni_here = __builtin_cpu_supports("gfni");
        if (avx2_here) isal.xor_name = "avx2", isal.exclusive_or = detail::xor_avx2;
        if (avx512_here && gfni_here) {
            isal.xor_name = "avx512", isal.exclusive_or = detail::xor_avx512;
            available[count++] = &gfni_avx512;
        }
        if (avx2_here && gfni_here) available[count++] = &gfni_avx2;
        available[count++] = &isal;
        best = available[0];
        if (const char* wanted = std::getenv("FARHAUL_CODING")) {
            const auto found = std::find_if(available.begin(), available.begin() + count,
                                            [&](const Engine* e) { return e->name == wanted; });
            if (found != available.begin() + count) {
                best = *found;
            } else {
                log().warn("FARHAUL_CODING={} is not an engine that this processor can run; using {}", wanted,
                           best->name);
            }
        }
    }
    Engine isal{"isa-l", "sse2", kTableBytes, isal_prepare, isal_multiply, detail::xor_sse2};
    Engine gfni_avx512{"gfni-avx512",     "avx512", 8, detail::affine_prepare, detail::gfni_avx512_multiply,
                       detail::xor_avx512};
    Engine gfni_avx2{"gfni-avx2", "avx2", 8, detail::affine_prepare, detail::gfni_avx2_multiply, detail::xor_avx2};
    std::array<const Engine*, 3> available{};
    std::ptrdiff_t count = 0;
    const Engine* best = nullptr;
};

const Registry& registry() {
    static const Registry instance;
    return instance;
}

}  // namespace

const Engine& best_engine() { return *registry().best; }

std::span<const Engine* const> engines() {
    return std::span(registry().available).first(static_cast<std::size_t>(registry().count));
}

const Engine* find_engine(std::string_view name) {
    const auto all = engines();
    const auto found = std::ranges::find_if(all, [&](const Engine* e) { return e->name == name; });
    return found == all.end() ? nullptr : *found;
}

}  // namespace farhaul::erasure
