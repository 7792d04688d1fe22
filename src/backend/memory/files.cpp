// Open files and directories: data, listings, locks.
#include <algorithm>
#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <linux/falloc.h>

#include "backend/memory/memory_file_system.hpp"

namespace farhaul::backend::memory {

namespace {

/// As much as Linux moves in one call.
constexpr std::uint64_t kMostAtOnce = 0x7ffff000;

// FALLOCATE and COPY_FILE_RANGE do not say whether the caller may keep S_ISUID and S_ISGID: root may, as far as is
// known here.

bool writable(const OpenInode& open) { return (open.flags & O_ACCMODE) != O_RDONLY; }

}  // namespace

Answer<OpenInode> MemoryFileSystem::find_file(NodeId node, Handle handle) const {
    OpenInode open = handles_.find(node, handle);
    if (open.inode == nullptr) return std::unexpected(EBADF);
    if (open.inode->is_directory()) return std::unexpected(EISDIR);
    return open;
}

Answer<OpenInode> MemoryFileSystem::find_open_directory(NodeId node, Handle handle) const {
    OpenInode open = handles_.find(node, handle);
    if (open.inode == nullptr) return std::unexpected(EBADF);
    if (!open.inode->is_directory()) return std::unexpected(ENOTDIR);
    return open;
}

fuse::OpenFile MemoryFileSystem::open_file(InodePointer inode, std::uint32_t flags) {
    fuse::OpenFile file;
    file.keep_cache = options_.keep_cache;
    file.parallel_direct_writes = true;
    file.handle = handles_.add({.inode = std::move(inode), .flags = flags});
    return file;
}

void MemoryFileSystem::begin_write(Inode& inode, const Caller& caller, bool kill_suid_sgid, const timespec& now) {
    tree_.inode_space().give_back(inode.drop_capabilities());
    if (kill_suid_sgid) inode.drop_suid_sgid(caller);
    inode.modified(now);
}

void MemoryFileSystem::open(Request& request, NodeId node, std::uint32_t flags, bool kill_suid_sgid) {
    auto found = tree_.open(node);
    if (!found) return request.reply_error(found.error());
    Inode& inode = **found;
    int error = 0;
    if (inode.is_directory()) {
        error = EISDIR;
    } else if (inode.type == S_IFLNK) {
        error = ELOOP;
    } else if (!inode.is_regular()) {
        error = ENXIO;  // the client opens devices and pipes by itself
    }
    if (error != 0) {
        tree_.close(inode);
        return request.reply_error(error);
    }
    if ((flags & O_TRUNC) != 0) {
        const timespec now = tree_.now();
        const std::scoped_lock lock(inode.mutex);
        begin_write(inode, request.caller(), kill_suid_sgid, now);
        resize(inode, 0);
    }
    request.reply_open(open_file(std::move(*found), flags));
}

void MemoryFileSystem::create(Request& request, const fuse::CreateRequest& create) {
    auto created = tree_.create(request.caller(), create);
    if (!created) return request.reply_error(created.error());
    if (!created->made && (create.flags & O_TRUNC) != 0) {
        Inode& inode = *created->inode;
        const timespec now = tree_.now();
        const std::scoped_lock lock(inode.mutex);
        begin_write(inode, request.caller(), create.kill_suid_sgid, now);
        resize(inode, 0);
        created->entry.attributes = inode.attributes();
    }
    request.reply_create(created->entry, open_file(std::move(created->inode), create.flags));
}

void MemoryFileSystem::tmpfile(Request& request, const fuse::CreateRequest& create) {
    auto created = tree_.make_nameless(request.caller(), create);
    if (!created) return request.reply_error(created.error());
    request.reply_create(created->entry, open_file(std::move(created->inode), create.flags));
}

void MemoryFileSystem::read(Request& request, const fuse::ReadRequest& read) {
    const auto open = find_file(read.node, read.handle);
    if (!open) return request.reply_error(open.error());
    Inode& inode = *open->inode;
    std::uint64_t size = 0;
    {
        const std::shared_lock lock(inode.mutex);
        if (read.offset < inode.size) size = std::min<std::uint64_t>(read.size, inode.size - read.offset);
        fuse::ScatterWriter writer(request.data_out());
        size = std::min<std::uint64_t>(size, writer.room());
        inode.data.read(writer, read.offset, size);
    }
    touch_atime(inode);
    request.reply_data(size);
}

void MemoryFileSystem::write(Request& request, const fuse::WriteRequest& write) {
    const auto open = find_file(write.node, write.handle);
    if (!open) return request.reply_error(open.error());
    if (!write.from_cache && !writable(*open)) return request.reply_error(EBADF);
    Inode& inode = *open->inode;
    std::uint64_t done = 0;
    {
        const timespec now = tree_.now();
        const std::scoped_lock lock(inode.mutex);
        // The client's idea of the end may be old; data from its cache know where they belong.
        const bool append = (write.flags & O_APPEND) != 0 && !write.from_cache;
        const std::uint64_t offset = append ? inode.size : write.offset;
        if (write.size != 0) {
            if (offset >= kMaxFileSize) {
                done = UINT64_MAX;
            } else {
                begin_write(inode, request.caller(), write.kill_suid_sgid, now);
                fuse::ScatterReader reader(request.data_in());
                done = inode.data.write(reader, offset, std::min<std::uint64_t>(write.size, kMaxFileSize - offset));
                if (done != 0) inode.size = std::max(inode.size, offset + done);
            }
        }
    }
    if (done == UINT64_MAX) return request.reply_error(EFBIG);
    if (done == 0 && write.size != 0) return request.reply_error(ENOSPC);
    request.reply_written(done);
}

void MemoryFileSystem::flush(Request& request, NodeId node, Handle handle, std::uint64_t lock_owner) {
    const auto open = find_file(node, handle);
    if (!open) return request.reply_error(open.error());
    locks_.drop_owner(node, lock_owner);
    request.reply_ok();
}

void MemoryFileSystem::release(Request& request, const fuse::ReleaseRequest& release) {
    const auto known = find_file(release.node, release.handle);
    if (!known) return request.reply_error(known.error());
    const OpenInode open = handles_.remove(release.node, release.handle);
    if (open.inode == nullptr) return request.reply_error(EBADF);
    if (release.flock_unlock) locks_.drop_flock(release.node, release.lock_owner);
    locks_.drop_handle(release.node, release.handle);
    tree_.close(*open.inode);
    request.reply_ok();
}

void MemoryFileSystem::fsync(Request& request, NodeId node, Handle handle, bool /*data_only*/) {
    const auto open = find_file(node, handle);
    if (!open) return request.reply_error(open.error());
    request.reply_ok();
}

void MemoryFileSystem::opendir(Request& request, NodeId node, std::uint32_t flags) {
    auto found = tree_.open(node);
    if (!found) return request.reply_error(found.error());
    if (!(*found)->is_directory()) {
        tree_.close(**found);
        return request.reply_error(ENOTDIR);
    }
    request.reply_open({.handle = handles_.add({.inode = std::move(*found), .flags = flags})});
}

void MemoryFileSystem::readdir(Request& request, NodeId node, Handle handle, std::uint64_t offset) {
    const auto open = find_open_directory(node, handle);
    if (!open) return request.reply_error(open.error());
    touch_atime(*open->inode);
    fuse::DirectoryWriter writer(request);
    if (const int error = tree_.list(*open->inode, offset, writer); error != 0) return request.reply_error(error);
    request.reply_directory(writer);
}

void MemoryFileSystem::releasedir(Request& request, NodeId node, Handle handle) {
    const auto known = find_open_directory(node, handle);
    if (!known) return request.reply_error(known.error());
    const OpenInode open = handles_.remove(node, handle);
    if (open.inode == nullptr) return request.reply_error(EBADF);
    locks_.drop_handle(node, handle);
    tree_.close(*open.inode);
    request.reply_ok();
}

void MemoryFileSystem::fsyncdir(Request& request, NodeId node, Handle handle, bool /*data_only*/) {
    const auto open = find_open_directory(node, handle);
    if (!open) return request.reply_error(open.error());
    request.reply_ok();
}

void MemoryFileSystem::fallocate(Request& request, NodeId node, Handle handle, std::uint32_t mode, std::uint64_t offset,
                                 std::uint64_t length) {
    const auto open = find_file(node, handle);
    if (!open) return request.reply_error(open.error());
    if (!writable(*open)) return request.reply_error(EBADF);
    if (length == 0) return request.reply_error(EINVAL);
    // Of the modes tmpfs has these, and punching only without a change of size.
    constexpr std::uint32_t kKnown = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE;
    const bool keep_size = (mode & FALLOC_FL_KEEP_SIZE) != 0;
    const bool punch = (mode & FALLOC_FL_PUNCH_HOLE) != 0;
    if ((mode & ~kKnown) != 0 || (punch && !keep_size)) return request.reply_error(EOPNOTSUPP);
    if (offset > kMaxFileSize || length > kMaxFileSize - offset) return request.reply_error(EFBIG);
    const std::uint64_t end = offset + length;
    Inode& inode = *open->inode;
    bool done = true;
    {
        const timespec now = tree_.now();
        const std::scoped_lock lock(inode.mutex);
        if (punch) {
            inode.data.discard(offset, end);
        } else {
            done = inode.data.allocate(offset, end);
        }
        if (done) {
            begin_write(inode, request.caller(), request.caller().uid != 0, now);
            if (!keep_size) inode.size = std::max(inode.size, end);
        }
    }
    if (!done) return request.reply_error(ENOSPC);
    request.reply_ok();
}

void MemoryFileSystem::lseek(Request& request, NodeId node, Handle handle, std::uint64_t offset, std::uint32_t whence) {
    const auto open = find_file(node, handle);
    if (!open) return request.reply_error(open.error());
    if (whence != SEEK_DATA && whence != SEEK_HOLE) return request.reply_error(EINVAL);
    std::optional<std::uint64_t> found;
    {
        const Inode& inode = *open->inode;
        const std::shared_lock lock(inode.mutex);
        if (offset < inode.size)
            found = whence == SEEK_DATA ? inode.data.seek_data(offset, inode.size)
                                        : inode.data.seek_hole(offset, inode.size);
    }
    if (!found) return request.reply_error(ENXIO);
    request.reply_seek(*found);
}

void MemoryFileSystem::copy_file_range(Request& request, const fuse::CopyRequest& copy) {
    const auto in = find_file(copy.node_in, copy.handle_in);
    if (!in) return request.reply_error(in.error());
    const auto out = find_file(copy.node_out, copy.handle_out);
    if (!out) return request.reply_error(out.error());
    if (!writable(*out)) return request.reply_error(EBADF);
    if (copy.flags != 0) return request.reply_error(EINVAL);
    if (copy.offset_in > kMaxFileSize) return request.reply_error(EINVAL);
    if (copy.offset_out >= kMaxFileSize) return request.reply_error(EFBIG);
    Inode& from = *in->inode;
    Inode& to = *out->inode;
    std::uint64_t size = std::min({copy.size, kMostAtOnce, kMaxFileSize - copy.offset_out});
    std::uint64_t done = 0;
    {
        const timespec now = tree_.now();
        std::unique_lock write_lock(to.mutex, std::defer_lock);
        std::shared_lock read_lock(from.mutex, std::defer_lock);
        if (&from == &to) {
            write_lock.lock();
        } else if (from.id < to.id) {
            read_lock.lock();
            write_lock.lock();
        } else {
            write_lock.lock();
            read_lock.lock();
        }
        size = copy.offset_in < from.size ? std::min(size, from.size - copy.offset_in) : 0;
        const bool overlaps =
            &from == &to && copy.offset_in < copy.offset_out + size && copy.offset_out < copy.offset_in + size;
        if (overlaps) {
            done = UINT64_MAX;
        } else if (size != 0) {
            begin_write(to, request.caller(), request.caller().uid != 0, now);
            done = to.data.copy(from.data, copy.offset_in, copy.offset_out, size);
            if (done != 0) to.size = std::max(to.size, copy.offset_out + done);
        }
    }
    if (done == UINT64_MAX) return request.reply_error(EINVAL);
    if (done == 0 && size != 0) return request.reply_error(ENOSPC);
    touch_atime(from);
    request.reply_written(done);
}

void MemoryFileSystem::getlk(Request& request, const fuse::LockRequest& lock) {
    const OpenInode open = handles_.find(lock.node, lock.handle);
    if (open.inode == nullptr) return request.reply_error(EBADF);
    if (lock.lock.start > lock.lock.end) return request.reply_error(EINVAL);
    request.reply_lock(locks_.test(lock.node, lock.owner, lock.lock));
}

void MemoryFileSystem::setlk(Request& request, const fuse::LockRequest& lock) {
    const OpenInode open = handles_.find(lock.node, lock.handle);
    if (open.inode == nullptr) return request.reply_error(EBADF);
    locks_.set(request, {.node = lock.node,
                         .handle = lock.handle,
                         .owner = lock.owner,
                         .lock = lock.lock,
                         .flock = lock.flock,
                         .wait = lock.wait});
    // The open file ended meanwhile: what was locked or waits through it was missed by release() or destroy().
    if (handles_.find(lock.node, lock.handle).inode == nullptr) locks_.drop_handle(lock.node, lock.handle);
}

bool MemoryFileSystem::interrupt(std::uint64_t unique) { return locks_.interrupt(unique); }

}  // namespace farhaul::backend::memory
