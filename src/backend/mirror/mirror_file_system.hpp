// The FileSystem behind mirror:, in pieces by concern: names.cpp, attributes.cpp, files.cpp, transfer.cpp,
// directory.cpp, locking.cpp, xattr.cpp.
#pragma once

#include <atomic>
#include <string>

#include "backend/mirror/credentials.hpp"
#include "backend/mirror/fd.hpp"
#include "backend/mirror/inode_store.hpp"
#include "backend/mirror/locks.hpp"
#include "backend/mirror/mirror.hpp"
#include "backend/mirror/open_file.hpp"

namespace farhaul::backend::mirror {

/// What the directory's file system and this process were found to be able to do.
struct Abilities {
    Privilege privilege;
    bool acl = false;
    bool remote = false;  // errors of writes may come with close(2)
    std::size_t max_pinned = 0;
    bool file_handles = false;
};

class MirrorFileSystem final : public fuse::FileSystem {
    using Request = fuse::Request;
    using NodeId = fuse::NodeId;
    using Handle = fuse::Handle;
    using Name = fuse::Name;

 public:
    MirrorFileSystem(MirrorOptions options, const Abilities& abilities, Fd root, const struct statx& stat);
    ~MirrorFileSystem() override;

    fuse::Wishes wishes() const override;
    void init(const fuse::Connection& connection) override;
    void destroy() override;

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

    void statfs(Request& request, NodeId node) override;
    void setxattr(Request& request, NodeId node, Name name, std::span<const std::byte> value, std::uint32_t flags,
                  bool kill_sgid) override;
    void getxattr(Request& request, NodeId node, Name name, std::size_t size) override;
    void listxattr(Request& request, NodeId node, std::size_t size) override;
    void removexattr(Request& request, NodeId node, Name name) override;

    void getlk(Request& request, const fuse::LockRequest& lock) override;
    void setlk(Request& request, const fuse::LockRequest& lock) override;
    bool interrupt(std::uint64_t unique) override;

    void fallocate(Request& request, NodeId node, Handle handle, std::uint32_t mode, std::uint64_t offset,
                   std::uint64_t length) override;
    void lseek(Request& request, NodeId node, Handle handle, std::uint64_t offset, std::uint32_t whence) override;
    void copy_file_range(Request& request, const fuse::CopyRequest& copy) override;
    void syncfs(Request& request, NodeId node) override;

 private:
    fuse::Attributes attributes(const struct statx& stat, const Inode& inode);
    fuse::Entry entry(const struct statx& stat, const Inode& inode);
    /// The inode and a descriptor of it. 0 or an errno.
    int find(NodeId node, InodePtr& inode, PathFd& fd);
    int find_directory(NodeId node, InodePtr& inode, PathFd& fd);
    /// Is anything to be changed? EROFS if it must not be.
    int may_change() const { return options_.read_only ? EROFS : 0; }
    CreationScope::Identity identity(const fuse::Request& request) const;
    /// The umask that is the host's to apply.
    std::uint32_t umask_of(const fuse::CreateRequest& create) const { return dont_mask_ ? create.umask : 0; }

    /// What creates something: checks, acts as the caller, looks up what has come to be, replies.
    template <typename Act>
    void make(Request& request, const fuse::CreateRequest& create, Act&& act);
    void remove(Request& request, NodeId parent, Name name, int flags);

    /// Opens the regular file behind a descriptor again, for data. 0 or an errno.
    int open_data(const InodePtr& inode, int path, std::uint32_t flags, FilePtr& file);
    std::uint32_t data_flags(std::uint32_t flags) const;
    void add_direct(OpenedFile& file, std::uint32_t flags) const;
    /// `changed`: it is new or was truncated; `known`: what it is like, if the caller knows.
    fuse::OpenFile opened(FilePtr file, bool changed, std::uint32_t flags, const struct statx* known);
    /// Lets the client read and write the file by itself if it may; false: it may not. Notes how the file is open.
    bool pass_through(OpenedFile& file, std::uint32_t flags, const struct statx* known, fuse::OpenFile& out);
    void closed(OpenedFile& file);
    void sync(Request& request, FilePtr file, bool data_only);
    /// Ends S_ISUID and S_ISGID, if the file has them. 0 or an errno.
    static int kill_suid_sgid(int fd, const fuse::Caller& caller);

    int try_lock(const LockWaiters::Waiter& waiter);

    const MirrorOptions options_;
    const Abilities abilities_;
    Duration attribute_timeout_, entry_timeout_, negative_timeout_;
    bool writeback_ = false;
    bool dont_mask_ = false;
    // Set by INIT; kept after destroy(), which a hostile client may ask for while files are opened.
    std::atomic<fuse::BackingFiles*> backing_files_{nullptr};
    InodeStore store_;
    FileTable files_;
    LockWaiters waiters_;
};

}  // namespace farhaul::backend::mirror
