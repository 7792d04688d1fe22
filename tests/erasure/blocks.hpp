// A block in memory with guard bytes around every chunk, for tests of codes.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "erasure/code.hpp"

namespace farhaul::erasure {

class TestBlock {
 public:
    static constexpr std::size_t kGuard = 64;
    static constexpr std::byte kGuardByte{0xa5};

    /// `data_chunks` of `chunk_bytes` random bytes, the last with `last_bytes`, and room for `parity_chunks`. Each
    /// chunk begins at an address that is `offset` off a multiple of 64.
    TestBlock(unsigned data_chunks, unsigned parity_chunks, std::size_t chunk_bytes, std::size_t last_bytes,
              std::uint64_t seed, std::size_t offset = 0)
        : chunk_bytes_(chunk_bytes), last_bytes_(last_bytes) {
        Random random(seed);
        const unsigned count = data_chunks + parity_chunks;
        const std::size_t stride = (chunk_bytes + 2 * kGuard + 63) / 64 * 64 + 64;
        memory_.assign(count * stride + 128, kGuardByte);
        auto base = reinterpret_cast<std::uintptr_t>(memory_.data());
        std::byte* const first = memory_.data() + (64 - base % 64) % 64 + kGuard + offset % 64;
        for (unsigned i = 0; i < count; ++i) {
            std::byte* const chunk = first + i * stride;
            (i < data_chunks ? data_ : parity_).push_back(chunk);
            for (std::size_t b = 0; b < size_of(i); ++b) chunk[b] = static_cast<std::byte>(random());
        }
        for (unsigned i = 0; i < data_chunks; ++i) original_.emplace_back(data_[i], data_[i] + size_of(i));
    }

    Block view() { return {chunk_bytes_, last_bytes_, data_, parity_}; }
    std::vector<std::byte*>& data() { return data_; }
    std::vector<std::byte*>& parity() { return parity_; }
    std::size_t size_of(unsigned chunk) const { return chunk + 1 == data_.size() ? last_bytes_ : chunk_bytes_; }
    std::vector<std::byte> parity_bytes(unsigned i) const { return {parity_[i], parity_[i] + chunk_bytes_}; }
    bool intact(unsigned chunk) const {
        return std::memcmp(data_[chunk], original_[chunk].data(), original_[chunk].size()) == 0;
    }
    void wreck(unsigned chunk) { std::memset(data_[chunk], 0xee, size_of(chunk)); }
    void wreck_parity(unsigned i) { std::memset(parity_[i], 0xee, chunk_bytes_); }
    const std::vector<std::byte>& original(unsigned chunk) const { return original_[chunk]; }
    void restore() {
        for (unsigned i = 0; i < data_.size(); ++i) std::memcpy(data_[i], original_[i].data(), original_[i].size());
    }
    /// Whether a byte outside the chunks was written.
    bool guards_hold() const {
        std::vector<std::pair<const std::byte*, std::size_t>> chunks;
        for (unsigned i = 0; i < data_.size(); ++i) chunks.emplace_back(data_[i], original_[i].size());
        for (const std::byte* p : parity_) chunks.emplace_back(p, chunk_bytes_);
        const std::byte* at = memory_.data();
        for (const auto& [chunk, bytes] : chunks) {
            for (; at < chunk; ++at) {
                if (*at != kGuardByte) return false;
            }
            at = chunk + bytes;
        }
        for (; at < memory_.data() + memory_.size(); ++at) {
            if (*at != kGuardByte) return false;
        }
        return true;
    }

 private:
    std::size_t chunk_bytes_, last_bytes_;
    std::vector<std::byte> memory_;
    std::vector<std::byte*> data_, parity_;
    std::vector<std::vector<std::byte>> original_;
};

inline Code make_code(Kind kind, unsigned k, unsigned m, const Engine& engine = best_engine()) {
    auto code = Code::create({kind, k, m}, engine);
    if (!code) throw std::runtime_error(code.error().message);
    return std::move(*code);
}

}  // namespace farhaul::erasure
