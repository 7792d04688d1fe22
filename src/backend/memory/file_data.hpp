// The bytes of one file: pages of 4 KiB, found through a sorted map of chunks of 64 pages.
//
// A page is absent (a hole), allocated (fallocate(2) reserved it: it counts, but reads as zeros and is a hole to
// SEEK_HOLE, as on tmpfs) or written. Pages are counted against a budget that all files of a file system share; a page
// is taken from it before it is written, so that what was accepted is never lost for lack of room.
//
// No lock: the inode that owns the data has one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "fuse/scatter.hpp"

namespace farhaul::backend::memory {

inline constexpr std::uint64_t kPageSize = 4096;
/// The longest that a file may be, as on Linux.
inline constexpr std::uint64_t kMaxFileSize = INT64_MAX;

constexpr std::uint64_t pages_of(std::uint64_t bytes) { return bytes / kPageSize + (bytes % kPageSize != 0 ? 1 : 0); }

/// A limited number of something. Thread-safe.
class Budget {
 public:
    explicit Budget(std::uint64_t limit) : limit_(limit) {}
    std::uint64_t limit() const { return limit_; }
    std::uint64_t used() const { return used_.load(std::memory_order_relaxed); }
    /// All or nothing.
    bool take(std::uint64_t count) {
        std::uint64_t used = used_.load(std::memory_order_relaxed);
        do {
            if (count > limit_ - used) return false;
        } while (!used_.compare_exchange_weak(used, used + count, std::memory_order_relaxed));
        return true;
    }
    void give_back(std::uint64_t count) { used_.fetch_sub(count, std::memory_order_relaxed); }

 private:
    const std::uint64_t limit_;
    std::atomic<std::uint64_t> used_{0};
};

class FileData {
 public:
    explicit FileData(Budget& budget) : budget_(budget) {}
    ~FileData() { budget_.give_back(pages_); }
    FileData(const FileData&) = delete;
    FileData& operator=(const FileData&) = delete;

    /// Pages in use.
    std::uint64_t pages() const { return pages_; }

    /// Takes `size` bytes of `from` to `offset`; offset + size is at most kMaxFileSize. Returns how many: fewer when
    /// the budget is used up.
    std::uint64_t write(fuse::ScatterReader& from, std::uint64_t offset, std::uint64_t size);
    /// Appends `size` bytes from `offset` on to `to`, which has room for them.
    void read(fuse::ScatterWriter& to, std::uint64_t offset, std::uint64_t size) const;
    /// Copies from another file, or from another place of this one that does not overlap, as write(). Holes become
    /// zeros.
    std::uint64_t copy(const FileData& from, std::uint64_t from_offset, std::uint64_t offset, std::uint64_t size);

    /// Allocates every page of [offset, end). False, and nothing changed: the budget does not allow it.
    bool allocate(std::uint64_t offset, std::uint64_t end);
    /// [start, end) reads as zeros: whole pages are given back, parts are cleared.
    void discard(std::uint64_t start, std::uint64_t end);

    /// The first offset in [offset, end) that is data, or nothing.
    std::optional<std::uint64_t> seek_data(std::uint64_t offset, std::uint64_t end) const;
    /// The first offset in [offset, end) that is a hole, or `end`.
    std::uint64_t seek_hole(std::uint64_t offset, std::uint64_t end) const;

 private:
    static constexpr std::uint64_t kChunkPages = 64;
    struct Chunk {
        std::uint64_t allocated = 0;  // a bit for each page in use
        std::uint64_t written = 0;    // a bit for each page with memory
        std::array<std::unique_ptr<std::byte[]>, kChunkPages> pages;
    };

    /// The written page, or nullptr.
    const std::byte* find(std::uint64_t page) const;
    /// Makes the page one that is written; nullptr if the budget or the memory is used up. `whole`: the caller
    /// overwrites all of it, so that it need not be cleared.
    std::byte* make(std::uint64_t page, bool whole);
    void clear(std::uint64_t page, std::uint64_t from, std::uint64_t to);

    Budget& budget_;
    std::uint64_t pages_ = 0;
    std::map<std::uint64_t, Chunk> chunks_;  // by page number / kChunkPages
};

}  // namespace farhaul::backend::memory
