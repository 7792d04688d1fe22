#include "reliable/parity.hpp"

#include <algorithm>
#include <array>

namespace farhaul::reliable {
namespace {

bool packet_present(const sdr::MessageSlot& slot, std::uint32_t packets_per_chunk, std::uint32_t packet) {
    const std::uint32_t chunk = packet / packets_per_chunk;
    return slot.chunk_packets(chunk) >> (packet - chunk * packets_per_chunk) & 1;
}

bool range_present(const sdr::MessageSlot& slot, std::uint32_t packets_per_chunk, std::uint32_t first,
                   std::uint32_t end) {
    for (std::uint32_t packet = first; packet < end; ++packet)
        if (!packet_present(slot, packets_per_chunk, packet)) return false;
    return true;
}

}  // namespace

Result<std::unique_ptr<Coding>> Coding::create(const Scheme& scheme, std::uint32_t payload_bytes,
                                               std::uint32_t packets_per_chunk) {
    const auto kind = scheme.kind == Scheme::Kind::kErasureXor ? erasure::Kind::kXor : erasure::Kind::kReedSolomon;
    auto code = erasure::Code::create({kind, scheme.data_symbols, scheme.parity_symbols});
    if (!code) return propagate(code);
    return std::unique_ptr<Coding>(
        new Coding(std::move(*code), scheme, payload_bytes, scheme.chunk_symbols ? packets_per_chunk : 1));
}

CodeLayout Coding::layout(std::uint64_t length) const {
    CodeLayout layout;
    layout.symbols = static_cast<std::uint32_t>((length + symbol_bytes() - 1) / symbol_bytes());
    layout.k = code_.k();
    layout.m = code_.m();
    layout.packets_per_symbol = packets_per_symbol_;
    return layout;
}

// --- the sender's end ---

ParitySource::ParitySource(const Coding& coding, const std::byte* data, std::uint64_t length)
    : coding_(coding),
      layout_(coding.layout(length)),
      data_(data),
      length_(length),
      encoded_(layout_.blocks(), false),
      block_done_at_(layout_.blocks(), TimePoint::never()),
      data_pointers_(layout_.k),
      parity_pointers_(layout_.m) {
    if (data_ != nullptr)
        storage_ =
            std::make_unique_for_overwrite<std::byte[]>(std::size_t{layout_.parity_symbols()} * coding_.symbol_bytes());
}

void ParitySource::encode(std::uint32_t block) {
    if (encoded_[block]) return;
    encoded_[block] = true;
    const std::size_t bytes = coding_.symbol_bytes();
    const std::uint32_t size = layout_.size_of(block);
    for (std::uint32_t i = 0; i < size; ++i)  // the code only reads data
        data_pointers_[i] = const_cast<std::byte*>(data_) + layout_.symbol_at(block, i) * bytes;
    for (std::uint32_t row = 0; row < layout_.m; ++row)
        parity_pointers_[row] = storage_.get() + layout_.parity_at(block, row) * bytes;
    const std::uint32_t last = layout_.symbol_at(block, size - 1);
    const std::size_t last_bytes = last + 1 == layout_.symbols ? length_ - std::uint64_t{last} * bytes : bytes;
    const erasure::Block shape{bytes, last_bytes, std::span(data_pointers_).first(size), parity_pointers_};
    [[maybe_unused]] const auto encoded = coding_.code().encode(shape);
    // The shape follows from the layout: it fits.
}

const std::byte* ParitySource::parity(std::uint32_t symbol, std::uint32_t count) {
    if (data_ == nullptr) return nullptr;
    for (std::uint32_t i = symbol; i < symbol + count; ++i) encode(layout_.parity_block(i));
    return storage_.get() + std::size_t{symbol} * coding_.symbol_bytes();
}

void ParitySource::note_injected(std::uint32_t symbol, std::uint32_t count, TimePoint at) {
    for (std::uint32_t i = symbol; i < symbol + count; ++i)
        if (layout_.parity_row(i) + 1 == layout_.m) block_done_at_[layout_.parity_block(i)] = at;
}

// --- the receiver's end ---

Repairer::Repairer(const Coding& coding, sdr::QueuePair& queue_pair)
    : coding_(coding),
      queue_pair_(queue_pair),
      decoder_(coding.code()),
      data_pointers_(coding.code().k()),
      parity_pointers_(coding.code().m()) {
    missing_.reserve(coding.code().k());
}

std::uint64_t Repairer::repair(sdr::MessageSlot& data, const sdr::MessageSlot& parity, std::byte* parity_buffer,
                               std::uint64_t posted_length) {
    // A message shorter than its buffer is sent without parity: see Writer.
    if (parity.packet_horizon() == 0 || data.length() != posted_length) return 0;
    layout_ = coding_.layout(posted_length);
    const std::uint32_t per_chunk = queue_pair_.config().packets_per_chunk;
    const std::uint32_t per_symbol = layout_.packets_per_symbol;
    // Blocks of which some parity came; behind them nothing can be rebuilt.
    const std::uint32_t blocks = layout_.parity_block((parity.packet_horizon() - 1) / per_symbol) + 1;
    const std::uint32_t end = std::min(layout_.symbols, blocks * layout_.k);
    std::uint64_t rebuilt = 0;
    std::uint32_t block = ~0u;
    missing_.clear();
    std::uint32_t symbol = 0;
    for (;;) {
        // The next symbol with a missing packet.
        const std::uint32_t packet = symbol * per_symbol;
        std::uint32_t chunk = data.next_incomplete_chunk(packet / per_chunk);
        std::uint32_t found = std::max(symbol, chunk * per_chunk / per_symbol);
        while (found < end && chunk < data.chunks() &&
               range_present(data, per_chunk, found * per_symbol, std::min(data.packets(), (found + 1) * per_symbol))) {
            ++found;
            if (found * per_symbol / per_chunk > chunk) {
                chunk = data.next_incomplete_chunk(found * per_symbol / per_chunk);
                found = std::max(found, chunk * per_chunk / per_symbol);
            }
        }
        const bool done = found >= end || chunk >= data.chunks();
        if (!missing_.empty() && (done || layout_.block_of(found) != block)) {
            rebuilt += repair_block(data, parity, parity_buffer, block);
            missing_.clear();
        }
        if (done) return rebuilt;
        block = layout_.block_of(found);
        missing_.push_back(found);
        symbol = found + 1;
    }
}

std::uint64_t Repairer::repair_block(sdr::MessageSlot& data, const sdr::MessageSlot& parity, std::byte* parity_buffer,
                                     std::uint32_t block) {
    const std::uint32_t per_chunk = queue_pair_.config().packets_per_chunk;
    const std::uint32_t per_symbol = layout_.packets_per_symbol;
    const std::uint32_t k = layout_.k;
    std::uint32_t rows = 0;
    erasure::Pattern present = erasure::Pattern::first(layout_.size_of(block));
    for (const std::uint32_t symbol : missing_) present.clear(layout_.position_of(symbol));
    for (std::uint32_t row = 0; row < layout_.m; ++row) {
        const std::uint32_t first = layout_.parity_at(block, row) * per_symbol;
        if (!range_present(parity, per_chunk, first, first + per_symbol)) continue;
        present.set(k + row);
        ++rows;
    }
    if (rows == 0 || (coding_.code().parameters().kind == erasure::Kind::kReedSolomon && rows < missing_.size()))
        return 0;
    const std::uint32_t size = layout_.size_of(block);
    const erasure::Pattern repairable = coding_.code().repairable(present, size);
    if (repairable.none()) return 0;
    if (data.buffer() != nullptr) {
        const std::size_t bytes = coding_.symbol_bytes();
        for (std::uint32_t i = 0; i < size; ++i)
            data_pointers_[i] = data.buffer() + layout_.symbol_at(block, i) * bytes;
        for (std::uint32_t row = 0; row < layout_.m; ++row)
            parity_pointers_[row] =
                present.test(k + row) ? parity_buffer + layout_.parity_at(block, row) * bytes : nullptr;
        const std::uint32_t last = layout_.symbol_at(block, size - 1);
        const std::size_t last_bytes =
            last + 1 == layout_.symbols ? data.length() - std::uint64_t{last} * bytes : bytes;
        const auto decoded =
            decoder_.decode({bytes, last_bytes, std::span(data_pointers_).first(size), parity_pointers_}, present);
        if (!decoded || *decoded == 0) return 0;
    }
    std::uint64_t packets = 0;
    for (const std::uint32_t symbol : missing_) {
        if (!repairable.test(layout_.position_of(symbol))) continue;
        queue_pair_.mark_rebuilt(data, symbol * per_symbol, per_symbol);
        packets += per_symbol;
    }
    return packets;
}

}  // namespace farhaul::reliable
