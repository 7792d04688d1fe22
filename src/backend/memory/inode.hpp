// One inode. What survives a client is here; what a client holds of it (lookups, open files) is counted here so that
// the tree knows when an inode without a name is done with.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "backend/memory/acl.hpp"
#include "backend/memory/directory.hpp"
#include "backend/memory/file_data.hpp"
#include "fuse/types.hpp"

namespace farhaul::backend::memory {

struct Inode : std::enable_shared_from_this<Inode> {
    Inode(fuse::NodeId number, std::uint32_t file_type, Budget& pages) : id(number), type(file_type), data(pages) {}

    const fuse::NodeId id;     // st_ino as well
    const std::uint32_t type;  // S_IFMT bits

    // ---- Under the tree's mutex.
    std::uint64_t lookups = 0;           // that the client holds
    std::uint64_t opens = 0;             // open files and directories
    Inode* parent = nullptr;             // of a directory that has a name; the root's is itself
    std::unique_ptr<Directory> entries;  // of a directory
    bool linkable = false;               // made without a name (O_TMPFILE), may get one

    // ---- Under `mutex`; nlink changes only under the tree's mutex too, so either will do to read it. Lock order: the
    // tree's, then inodes', by rising id.
    mutable std::shared_mutex mutex;
    std::uint32_t permissions = 0;  // 07777
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::uint32_t rdev = 0;
    std::uint32_t nlink = 0;
    std::uint64_t size = 0;
    timespec atime{}, mtime{}, ctime{}, btime{};
    FileData data;       // of a regular file
    std::string target;  // of a symlink
    std::uint64_t target_pages = 0;
    bool ended = false;  // out of the tree: takes nothing more of a budget
    // Without system.posix_acl_*, which are the two members below. In the order that listxattr(2) has.
    std::map<std::string, std::vector<std::byte>, std::less<>> xattrs;
    std::optional<Acl> access_acl;
    std::optional<Acl> default_acl;

    bool is_directory() const { return type == S_IFDIR; }
    bool is_regular() const { return type == S_IFREG; }

    // With `mutex` held.
    fuse::Attributes attributes() const;
    /// Something inside changed (both), or something about it did (ctime).
    void modified(const timespec& now) { mtime = ctime = now; }
    void changed(const timespec& now) { ctime = now; }
    /// Would a read at `now` change atime? As on a file system mounted with relatime, the default.
    bool atime_due(const timespec& now) const;
    /// What a write, truncation or chown ends, whoever does it: the file's capabilities. Returns what of them is given
    /// back.
    std::uint64_t drop_capabilities();
    /// What the same ends if the caller has no privilege to keep it: S_ISUID, and S_ISGID if it means something.
    void drop_suid_sgid(const fuse::Caller& caller);
    void chmod(std::uint32_t mode);
};

/// What an attribute takes of the inode budget, in bytes.
std::uint64_t xattr_space(std::string_view name, std::uint64_t size);

}  // namespace farhaul::backend::memory
