#include "erasure/accumulator.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace farhaul::erasure {

Status Accumulator::begin(std::span<std::byte* const> parity, std::size_t chunk_bytes) {
    if (parity.empty() || parity.size() > code_->m() || std::ranges::find(parity, nullptr) != parity.end()) {
        return fail(ErrorCode::kInvalidArgument, "{} builds 1 to {} parity chunks, none of them null; {} were given",
                    to_string(code_->parameters()), code_->m(), parity.size());
    }
    if (chunk_bytes == 0 || chunk_bytes > kMostChunkBytes) {
        return fail(ErrorCode::kInvalidArgument, "chunks have 1 byte to 1 GiB, not {}", chunk_bytes);
    }
    std::ranges::copy(parity, parity_);
    rows_ = static_cast<unsigned>(parity.size());
    chunk_bytes_ = chunk_bytes;
    added_ = {};
    for (std::byte* chunk : parity) std::memset(chunk, 0, chunk_bytes);
    return {};
}

Status Accumulator::add(unsigned first, std::span<const std::byte* const> chunks, std::size_t last_bytes) {
    if (rows_ == 0) return fail(ErrorCode::kInvalidArgument, "no block was begun");
    if (chunks.empty() || first >= code_->k() || chunks.size() > code_->k() - first) {
        return fail(ErrorCode::kInvalidArgument, "{} chunks from number {} on do not fit a block of {}", chunks.size(),
                    first, code_->k());
    }
    if (last_bytes == 0 || last_bytes > chunk_bytes_) {
        return fail(ErrorCode::kInvalidArgument, "the last chunk has {} bytes; chunks of this block have 1 to {}",
                    last_bytes, chunk_bytes_);
    }
    const auto count = static_cast<unsigned>(chunks.size());
    for (unsigned c = 0; c < count; ++c) {
        if (!chunks[c]) return fail(ErrorCode::kInvalidArgument, "chunk {} is null", first + c);
        if (added_.test(first + c)) return fail(ErrorCode::kInvalidArgument, "chunk {} was added before", first + c);
    }
    add_part(first, chunks.data(), count, 0, last_bytes);
    if (last_bytes < chunk_bytes_ && count > 1)
        add_part(first, chunks.data(), count - 1, last_bytes, chunk_bytes_ - last_bytes);
    for (unsigned c = 0; c < count; ++c) added_.set(first + c);
    return {};
}

void Accumulator::add_part(unsigned first, const std::byte* const* chunks, unsigned count, std::size_t offset,
                           std::size_t bytes) {
    const Engine& engine = code_->engine();
    std::array<const std::byte*, Pattern::kCapacity> sources;
    if (code_->is_exclusive_or()) {
        const unsigned m = code_->m();
        for (unsigned row = 0; row < rows_; ++row) {
            unsigned n = 0;
            sources[n++] = parity_[row] + offset;
            for (unsigned c = (row + m - first % m) % m; c < count; c += m) sources[n++] = chunks[c] + offset;
            if (n > 1) engine.exclusive_or(sources.data(), n, parity_[row] + offset, bytes);
        }
        return;
    }
    std::array<std::byte*, Pattern::kCapacity> targets;
    for (unsigned c = 0; c < count; ++c) sources[c] = chunks[c] + offset;
    for (unsigned row = 0; row < rows_; ++row) targets[row] = parity_[row] + offset;
    engine.multiply({.tables = code_->tables(0) + std::size_t{first} * engine.bytes_per_coefficient,
                     .stride = code_->k(),
                     .rows = rows_,
                     .columns = count,
                     .sources = sources.data(),
                     .targets = targets.data(),
                     .bytes = bytes,
                     .add = true});
}

}  // namespace farhaul::erasure
