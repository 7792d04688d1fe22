#include "erasure/code.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include <isa-l/erasure_code.h>

namespace farhaul::erasure {

Status validate(const Parameters& parameters) {
    const auto [kind, k, m] = parameters;
    if (k == 0) return fail(ErrorCode::kInvalidArgument, "a code needs at least 1 data chunk per block (k = 0)");
    if (m == 0) return fail(ErrorCode::kInvalidArgument, "a code needs at least 1 parity chunk per block (m = 0)");
    if (k > 255 || m > 255 || k + m > 255) {
        return fail(ErrorCode::kInvalidArgument,
                    "a block has at most 255 chunks: k + m = {} + {} is too large; use a smaller k or m", k, m);
    }
    if (kind == Kind::kXor && m > k) {
        return fail(ErrorCode::kInvalidArgument,
                    "an XOR code has at most one parity chunk per data chunk: m = {} is larger than k = {}", m, k);
    }
    return {};
}

std::string to_string(const Parameters& parameters) {
    return fmt::format("{}({},{})", parameters.kind == Kind::kXor ? "xor" : "ec", parameters.k, parameters.m);
}

Result<Code> Code::create(const Parameters& parameters, const Engine& engine) {
    if (auto valid = validate(parameters); !valid) return propagate(valid);
    return Code(parameters, engine);
}

Code::Code(const Parameters& parameters, const Engine& engine) : parameters_(parameters), engine_(&engine) {
    const auto [kind, k, m] = parameters;
    matrix_.assign(std::size_t{k} * m, 0);
    if (is_exclusive_or()) {
        for (unsigned j = 0; j < k; ++j) matrix_[(j % m) * k + j] = 1;
    } else {
        for (unsigned i = 0; i < m; ++i) {
            for (unsigned j = 0; j < k; ++j) matrix_[i * k + j] = gf_inv(static_cast<unsigned char>((k + i) ^ j));
        }
    }
    tables_.resize(matrix_.size() * engine.bytes_per_coefficient);
    engine.prepare(matrix_.data(), matrix_.size(), tables_.data());
}

Status Code::check(const Block& block, unsigned first_parity) const {
    if (block.data.empty() || block.data.size() > k()) {
        return fail(ErrorCode::kInvalidArgument, "a block of {} has 1 to {} data chunks, not {}",
                    to_string(parameters_), k(), block.data.size());
    }
    if (first_parity > m() || block.parity.size() > m() - first_parity) {
        return fail(ErrorCode::kInvalidArgument, "{} has {} parity chunks; {} from number {} on were asked for",
                    to_string(parameters_), m(), block.parity.size(), first_parity);
    }
    if (block.chunk_bytes == 0 || block.chunk_bytes > kMostChunkBytes || block.last_bytes == 0 ||
        block.last_bytes > block.chunk_bytes) {
        return fail(ErrorCode::kInvalidArgument,
                    "chunks have 1 byte to 1 GiB and the last at most as many as the others; these have {} and {}",
                    block.chunk_bytes, block.last_bytes);
    }
    return {};
}

Status Code::encode(const Block& block, unsigned first_parity) const {
    if (auto fits = check(block, first_parity); !fits) return fits;
    if (std::ranges::find(block.data, nullptr) != block.data.end()) {
        return fail(ErrorCode::kInvalidArgument,
                    "a data chunk to encode is null; shorten the list for chunks beyond the message's end");
    }
    if (is_exclusive_or()) {
        encode_groups(block, first_parity);
        return {};
    }
    // Runs of wanted rows, so that the sources are read as few times as possible.
    const auto count = static_cast<unsigned>(block.parity.size());
    for (unsigned begin = 0; begin < count;) {
        unsigned end = begin;
        while (end < count && block.parity[end]) ++end;
        if (end > begin) encode_rows(block, first_parity + begin, end - begin, block.parity.data() + begin);
        begin = end + 1;
    }
    return {};
}

void Code::encode_rows(const Block& block, unsigned first_parity, unsigned rows, std::byte* const* parity) const {
    const auto chunks = static_cast<unsigned>(block.data.size());
    engine_->multiply({.tables = tables(first_parity),
                       .stride = k(),
                       .rows = rows,
                       .columns = chunks,
                       .sources = block.data.data(),
                       .targets = parity,
                       .bytes = block.last_bytes,
                       .add = false});
    const std::size_t rest = block.chunk_bytes - block.last_bytes;
    if (rest == 0) return;
    // Behind the end of the last chunk, only the others count.
    std::array<const std::byte*, Pattern::kCapacity> sources;
    std::array<std::byte*, Pattern::kCapacity> targets;
    for (unsigned j = 0; j + 1 < chunks; ++j) sources[j] = block.data[j] + block.last_bytes;
    for (unsigned r = 0; r < rows; ++r) {
        targets[r] = parity[r] + block.last_bytes;
        if (chunks == 1) std::memset(targets[r], 0, rest);
    }
    if (chunks == 1) return;
    engine_->multiply({.tables = tables(first_parity),
                       .stride = k(),
                       .rows = rows,
                       .columns = chunks - 1,
                       .sources = sources.data(),
                       .targets = targets.data(),
                       .bytes = rest,
                       .add = false});
}

void Code::encode_groups(const Block& block, unsigned first_parity) const {
    const auto chunks = static_cast<unsigned>(block.data.size());
    const std::size_t rest = block.chunk_bytes - block.last_bytes;
    std::array<const std::byte*, Pattern::kCapacity> sources;
    for (unsigned i = 0; i < block.parity.size(); ++i) {
        std::byte* const parity = block.parity[i];
        if (!parity) continue;
        unsigned count = 0;
        for (unsigned j = first_parity + i; j < chunks; j += m()) sources[count++] = block.data[j];
        engine_->exclusive_or(sources.data(), count, parity, block.last_bytes);
        if (rest == 0) continue;
        if (count > 0 && sources[count - 1] == block.data[chunks - 1]) --count;
        for (unsigned c = 0; c < count; ++c) sources[c] += block.last_bytes;
        engine_->exclusive_or(sources.data(), count, parity + block.last_bytes, rest);
    }
}

Pattern Code::repairable(const Pattern& present, unsigned data_chunks) const {
    data_chunks = std::min(data_chunks, k());
    const Pattern missing = Pattern::first(data_chunks).without(present);
    const unsigned lost = missing.count();
    if (lost == 0) return {};
    if (parameters_.kind == Kind::kReedSolomon) {
        const unsigned parity = present.count_below(k() + m()) - present.count_below(k());
        return lost <= parity ? missing : Pattern();
    }
    Pattern rebuilt;
    for (unsigned i = 0; i < m(); ++i) {
        if (!present.test(k() + i)) continue;
        unsigned lost_here = 0;
        unsigned which = 0;
        for (unsigned j = i; j < data_chunks; j += m()) {
            if (!present.test(j)) ++lost_here, which = j;
        }
        if (lost_here == 1) rebuilt.set(which);
    }
    return rebuilt;
}

bool Code::recoverable(const Pattern& present, unsigned data_chunks) const {
    const Pattern missing = Pattern::first(std::min(data_chunks, k())).without(present);
    return missing.none() || repairable(present, data_chunks) == missing;
}

}  // namespace farhaul::erasure
