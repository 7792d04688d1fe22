#include "erasure/decoder.hpp"

#include <algorithm>
#include <array>
#include <cassert>

#include <isa-l/erasure_code.h>

namespace farhaul::erasure {

Decoder::Decoder(const Code& code, std::size_t remembered) : code_(code) {
    if (code.parameters().kind == Kind::kXor) return;
    const std::size_t most = std::min(code.k(), code.m());
    square_.resize(most * most * 2);
    coefficients_.resize(most * code.k());
    repairs_.resize(std::max<std::size_t>(remembered, 1));
    for (auto& repair : repairs_) repair.tables.resize(most * code.k() * code.engine().bytes_per_coefficient);
}

Result<unsigned> Decoder::decode(const Block& block, const Pattern& present) {
    if (auto fits = code_.check(block); !fits) return propagate(fits);
    const auto chunks = static_cast<unsigned>(block.data.size());
    const unsigned k = code_.k();
    Pattern here;  // without what lies behind the end of the block or of the lists
    for (unsigned j = 0; j < chunks; ++j) {
        if (!present.test(j)) continue;
        if (!block.data[j])
            return fail(ErrorCode::kInvalidArgument, "data chunk {} is said to be present but its pointer is null", j);
        here.set(j);
    }
    for (unsigned i = 0; i < block.parity.size(); ++i) {
        if (!present.test(k + i)) continue;
        if (!block.parity[i])
            return fail(ErrorCode::kInvalidArgument, "parity chunk {} is said to be present but its pointer is null",
                        i);
        here.set(k + i);
    }
    const Pattern rebuilt = code_.repairable(here, chunks);
    if (rebuilt.none()) return 0u;
    if (code_.parameters().kind == Kind::kXor) return rebuild_groups(block, rebuilt);
    return rebuild_rows(block, here, rebuilt);
}

unsigned Decoder::rebuild_groups(const Block& block, const Pattern& wanted) {
    const auto chunks = static_cast<unsigned>(block.data.size());
    const unsigned m = code_.m();
    unsigned rebuilt = 0;
    std::array<const std::byte*, Pattern::kCapacity> sources;
    for (unsigned j = 0; j < chunks; ++j) {
        if (!wanted.test(j) || !block.data[j]) continue;
        unsigned count = 0;
        sources[count++] = block.parity[j % m];
        for (unsigned other = j % m; other < chunks; other += m) {
            if (other != j) sources[count++] = block.data[other];
        }
        code_.engine().exclusive_or(sources.data(), count, block.data[j], block.last_bytes);
        ++rebuilt;
        const std::size_t rest = block.chunk_bytes - block.last_bytes;
        if (rest == 0 || j + 1 == chunks) continue;
        if (sources[count - 1] == block.data[chunks - 1]) --count;  // nothing of the last chunk there
        for (unsigned c = 0; c < count; ++c) sources[c] += block.last_bytes;
        code_.engine().exclusive_or(sources.data(), count, block.data[j] + block.last_bytes, rest);
    }
    return rebuilt;
}

// The columns of a repair are the parity chunks used, then the present data chunks in order, the last chunk of the
// block last; its rows are the missing chunks in order. So the part behind the end of a short last chunk is the same
// product without its last column or row.
unsigned Decoder::rebuild_rows(const Block& block, const Pattern& present, const Pattern& missing) {
    const auto chunks = static_cast<unsigned>(block.data.size());
    const unsigned k = code_.k();
    const unsigned rows = missing.count();

    std::array<const std::byte*, Pattern::kCapacity> sources;
    std::array<std::byte*, Pattern::kCapacity> targets;
    unsigned columns = 0;
    Pattern used = present & Pattern::first(k);
    for (unsigned i = 0; columns < rows; ++i) {
        if (present.test(k + i)) sources[columns++] = block.parity[i], used.set(k + i);
    }
    for (unsigned j = 0, row = 0; j < chunks; ++j) {
        if (missing.test(j)) {
            targets[row++] = block.data[j];
        } else {
            sources[columns++] = block.data[j];
        }
    }
    assert(columns == chunks);

    const bool last_is_here = !missing.test(chunks - 1);
    const std::size_t rest = block.chunk_bytes - block.last_bytes;
    const unsigned rest_rows = last_is_here ? rows : rows - 1;
    const unsigned rest_columns = last_is_here ? columns - 1 : columns;
    const Engine& engine = code_.engine();
    std::array<const std::byte*, Pattern::kCapacity> rest_sources;
    for (unsigned c = 0; c < rest_columns; ++c) rest_sources[c] = sources[c] + (rest ? block.last_bytes : 0);

    // With m = 1 the only parity is the sum of the data, and so is what is missing.
    const bool sum = code_.m() == 1;
    const Repair* const repair = sum ? nullptr : &repair_for(used, chunks, missing);
    unsigned rebuilt = 0;
    for (unsigned begin = 0; begin < rows;) {
        unsigned end = begin;
        while (end < rows && targets[end]) ++end;
        if (end == begin) {
            ++begin;
            continue;
        }
        rebuilt += end - begin;
        const unsigned rest_end = std::min(end, rest_rows);
        if (sum) {
            engine.exclusive_or(sources.data(), columns, targets[begin], block.last_bytes);
            if (rest && rest_end > begin)
                engine.exclusive_or(rest_sources.data(), rest_columns, targets[begin] + block.last_bytes, rest);
        } else {
            Product product{
                .tables = repair->tables.data() + std::size_t{begin} * columns * engine.bytes_per_coefficient,
                .stride = columns,
                .rows = end - begin,
                .columns = columns,
                .sources = sources.data(),
                .targets = targets.data() + begin,
                .bytes = block.last_bytes,
                .add = false};
            engine.multiply(product);
            if (rest && rest_end > begin) {
                for (unsigned r = begin; r < rest_end; ++r) targets[r] += block.last_bytes;
                product.rows = rest_end - begin;
                product.columns = rest_columns;
                product.sources = rest_sources.data();
                product.bytes = rest;
                engine.multiply(product);
            }
        }
        begin = end;
    }
    return rebuilt;
}

const Decoder::Repair& Decoder::repair_for(const Pattern& present, unsigned data_chunks, const Pattern& missing) {
    ++uses_;
    Repair* oldest = &repairs_.front();
    for (auto& repair : repairs_) {
        if (repair.data_chunks == data_chunks && repair.present == present) {
            ++hits_;
            repair.last_used = uses_;
            return repair;
        }
        if (repair.last_used < oldest->last_used) oldest = &repair;
    }
    ++misses_;
    oldest->present = present;
    oldest->data_chunks = data_chunks;
    oldest->last_used = uses_;
    compute(*oldest, missing);
    return *oldest;
}

// Parity = C_missing * missing + C_present * present, so missing = C_missing^-1 * (parity + C_present * present); + is
// - in this field.
void Decoder::compute(Repair& repair, const Pattern& missing) {
    const unsigned k = code_.k();
    const unsigned chunks = repair.data_chunks;
    const unsigned e = missing.count();
    std::array<std::uint8_t, Pattern::kCapacity> lost, parity;
    for (unsigned j = 0, n = 0; j < chunks; ++j) {
        if (missing.test(j)) lost[n++] = static_cast<std::uint8_t>(j);
    }
    for (unsigned i = 0, n = 0; n < e; ++i) {
        if (repair.present.test(k + i)) parity[n++] = static_cast<std::uint8_t>(i);
    }
    std::uint8_t* const square = square_.data();
    std::uint8_t* const inverse = square + std::size_t{e} * e;
    for (unsigned r = 0; r < e; ++r) {
        for (unsigned c = 0; c < e; ++c) square[r * e + c] = code_.row(parity[r])[lost[c]];
    }
    [[maybe_unused]] const int singular = gf_invert_matrix(square, inverse, static_cast<int>(e));
    assert(singular == 0);

    for (unsigned r = 0; r < e; ++r) {
        std::uint8_t* out = coefficients_.data() + std::size_t{r} * chunks;
        for (unsigned c = 0; c < e; ++c) *out++ = inverse[r * e + c];
        for (unsigned j = 0; j < chunks; ++j) {
            if (missing.test(j)) continue;
            std::uint8_t sum = 0;
            for (unsigned c = 0; c < e; ++c)
                sum = static_cast<std::uint8_t>(sum ^ gf_mul(inverse[r * e + c], code_.row(parity[c])[j]));
            *out++ = sum;
        }
    }
    code_.engine().prepare(coefficients_.data(), std::size_t{e} * chunks, repair.tables.data());
}

}  // namespace farhaul::erasure
