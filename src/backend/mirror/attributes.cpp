#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "backend/mirror/mirror_file_system.hpp"

namespace farhaul::backend::mirror {

namespace {

timespec time_of(bool set, bool now, const timespec& time) {
    if (!set) return {0, UTIME_OMIT};
    if (now) return {0, UTIME_NOW};
    return time;
}

}  // namespace

int MirrorFileSystem::kill_suid_sgid(int fd, const fuse::Caller& caller) {
    struct stat stat;
    if (::fstat(fd, &stat) != 0) return errno;
    if (!S_ISREG(stat.st_mode)) return 0;
    mode_t drop = stat.st_mode & S_ISUID;
    // Without execution by the group S_ISGID is a relic that ends only when strangers to the group write. Which other
    // groups the caller is in is not known here.
    const bool stranger = caller.uid != 0 && caller.gid != stat.st_gid;
    if ((stat.st_mode & S_IXGRP) != 0 || stranger) drop |= stat.st_mode & S_ISGID;
    if (drop == 0) return 0;
    return ::chmod(FdPath(fd).c_str(), (stat.st_mode & 07777) & ~drop) == 0 ? 0 : errno;
}

void MirrorFileSystem::getattr(Request& request, NodeId node, const Handle* handle) {
    struct statx stat;
    // The open file first: it is there, also when nothing else leads to it any more.
    if (handle != nullptr) {
        FilePtr file = files_.find(*handle, false);
        if (file == nullptr) file = files_.find(*handle, true);
        if (file != nullptr && file->inode->id == node) {
            if (const int error = stat_fd(file->fd.get(), stat); error != 0) return request.reply_error(error);
            return request.reply_attributes(attributes(stat, *file->inode), attribute_timeout_);
        }
    }
    InodePtr inode;
    PathFd fd;
    int error = find(node, inode, fd);
    if (error == 0) error = stat_fd(fd.get(), stat);
    if (error != 0) return request.reply_error(error);
    request.reply_attributes(attributes(stat, *inode), attribute_timeout_);
}

void MirrorFileSystem::setattr(Request& request, NodeId node, const fuse::AttributeChange& change) {
    InodePtr inode;
    PathFd path;
    FilePtr file;
    if (change.has_handle) file = files_.find(change.handle, false);
    if (file != nullptr && file->inode->id != node) file = nullptr;
    int error = may_change();
    if (error == 0) {
        if (file != nullptr) {
            inode = file->inode;
            path.borrow(file->fd.get());
        } else {
            error = find(node, inode, path);
        }
    }
    const int fd = path.get();
    // A change of nothing is what the client makes of chown(path, -1, -1), which ends S_ISUID and S_ISGID all the same.
    // It makes the same before a write to such a file, which somebody may do to whom the file does not belong, so there
    // it is no error: the write brings its own word that they end.
    const bool nothing = !change.set_uid && !change.set_gid && !change.set_mode && !change.set_size &&
                         !change.set_atime && !change.set_mtime;
    bool chown_of_nothing = false;
    if (error == 0 && nothing) {
        struct stat now;
        const std::uint32_t uid = request.caller().uid;
        if (::fstatat(fd, "", &now, AT_EMPTY_PATH) != 0) {
            error = errno;
        } else {
            chown_of_nothing = uid == 0 || uid == now.st_uid;
        }
    }
    if (error == 0 && (change.set_uid || change.set_gid || chown_of_nothing)) {
        const uid_t uid = change.set_uid ? change.uid : static_cast<uid_t>(-1);
        const gid_t gid = change.set_gid ? change.gid : static_cast<gid_t>(-1);
        if (::fchownat(fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0) error = errno;
    }
    // After chown(2), which ends S_ISUID and S_ISGID: the mode is what the client says.
    if (error == 0 && change.set_mode) {
        if (inode->type == S_IFLNK) {
            error = EOPNOTSUPP;
        } else if (::chmod(FdPath(fd).c_str(), change.mode & 07777) != 0) {
            error = errno;
        }
    }
    if (error == 0 && change.set_size) {
        if (!inode->is_regular()) {
            error = inode->is_directory() ? EISDIR : EINVAL;
        } else {
            const auto size = static_cast<off_t>(change.size);
            const bool through_file = file != nullptr && file->writable;
            if ((through_file ? ::ftruncate(fd, size) : ::truncate(FdPath(fd).c_str(), size)) != 0) error = errno;
        }
    }
    if (error == 0 && change.kill_suid_sgid && !change.set_mode && inode->is_regular())
        error = kill_suid_sgid(fd, request.caller());
    if (error == 0 && (change.set_atime || change.set_mtime)) {
        const timespec times[2] = {time_of(change.set_atime, change.atime_now, change.atime),
                                   time_of(change.set_mtime, change.mtime_now, change.mtime)};
        if (::utimensat(fd, "", times, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0) error = errno;
    }
    struct statx stat;
    if (error == 0) error = stat_fd(fd, stat);
    if (error != 0) return request.reply_error(error);
    request.reply_attributes(attributes(stat, *inode), attribute_timeout_);
}

void MirrorFileSystem::statfs(Request& request, NodeId node) {
    InodePtr inode;
    PathFd fd;
    if (const int error = find(node, inode, fd); error != 0) return request.reply_error(error);
    struct statfs from{};
    if (::fstatfs(fd.get(), &from) != 0) return request.reply_error(errno);
    request.reply_statfs({.blocks = from.f_blocks,
                          .blocks_free = from.f_bfree,
                          .blocks_available = from.f_bavail,
                          .files = from.f_files,
                          .files_free = from.f_ffree,
                          .block_size = static_cast<std::uint32_t>(from.f_bsize),
                          .fragment_size = static_cast<std::uint32_t>(from.f_frsize),
                          .name_length = static_cast<std::uint32_t>(from.f_namelen)});
}

}  // namespace farhaul::backend::mirror
