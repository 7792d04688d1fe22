// The FileSystem that clients see: looks up nodes and handles, calls what does the work (tree.hpp, file_data.hpp,
// locks.hpp) under its lock, and replies when the lock is free again.
#pragma once

#include "backend/memory/handles.hpp"
#include "backend/memory/locks.hpp"
#include "backend/memory/memory.hpp"
#include "backend/memory/tree.hpp"
#include "fuse/file_system.hpp"

namespace farhaul::backend::memory {

using fuse::Handle;
using fuse::Name;
using fuse::Request;

class MemoryFileSystem final : public fuse::FileSystem {
 public:
    MemoryFileSystem(const MemoryOptions& options, WallClock clock);

    fuse::Wishes wishes() const override;
    void destroy() override;

    // ---- memory.cpp: nodes, attributes, names.
    void lookup(Request& request, NodeId parent, Name name) override;
    void forget(NodeId node, std::uint64_t count) override;
    void getattr(Request& request, NodeId node, const Handle* handle) override;
    void setattr(Request& request, NodeId node, const fuse::AttributeChange& change) override;
    void readlink(Request& request, NodeId node) override;
    void mknod(Request& request, const fuse::CreateRequest& create) override;
    void mkdir(Request& request, const fuse::CreateRequest& create) override;
    void symlink(Request& request, const fuse::CreateRequest& create, Name target) override;
    void unlink(Request& request, NodeId parent, Name name) override;
    void rmdir(Request& request, NodeId parent, Name name) override;
    void rename(Request& request, const fuse::RenameRequest& rename) override;
    void link(Request& request, NodeId node, NodeId new_parent, Name new_name) override;
    void statfs(Request& request, NodeId node) override;
    void access(Request& request, NodeId node, std::uint32_t mask) override;
    void syncfs(Request& request, NodeId node) override;

    // ---- files.cpp: open files and directories, and what is in them.
    void open(Request& request, NodeId node, std::uint32_t flags, bool kill_suid_sgid) override;
    void create(Request& request, const fuse::CreateRequest& create) override;
    void tmpfile(Request& request, const fuse::CreateRequest& create) override;
    void read(Request& request, const fuse::ReadRequest& read) override;
    void write(Request& request, const fuse::WriteRequest& write) override;
    void flush(Request& request, NodeId node, Handle handle, std::uint64_t lock_owner) override;
    void release(Request& request, const fuse::ReleaseRequest& release) override;
    void fsync(Request& request, NodeId node, Handle handle, bool data_only) override;
    void opendir(Request& request, NodeId node, std::uint32_t flags) override;
    void readdir(Request& request, NodeId node, Handle handle, std::uint64_t offset) override;
    void releasedir(Request& request, NodeId node, Handle handle) override;
    void fsyncdir(Request& request, NodeId node, Handle handle, bool data_only) override;
    void fallocate(Request& request, NodeId node, Handle handle, std::uint32_t mode, std::uint64_t offset,
                   std::uint64_t length) override;
    void lseek(Request& request, NodeId node, Handle handle, std::uint64_t offset, std::uint32_t whence) override;
    void copy_file_range(Request& request, const fuse::CopyRequest& copy) override;
    void getlk(Request& request, const fuse::LockRequest& lock) override;
    void setlk(Request& request, const fuse::LockRequest& lock) override;
    bool interrupt(std::uint64_t unique) override;

    // ---- xattrs.cpp.
    void setxattr(Request& request, NodeId node, Name name, std::span<const std::byte> value, std::uint32_t flags,
                  bool kill_sgid) override;
    void getxattr(Request& request, NodeId node, Name name, std::size_t size) override;
    void listxattr(Request& request, NodeId node, std::size_t size) override;
    void removexattr(Request& request, NodeId node, Name name) override;

 private:
    /// The open regular file, or an errno: EBADF, EISDIR, EINVAL.
    Answer<OpenInode> find_file(NodeId node, Handle handle) const;
    Answer<OpenInode> find_open_directory(NodeId node, Handle handle) const;
    int apply(Inode& inode, const Caller& caller, const fuse::AttributeChange& change);
    /// With the inode's lock: O_TRUNC and truncate(2).
    void resize(Inode& inode, std::uint64_t size);
    /// With the inode's lock: somebody writes to it.
    void begin_write(Inode& inode, const Caller& caller, bool kill_suid_sgid, const timespec& now);
    /// Takes the inode's lock.
    void touch_atime(Inode& inode);
    int set_acl(Inode& inode, std::string_view name, std::span<const std::byte> value, bool kill_sgid);
    fuse::OpenFile open_file(InodePointer inode, std::uint32_t flags);

    const MemoryOptions options_;
    // What outlives a client ...
    Tree tree_;
    // ... and what does not (with the counts of lookups and open files in the tree).
    Handles handles_;
    Locks locks_;
};

}  // namespace farhaul::backend::memory
