// The receiver's half of tail_code.hpp.
#include <algorithm>
#include <bit>

#include "reliable/tail_code.hpp"

namespace farhaul::reliable {
namespace {

constexpr std::uint32_t kShortFlag = 1u << 31;

bool present(const sdr::MessageSlot& slot, std::uint32_t per_chunk, std::uint32_t packet) {
    const std::uint32_t chunk = packet / per_chunk;
    return slot.chunk_packets(chunk) >> (packet - chunk * per_chunk) & 1;
}

// Calls visit(packet) for every packet of [first, end) that has not arrived, in ascending order.
template <typename Visit>
void for_each_missing(const sdr::MessageSlot& slot, std::uint32_t per_chunk, std::uint32_t first, std::uint32_t end,
                      const Visit& visit) {
    end = std::min(end, slot.packets());
    if (first >= end) return;
    for (std::uint32_t chunk = slot.next_incomplete_chunk(first / per_chunk); chunk * per_chunk < end;
         chunk = slot.next_incomplete_chunk(chunk + 1)) {
        const std::uint32_t base = chunk * per_chunk;
        const std::uint32_t stop = std::min(end, base + slot.packets_in_chunk(chunk)) - base;
        std::uint64_t missing = ~slot.chunk_packets(chunk);
        if (stop < 64) missing &= (std::uint64_t{1} << stop) - 1;
        if (base < first) missing &= ~std::uint64_t{0} << (first - base);
        for (; missing != 0; missing &= missing - 1)
            visit(base + static_cast<std::uint32_t>(std::countr_zero(missing)));
    }
}

}  // namespace

std::uint32_t TailCoding::immediate_of(std::uint32_t coded, bool shorter) { return coded | (shorter ? kShortFlag : 0); }

bool TailRepairer::find_layout(const sdr::MessageSlot& data, const sdr::MessageSlot& parity,
                               std::uint64_t posted_length) {
    const std::uint32_t base = coding_.explicit_base(posted_length);
    if (parity.packet_horizon() <= base) {
        base_ = 0;
        layout_ = coding_.whole(posted_length);
        return data.length() == posted_length;
    }
    std::uint32_t immediate = 0;
    if (!parity.immediate(&immediate)) return false;
    if ((immediate & kShortFlag) != 0 && !data.length_announced()) return false;
    base_ = base;
    layout_ = coding_.part(data.length(), immediate & ~kShortFlag, posted_length);
    return layout_.coded == (immediate & ~kShortFlag);
}

// Rows that came, by block: those below the highest packet seen, less the missing ones.
void TailRepairer::count_rows(const sdr::MessageSlot& parity) {
    const std::uint32_t end = std::min(parity.packet_horizon() - base_, layout_.row_packets());
    rows_.assign(layout_.blocks, end / layout_.blocks);
    for (std::uint32_t block = 0; block < end % layout_.blocks; ++block) ++rows_[block];
    for_each_missing(parity, queue_pair_.config().packets_per_chunk, base_, base_ + end,
                     [&](std::uint32_t packet) { --rows_[(packet - base_) % layout_.blocks]; });
}

TailRepairer::Outcome TailRepairer::repair(sdr::MessageSlot& data, const sdr::MessageSlot& parity,
                                           std::byte* parity_buffer, std::uint64_t posted_length) {
    Outcome outcome;
    if (parity.packet_horizon() == 0 || !find_layout(data, parity, posted_length) || layout_.blocks == 0)
        return outcome;
    const std::uint32_t per_chunk = queue_pair_.config().packets_per_chunk;
    missing_.clear();
    for_each_missing(data, per_chunk, layout_.first(), layout_.packets,
                     [&](std::uint32_t packet) { missing_.push_back(packet); });
    if (missing_.empty()) return outcome;
    count_rows(parity);
    if (unsolved_.size() < layout_.blocks) unsolved_.resize(layout_.blocks);
    blocks_unsolved_.clear();
    for (const std::uint32_t packet : missing_) {
        const std::uint32_t block = layout_.block_of(packet);
        if (unsolved_[block].empty()) blocks_unsolved_.push_back(block);
        unsolved_[block].push_back(layout_.position_of(packet));
    }
    rebuilt_.clear();
    solve_blocks(data, parity, parity_buffer);
    const std::uint32_t columns = base_ + layout_.row_packets();
    if (layout_.groups > 0 && parity.packet_horizon() > columns && !blocks_unsolved_.empty()) {
        std::sort(blocks_unsolved_.begin(), blocks_unsolved_.end());
        const std::uint32_t groups =
            std::min(layout_.groups, (parity.packet_horizon() - columns - 1) / layout_.largest() + 1);
        for (std::uint32_t group = 0; group < groups; ++group)
            while (solve_columns(data, parity, parity_buffer, group) && solve_blocks(data, parity, parity_buffer)) {
            }
    }
    for (const std::uint32_t block : blocks_unsolved_) unsolved_[block].clear();
    std::sort(rebuilt_.begin(), rebuilt_.end());
    outcome.packets = static_cast<std::uint32_t>(rebuilt_.size());
    for (std::size_t i = 0; i < rebuilt_.size(); ++i)
        if (i == 0 || rebuilt_[i] != rebuilt_[i - 1] + 1) ++outcome.bursts;
    return outcome;
}

void TailRepairer::rebuilt(sdr::MessageSlot& data, std::uint32_t packet) {
    queue_pair_.mark_rebuilt(data, packet, 1);
    rebuilt_.push_back(packet);
}

std::size_t TailRepairer::last_bytes(const sdr::MessageSlot& data, std::uint32_t last_packet) const {
    const std::size_t bytes = coding_.payload_bytes();
    return last_packet + 1 == layout_.packets ? data.length() - std::uint64_t{last_packet} * bytes : bytes;
}

// True when a block was solved.
bool TailRepairer::solve_blocks(sdr::MessageSlot& data, const sdr::MessageSlot& parity, std::byte* parity_buffer) {
    const std::size_t before = blocks_unsolved_.size();
    std::erase_if(blocks_unsolved_, [&](std::uint32_t block) {
        auto& positions = unsolved_[block];
        if (!positions.empty()) {
            if (positions.size() > rows_[block] || !decode_block(data, parity, parity_buffer, block)) return false;
            for (const std::uint32_t position : positions) rebuilt(data, layout_.packet_at(block, position));
            positions.clear();
        }
        return true;
    });
    return blocks_unsolved_.size() < before;
}

bool TailRepairer::decode_block(sdr::MessageSlot& data, const sdr::MessageSlot& parity, std::byte* parity_buffer,
                                std::uint32_t block) {
    if (data.buffer() == nullptr) return true;
    const std::size_t bytes = coding_.payload_bytes();
    const std::uint32_t size = layout_.size_of(block);
    const std::uint32_t per_chunk = queue_pair_.config().packets_per_chunk;
    erasure::Pattern have = erasure::Pattern::first(size);
    data_pointers_.resize(size);
    for (std::uint32_t i = 0; i < size; ++i) data_pointers_[i] = data.buffer() + layout_.packet_at(block, i) * bytes;
    for (const std::uint32_t position : unsolved_[block]) have.clear(position);
    parity_pointers_.assign(layout_.most_rows, nullptr);
    std::uint32_t wanted = static_cast<std::uint32_t>(unsolved_[block].size());
    for (std::uint32_t row = 0; row < layout_.most_rows && wanted > 0; ++row) {
        const std::uint32_t packet = base_ + row * layout_.blocks + block;
        if (packet >= parity.packet_horizon()) break;
        if (!present(parity, per_chunk, packet)) continue;
        have.set(layout_.k + row);
        parity_pointers_[row] = parity_buffer + packet * bytes;
        --wanted;
    }
    const auto decoder = row_decoders_.try_emplace(layout_.k, coding_.rows(layout_.k), 2).first;
    const auto decoded = decoder->second.decode(
        {bytes, last_bytes(data, layout_.packet_at(block, size - 1)), data_pointers_, parity_pointers_}, have);
    return decoded && *decoded == unsolved_[block].size();
}

// One pass over the columns of a group: a position that only one of its blocks misses comes back. True when one did.
bool TailRepairer::solve_columns(sdr::MessageSlot& data, const sdr::MessageSlot& parity, std::byte* parity_buffer,
                                 std::uint32_t group) {
    const auto begin = std::lower_bound(blocks_unsolved_.begin(), blocks_unsolved_.end(), layout_.group_begin(group));
    const auto end = std::lower_bound(begin, blocks_unsolved_.end(), layout_.group_end(group));
    if (begin == end) return false;
    seen_.assign(layout_.largest(), 0);
    owner_.resize(layout_.largest());
    for (auto block = begin; block != end; ++block)
        for (const std::uint32_t position : unsolved_[*block]) {
            ++seen_[position];
            owner_[position] = *block;
        }
    const std::uint32_t per_chunk = queue_pair_.config().packets_per_chunk;
    const std::uint32_t columns = base_ + layout_.row_packets() + group * layout_.largest();
    bool progress = false;
    for (std::uint32_t position = 0; position < layout_.largest(); ++position) {
        if (columns + position >= parity.packet_horizon()) break;
        if (seen_[position] != 1 || !present(parity, per_chunk, columns + position)) continue;
        const std::uint32_t block = owner_[position];
        std::byte* column = parity_buffer == nullptr
                                ? nullptr
                                : parity_buffer + (columns + position) * std::size_t{coding_.payload_bytes()};
        if (!decode_column(data, column, group, position, block)) continue;
        rebuilt(data, layout_.packet_at(block, position));
        std::erase(unsolved_[block], position);
        progress = true;
    }
    return progress;
}

bool TailRepairer::decode_column(sdr::MessageSlot& data, std::byte* column, std::uint32_t group, std::uint32_t position,
                                 std::uint32_t block) {
    if (data.buffer() == nullptr) return true;
    const std::size_t bytes = coding_.payload_bytes();
    const std::uint32_t begin = layout_.group_begin(group);
    const std::uint32_t count = layout_.column_blocks(group, position);
    data_pointers_.resize(count);
    for (std::uint32_t i = 0; i < count; ++i)
        data_pointers_[i] = data.buffer() + layout_.packet_at(begin + i, position) * bytes;
    const std::uint32_t blocks = layout_.group_blocks();
    erasure::Pattern have = erasure::Pattern::first(count);
    have.clear(block - begin);
    have.set(blocks);
    const auto decoder = column_decoders_.try_emplace(blocks, coding_.columns(blocks), 16).first;
    const auto decoded =
        decoder->second.decode({bytes, last_bytes(data, layout_.packet_at(begin + count - 1, position)), data_pointers_,
                                std::span(&column, 1)},
                               have);
    return decoded && *decoded == 1;
}

}  // namespace farhaul::reliable
