// Open files and directories, and the table by which the client names them.
//
// A handle is a slot of the table and how often the slot was used: a forged or an old one meets nothing. Shards with
// short locks; each file counts its references, so that a request under way keeps it open.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/mirror/fd.hpp"
#include "backend/mirror/inode_store.hpp"

namespace farhaul::backend::mirror {

struct OpenedFile {
    Fd fd;
    Fd direct;  // the same with O_DIRECT, if wanted and to be had
    InodePtr inode;
    bool directory = false;
    bool writable = false;
    bool passed = false;  // counted in Inode::passed_opens; otherwise in cached_opens, if...
    bool cached = false;
    std::atomic<bool> read_ahead_of_ring{true};  // RWF_NOWAIT is known here
    std::atomic<bool> write_ahead_of_ring{true};

    // A directory's listing: what getdents64() gave and was not yet passed on.
    std::mutex listing;
    std::vector<std::byte> entries;
    std::size_t entries_at = 0, entries_end = 0;
    std::uint64_t next_cookie = 0;
};
using FilePtr = std::shared_ptr<OpenedFile>;

class FileTable {
 public:
    fuse::Handle add(FilePtr file) {
        static std::atomic<std::uint32_t> next_thread{0};
        thread_local const std::uint32_t number = next_thread.fetch_add(1) % kShards;
        Shard& shard = shards_[number];
        const std::scoped_lock lock(shard.mutex);
        std::uint32_t index;
        if (shard.free.empty()) {
            index = static_cast<std::uint32_t>(shard.slots.size());
            shard.slots.emplace_back();
        } else {
            index = shard.free.back();
            shard.free.pop_back();
        }
        Slot& slot = shard.slots[index];
        slot.file = std::move(file);
        return std::uint64_t{slot.uses} << 32 | index << kShardBits | number;
    }
    /// nullptr: there is none (EBADF).
    FilePtr find(fuse::Handle handle, bool directory) {
        Shard& shard = shards_[handle % kShards];
        const std::scoped_lock lock(shard.mutex);
        Slot* slot = at(shard, handle);
        return slot != nullptr && slot->file->directory == directory ? slot->file : nullptr;
    }
    FilePtr remove(fuse::Handle handle, bool directory) {
        Shard& shard = shards_[handle % kShards];
        const std::scoped_lock lock(shard.mutex);
        Slot* slot = at(shard, handle);
        if (slot == nullptr || slot->file->directory != directory) return nullptr;
        FilePtr file = std::move(slot->file);
        slot->file = nullptr;
        ++slot->uses;
        shard.free.push_back(static_cast<std::uint32_t>(handle) >> kShardBits);
        return file;
    }
    void clear() {
        for (Shard& shard : shards_) {
            std::vector<FilePtr> files;
            const std::scoped_lock lock(shard.mutex);
            for (std::uint32_t i = 0; i < shard.slots.size(); ++i) {
                if (shard.slots[i].file == nullptr) continue;
                files.push_back(std::move(shard.slots[i].file));
                shard.slots[i].file = nullptr;
                ++shard.slots[i].uses;
                shard.free.push_back(i);
            }
        }
    }

 private:
    static constexpr unsigned kShardBits = 4;
    static constexpr std::uint32_t kShards = 1 << kShardBits;
    struct Slot {
        FilePtr file;
        std::uint32_t uses = 1;
    };
    struct alignas(64) Shard {
        std::mutex mutex;
        std::vector<Slot> slots;
        std::vector<std::uint32_t> free;
    };
    static Slot* at(Shard& shard, fuse::Handle handle) {
        const std::uint32_t index = static_cast<std::uint32_t>(handle) >> kShardBits;
        if (index >= shard.slots.size()) return nullptr;
        Slot& slot = shard.slots[index];
        return slot.file != nullptr && slot.uses == handle >> 32 ? &slot : nullptr;
    }
    std::array<Shard, kShards> shards_;
};

}  // namespace farhaul::backend::mirror
