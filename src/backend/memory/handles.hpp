// Open files and directories, by the number that the client knows them by. Numbers are never used again.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "backend/memory/inode.hpp"

namespace farhaul::backend::memory {

struct OpenInode {
    std::shared_ptr<Inode> inode;
    std::uint32_t flags = 0;  ///< of open(2)
};

/// Thread-safe; its lock is held for one look-up and taken under no other.
class Handles {
 public:
    fuse::Handle add(OpenInode open) {
        const std::scoped_lock lock(mutex_);
        const fuse::Handle handle = ++last_;
        open_.emplace(handle, std::move(open));
        return handle;
    }
    /// An inode of nullptr: there is no such handle, or it is one of another node.
    OpenInode find(fuse::NodeId node, fuse::Handle handle) const {
        const std::shared_lock lock(mutex_);
        const auto found = open_.find(handle);
        return found == open_.end() || found->second.inode->id != node ? OpenInode{} : found->second;
    }
    OpenInode remove(fuse::NodeId node, fuse::Handle handle) {
        const std::scoped_lock lock(mutex_);
        const auto found = open_.find(handle);
        if (found == open_.end() || found->second.inode->id != node) return {};
        OpenInode open = std::move(found->second);
        open_.erase(found);
        return open;
    }
    void clear() {
        std::unordered_map<fuse::Handle, OpenInode> ended;  // destroyed behind the lock
        const std::scoped_lock lock(mutex_);
        ended.swap(open_);
    }

 private:
    mutable std::shared_mutex mutex_;
    std::unordered_map<fuse::Handle, OpenInode> open_;
    fuse::Handle last_ = 0;
};

}  // namespace farhaul::backend::memory
