#include "backend/memory/file_data.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace farhaul::backend::memory {

namespace {

/// Bits `from` to `to` - 1.
constexpr std::uint64_t bits(std::uint64_t from, std::uint64_t to) {
    const std::uint64_t below_to = to >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << to) - 1;
    return from >= 64 ? 0 : below_to & (~std::uint64_t{0} << from);
}

}  // namespace

const std::byte* FileData::find(std::uint64_t page) const {
    const auto chunk = chunks_.find(page / kChunkPages);
    return chunk == chunks_.end() ? nullptr : chunk->second.pages[page % kChunkPages].get();
}

std::byte* FileData::make(std::uint64_t page, bool whole) {
    const auto found = chunks_.find(page / kChunkPages);
    const std::uint64_t bit = std::uint64_t{1} << (page % kChunkPages);
    if (found != chunks_.end() && (found->second.written & bit) != 0)
        return found->second.pages[page % kChunkPages].get();
    const bool counted = found != chunks_.end() && (found->second.allocated & bit) != 0;
    if (!counted && !budget_.take(1)) return nullptr;
    std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[kPageSize]);
    if (memory == nullptr) {
        if (!counted) budget_.give_back(1);
        return nullptr;
    }
    if (!whole) std::memset(memory.get(), 0, kPageSize);
    Chunk& chunk = found != chunks_.end() ? found->second : chunks_[page / kChunkPages];
    if (!counted) ++pages_;
    chunk.allocated |= bit;
    chunk.written |= bit;
    chunk.pages[page % kChunkPages] = std::move(memory);
    return chunk.pages[page % kChunkPages].get();
}

std::uint64_t FileData::write(fuse::ScatterReader& from, std::uint64_t offset, std::uint64_t size) {
    std::uint64_t done = 0;
    while (done < size) {
        const std::uint64_t at = (offset + done) % kPageSize;
        const std::uint64_t step = std::min(size - done, kPageSize - at);
        std::byte* page = make((offset + done) / kPageSize, step == kPageSize);
        if (page == nullptr) break;
        from.read(page + at, step);
        done += step;
    }
    return done;
}

void FileData::read(fuse::ScatterWriter& to, std::uint64_t offset, std::uint64_t size) const {
    while (size != 0) {
        const std::uint64_t at = offset % kPageSize;
        const std::uint64_t step = std::min(size, kPageSize - at);
        const std::byte* page = find(offset / kPageSize);
        if (page != nullptr) {
            to.write(page + at, step);
        } else {
            to.write_zeros(step);
        }
        offset += step;
        size -= step;
    }
}

std::uint64_t FileData::copy(const FileData& from, std::uint64_t from_offset, std::uint64_t offset,
                             std::uint64_t size) {
    std::uint64_t done = 0;
    while (done < size) {
        const std::uint64_t at = (offset + done) % kPageSize;
        const std::uint64_t from_at = (from_offset + done) % kPageSize;
        const std::uint64_t step = std::min({size - done, kPageSize - at, kPageSize - from_at});
        std::byte* page = make((offset + done) / kPageSize, step == kPageSize);
        if (page == nullptr) break;
        const std::byte* source = from.find((from_offset + done) / kPageSize);
        if (source != nullptr) {
            std::memcpy(page + at, source + from_at, step);
        } else {
            std::memset(page + at, 0, step);
        }
        done += step;
    }
    return done;
}

bool FileData::allocate(std::uint64_t offset, std::uint64_t end) {
    const std::uint64_t first = offset / kPageSize;
    const std::uint64_t last = pages_of(end);  // exclusive
    // Before anything is counted: keeps the loops below short, whatever was asked for.
    if (last - first > budget_.limit()) return false;
    std::uint64_t present = 0;
    for (auto it = chunks_.lower_bound(first / kChunkPages); it != chunks_.end() && it->first * kChunkPages < last;
         ++it) {
        const std::uint64_t base = it->first * kChunkPages;
        const std::uint64_t mask = bits(first > base ? first - base : 0, last - base);
        present += static_cast<std::uint64_t>(std::popcount(it->second.allocated & mask));
    }
    const std::uint64_t missing = last - first - present;
    if (!budget_.take(missing)) return false;
    pages_ += missing;
    for (std::uint64_t index = first / kChunkPages; index * kChunkPages < last; ++index) {
        const std::uint64_t base = index * kChunkPages;
        chunks_[index].allocated |= bits(first > base ? first - base : 0, last - base);
    }
    return true;
}

void FileData::clear(std::uint64_t page, std::uint64_t from, std::uint64_t to) {
    const auto chunk = chunks_.find(page / kChunkPages);
    if (chunk == chunks_.end()) return;
    std::byte* memory = chunk->second.pages[page % kChunkPages].get();
    if (memory != nullptr) std::memset(memory + from, 0, to - from);
}

void FileData::discard(std::uint64_t start, std::uint64_t end) {
    if (start >= end) return;
    const std::uint64_t first = pages_of(start);  // the whole pages are [first, last)
    const std::uint64_t last = end / kPageSize;
    if (first > last) return clear(last, start % kPageSize, end % kPageSize);
    if (start % kPageSize != 0) clear(first - 1, start % kPageSize, kPageSize);
    if (end % kPageSize != 0) clear(last, 0, end % kPageSize);
    for (auto it = chunks_.lower_bound(first / kChunkPages); it != chunks_.end() && it->first * kChunkPages < last;) {
        const std::uint64_t base = it->first * kChunkPages;
        const std::uint64_t mask = bits(first > base ? first - base : 0, last - base);
        Chunk& chunk = it->second;
        const auto dropped = static_cast<std::uint64_t>(std::popcount(chunk.allocated & mask));
        for (std::uint64_t left = chunk.written & mask; left != 0; left &= left - 1)
            chunk.pages[static_cast<std::size_t>(std::countr_zero(left))].reset();
        chunk.allocated &= ~mask;
        chunk.written &= ~mask;
        pages_ -= dropped;
        budget_.give_back(dropped);
        it = chunk.allocated == 0 ? chunks_.erase(it) : std::next(it);
    }
}

std::optional<std::uint64_t> FileData::seek_data(std::uint64_t offset, std::uint64_t end) const {
    const std::uint64_t first = offset / kPageSize;
    for (auto it = chunks_.lower_bound(first / kChunkPages);
         it != chunks_.end() && it->first * kChunkPages * kPageSize < end; ++it) {
        const std::uint64_t base = it->first * kChunkPages;
        const std::uint64_t written = it->second.written & bits(first > base ? first - base : 0, kChunkPages);
        if (written == 0) continue;
        const std::uint64_t at = (base + static_cast<std::uint64_t>(std::countr_zero(written))) * kPageSize;
        if (at >= end) return std::nullopt;
        return std::max(at, offset);
    }
    return std::nullopt;
}

std::uint64_t FileData::seek_hole(std::uint64_t offset, std::uint64_t end) const {
    std::uint64_t page = offset / kPageSize;
    for (auto it = chunks_.find(page / kChunkPages); it != chunks_.end() && it->first == page / kChunkPages; ++it) {
        const std::uint64_t holes = ~it->second.written & bits(page % kChunkPages, kChunkPages);
        if (holes != 0) {
            page = it->first * kChunkPages + static_cast<std::uint64_t>(std::countr_zero(holes));
            break;
        }
        page = (it->first + 1) * kChunkPages;
    }
    return std::min(std::max(page * kPageSize, offset), end);
}

}  // namespace farhaul::backend::memory
