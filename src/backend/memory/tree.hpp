// All inodes, and the names by which they hang together: the state of a memory file system that outlives its clients.
//
// One mutex guards the table, the directories and the counts of lookups and open files; it is held for a few map
// look-ups at a time, never while data are copied. Inodes have a lock each for the rest (inode.hpp).
//
// An inode ends when it has no name, no lookup and no open file. Its number, which is the node id too, is never used
// again.
#pragma once

#include <expected>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "backend/memory/inode.hpp"
#include "backend/memory/memory.hpp"
#include "fuse/request.hpp"

namespace farhaul::backend::memory {

using fuse::Caller;
using fuse::NodeId;
using InodePointer = std::shared_ptr<Inode>;

/// What was asked for, or an errno.
template <typename T>
using Answer = std::expected<T, int>;

class Tree {
 public:
    Tree(const MemoryOptions& options, WallClock clock);

    timespec now() const { return clock_(); }

    // ---- Nodes.
    /// ESTALE if there is no such node.
    Answer<InodePointer> find(NodeId node) const;
    void forget(NodeId node, std::uint64_t count);
    /// All lookups and open files end.
    void forget_all();
    Answer<fuse::Entry> lookup(NodeId parent, std::string_view name);

    /// Counts an open file of `node`; close() takes it back.
    Answer<InodePointer> open(NodeId node);
    void close(Inode& inode);

    // ---- Names.
    /// Of MKNOD, MKDIR, SYMLINK (with a `target`) and CREATE. `create.mode` has the type.
    Answer<fuse::Entry> make(const Caller& caller, const fuse::CreateRequest& create, std::string_view target = {});
    struct Created {
        fuse::Entry entry;
        InodePointer inode;  // with one more open file
        bool made = true;    // it was not there before
    };
    /// CREATE: makes the file or, without O_EXCL, takes the one that is there.
    Answer<Created> create(const Caller& caller, const fuse::CreateRequest& create);
    Answer<Created> make_nameless(const Caller& caller, const fuse::CreateRequest& create);
    /// 0 or an errno.
    int unlink(NodeId parent, std::string_view name);
    int rmdir(NodeId parent, std::string_view name);
    int rename(const Caller& caller, const fuse::RenameRequest& rename);
    Answer<fuse::Entry> link(NodeId node, NodeId new_parent, std::string_view name);
    /// Fills the writer from behind `offset` on.
    int list(Inode& directory, std::uint64_t offset, fuse::DirectoryWriter& writer);

    fuse::FileSystemStatistics statistics() const;
    /// Bytes; xattrs count against the same as inodes.
    Budget& inode_space() { return inode_space_; }

 private:
    // An inode takes so much of inode_space_, and so does each name beyond its first, as on tmpfs.
    static constexpr std::uint64_t kInodeSpace = 1024;
    static constexpr std::uint64_t kEntrySize = 20;  // of a directory's st_size, as on tmpfs
    static constexpr std::uint32_t kLongestName = 255;
    // Inodes that ended under the mutex are destroyed behind it: freeing their pages takes time.
    using Ended = std::vector<InodePointer>;

    // With mutex_ held.
    Answer<Inode*> find_locked(NodeId node) const;
    Answer<Inode*> find_directory(NodeId node) const;
    /// As find_directory(), for a directory in which something is to be made: ENOENT if it was removed.
    Answer<Inode*> find_live_directory(NodeId node) const;
    Answer<Inode*> new_inode(const Caller& caller, Inode& directory, const fuse::CreateRequest& create,
                             std::string_view target, const timespec& now);
    Answer<Inode*> make_locked(const Caller& caller, const fuse::CreateRequest& create, std::string_view target);
    fuse::Entry entry_of(Inode& inode);
    /// A name of `inode` is gone; a directory ends with it.
    void drop_name(Inode& inode, const timespec& now, Ended& ended);
    void end_if_unused(Inode& inode, Ended& ended);
    void exchange(Inode& from, Inode& source, std::string_view name, Inode& to, Inode& target,
                  std::string_view new_name);
    /// Entries of `directory` came or went, among them so many subdirectories.
    static void update_directory(Inode& directory, const timespec& now, int subdirectories);
    int check_rename(const Inode& from, const Inode& source, const Inode& to, const Inode* target,
                     std::uint32_t flags) const;

    const Duration timeout_;
    const WallClock clock_;
    Budget pages_;
    Budget inode_space_;

    mutable std::mutex mutex_;
    std::unordered_map<NodeId, InodePointer> inodes_;  // never iterated where order matters
    NodeId last_id_ = fuse::kRootNode;
};

}  // namespace farhaul::backend::memory
