// From an opcode and its arguments to a call of the FileSystem. Each branch takes all its arguments apart first;
// nothing is called unless they are exactly what the operation has.
#include <algorithm>
#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <sys/stat.h>

#include "fuse/arguments.hpp"
#include "fuse/session.hpp"

namespace farhaul::fuse {

namespace {

constexpr std::uint32_t kRenameFlags = RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT;
constexpr std::uint32_t kPermissions = 07777;
// The creation flags are the kernel's business; what the file system sees is how to open.
constexpr std::uint32_t kNotForOpen = O_CREAT | O_EXCL | O_NOCTTY;

timespec time_of(std::uint64_t seconds, std::uint32_t nanoseconds) {
    return {static_cast<time_t>(seconds), static_cast<long>(nanoseconds)};
}

bool is_file_type(std::uint32_t mode) {
    switch (mode & S_IFMT) {
        case S_IFREG:
        case S_IFCHR:
        case S_IFBLK:
        case S_IFIFO:
        case S_IFSOCK:
            return true;
        default:
            return false;
    }
}

bool opens_for_writing(std::uint32_t flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0; }

}  // namespace

void Session::dispatch(Request& request, Arguments& arguments) {
    switch (request.opcode()) {
        case FUSE_LOOKUP:
        case FUSE_READLINK:
        case FUSE_SYMLINK:
        case FUSE_MKNOD:
        case FUSE_MKDIR:
        case FUSE_UNLINK:
        case FUSE_RMDIR:
        case FUSE_RENAME:
        case FUSE_RENAME2:
        case FUSE_LINK:
        case FUSE_CREATE:
        case abi::kTmpfile:
            return dispatch_name(request, arguments);
        case FUSE_READ:
        case FUSE_WRITE:
        case FUSE_READDIR:
        case FUSE_READDIRPLUS:
        case FUSE_SETXATTR:
        case FUSE_GETXATTR:
        case FUSE_LISTXATTR:
        case FUSE_REMOVEXATTR:
        case FUSE_FALLOCATE:
        case FUSE_LSEEK:
        case FUSE_COPY_FILE_RANGE:
        case abi::kCopyFileRange64:
            return dispatch_data(request, arguments);
        case FUSE_BATCH_FORGET:
            return batch_forget(request, arguments);
        case FUSE_DESTROY:
            if (arguments.end() != 0) return reject(request, EINVAL);
            disconnect();
            return request.reply_ok();
        default:
            return dispatch_file(request, arguments);
    }
}

void Session::batch_forget(Request& request, Arguments& arguments) {
    const auto in = arguments.take<fuse_batch_forget_in>();
    ScatterReader reader(request.in_);
    std::byte head[sizeof(fuse_in_header) + sizeof(in)];
    const std::size_t size = total_size(request.in_) - std::min(sizeof(head), total_size(request.in_));
    if (arguments.error() != 0 || size != std::size_t{in.count} * sizeof(fuse_forget_one))
        return reject(request, EINVAL);
    reader.read(head, sizeof(head));
    for (std::uint32_t i = 0; i < in.count; ++i) {
        fuse_forget_one one{};
        reader.read(&one, sizeof(one));
        if (one.nodeid != 0) file_system_.forget(one.nodeid, one.nlookup);
    }
    request.reply_none();
}

// ---- Operations on names.

void Session::dispatch_name(Request& request, Arguments& arguments) {
    const NodeId node = request.node();
    const auto bad = [&] {
        if (const int error = arguments.end(); error != 0) {
            reject(request, error);
            return true;
        }
        return false;
    };
    switch (request.opcode()) {
        case FUSE_LOOKUP: {
            const Name name = arguments.take_name(connection_.has(FUSE_EXPORT_SUPPORT));
            if (bad()) return;
            return file_system_.lookup(request, node, name);
        }
        case FUSE_READLINK: {
            if (bad()) return;
            return file_system_.readlink(request, node);
        }
        case FUSE_SYMLINK: {
            CreateRequest create{.parent = node};
            create.name = arguments.take_name();
            const Name target = arguments.take_target();
            create.mode = S_IFLNK | 0777;
            if (bad()) return;
            return file_system_.symlink(request, create, target);
        }
        case FUSE_MKNOD: {
            const auto in = arguments.take<fuse_mknod_in>();
            CreateRequest create{.parent = node};
            create.name = arguments.take_name();
            create.mode = (in.mode & S_IFMT) == 0 ? in.mode | S_IFREG : in.mode;
            create.umask = in.umask & 0777;
            create.rdev = in.rdev;
            if (bad()) return;
            if (!is_file_type(create.mode)) return reject(request, EINVAL);
            create.mode &= S_IFMT | kPermissions;
            return file_system_.mknod(request, create);
        }
        case FUSE_MKDIR: {
            const auto in = arguments.take<fuse_mkdir_in>();
            CreateRequest create{.parent = node};
            create.name = arguments.take_name();
            create.mode = S_IFDIR | (in.mode & kPermissions);
            create.umask = in.umask & 0777;
            if (bad()) return;
            return file_system_.mkdir(request, create);
        }
        case FUSE_UNLINK:
        case FUSE_RMDIR: {
            const Name name = arguments.take_name();
            if (bad()) return;
            if (request.opcode() == FUSE_UNLINK) return file_system_.unlink(request, node, name);
            return file_system_.rmdir(request, node, name);
        }
        case FUSE_RENAME:
        case FUSE_RENAME2: {
            RenameRequest rename{.parent = node};
            if (request.opcode() == FUSE_RENAME) {
                rename.new_parent = arguments.take<fuse_rename_in>().newdir;
            } else {
                const auto in = arguments.take<fuse_rename2_in>();
                rename.new_parent = in.newdir;
                rename.flags = in.flags;
            }
            rename.name = arguments.take_name();
            rename.new_name = arguments.take_name();
            if (bad()) return;
            const bool exchange = (rename.flags & RENAME_EXCHANGE) != 0;
            if (rename.new_parent == 0 || (rename.flags & ~kRenameFlags) != 0 ||
                (exchange && rename.flags != RENAME_EXCHANGE))
                return reject(request, EINVAL);
            return file_system_.rename(request, rename);
        }
        case FUSE_LINK: {
            const auto in = arguments.take<fuse_link_in>();
            const Name name = arguments.take_name();
            if (bad()) return;
            if (in.oldnodeid == 0) return reject(request, EINVAL);
            return file_system_.link(request, in.oldnodeid, node, name);
        }
        case FUSE_CREATE:
        case abi::kTmpfile: {
            const auto in = arguments.take<fuse_create_in>();
            CreateRequest create{.parent = node};
            const bool tmpfile = request.opcode() == abi::kTmpfile;
            // The kernel sends "/" or the like as the name of a TMPFILE; it means nothing.
            if (tmpfile) {
                arguments.take_target();
            } else {
                create.name = arguments.take_name();
            }
            create.mode = S_IFREG | (in.mode & kPermissions);
            create.umask = in.umask & 0777;
            create.flags = in.flags;
            create.kill_suid_sgid = (in.open_flags & FUSE_OPEN_KILL_SUIDGID) != 0;
            if (bad()) return;
            if (tmpfile) return file_system_.tmpfile(request, create);
            return file_system_.create(request, create);
        }
        default:
            return reject(request, ENOSYS);
    }
}

// ---- Operations with data, beside or instead of fixed arguments.

void Session::dispatch_data(Request& request, Arguments& arguments) {
    const NodeId node = request.node();
    const auto bad = [&] {
        if (const int error = arguments.end(); error != 0) {
            reject(request, error);
            return true;
        }
        return false;
    };
    // The reply has at most `size` bytes, for which there must be room.
    const auto trim_reply = [&](std::size_t size) {
        if (size > request.out_size_) return false;
        request.out_ = keep_front(request.out_, size);
        request.out_size_ = size;
        return true;
    };
    switch (request.opcode()) {
        case FUSE_READ:
        case FUSE_READDIR:
        case FUSE_READDIRPLUS: {
            const auto in = arguments.take<fuse_read_in>();
            if (bad()) return;
            if (!trim_reply(in.size)) return reject(request, EINVAL);
            // A directory's offset is a cookie: any number that the file system gave out.
            if (request.opcode() != FUSE_READ) return file_system_.readdir(request, node, in.fh, in.offset);
            if (!is_file_range(in.offset, in.size)) return reject(request, EINVAL);
            return file_system_.read(
                request, {.node = node, .handle = in.fh, .offset = in.offset, .size = in.size, .flags = in.flags});
        }
        case FUSE_WRITE: {
            const auto in = arguments.take<fuse_write_in>();
            if (bad()) return;
            constexpr std::size_t kHead = sizeof(fuse_in_header) + sizeof(fuse_write_in);
            if (request.header_.total_extlen != 0 || request.header_.len - kHead != in.size ||
                in.size > connection_.max_write || !is_file_range(in.offset, in.size))
                return reject(request, EINVAL);
            request.in_ = keep_front(drop_front(request.in_, kHead), in.size);
            return file_system_.write(request, {.node = node,
                                                .handle = in.fh,
                                                .offset = in.offset,
                                                .size = in.size,
                                                .flags = in.flags,
                                                .from_cache = (in.write_flags & FUSE_WRITE_CACHE) != 0,
                                                .kill_suid_sgid = (in.write_flags & FUSE_WRITE_KILL_SUIDGID) != 0});
        }
        case FUSE_SETXATTR: {
            fuse_setxattr_in in{};
            if (connection_.has(FUSE_SETXATTR_EXT)) {
                in = arguments.take<fuse_setxattr_in>();
            } else {
                const auto head = arguments.take<std::uint64_t>();
                std::memcpy(&in, &head, FUSE_COMPAT_SETXATTR_IN_SIZE);
            }
            const Name name = arguments.take_xattr_name();
            const auto value = arguments.take_bytes(in.size);
            if (bad()) return;
            return file_system_.setxattr(request, node, name, value, in.flags,
                                         (in.setxattr_flags & FUSE_SETXATTR_ACL_KILL_SGID) != 0);
        }
        case FUSE_GETXATTR:
        case FUSE_LISTXATTR: {
            const auto in = arguments.take<fuse_getxattr_in>();
            const Name name = request.opcode() == FUSE_GETXATTR ? arguments.take_xattr_name() : Name();
            if (bad()) return;
            if (!trim_reply(in.size == 0 ? sizeof(fuse_getxattr_out) : in.size)) return reject(request, EINVAL);
            if (request.opcode() == FUSE_GETXATTR) return file_system_.getxattr(request, node, name, in.size);
            return file_system_.listxattr(request, node, in.size);
        }
        case FUSE_REMOVEXATTR: {
            const Name name = arguments.take_xattr_name();
            if (bad()) return;
            return file_system_.removexattr(request, node, name);
        }
        case FUSE_FALLOCATE: {
            const auto in = arguments.take<fuse_fallocate_in>();
            if (bad()) return;
            if (in.length == 0) return reject(request, EINVAL);
            if (!is_file_range(in.offset, in.length)) return reject(request, EFBIG);
            return file_system_.fallocate(request, node, in.fh, in.mode, in.offset, in.length);
        }
        case FUSE_LSEEK: {
            const auto in = arguments.take<fuse_lseek_in>();
            if (bad()) return;
            if (in.whence != SEEK_DATA && in.whence != SEEK_HOLE) return reject(request, EINVAL);
            if (!is_file_range(in.offset, 0)) return request.reply_error(ENXIO);
            return file_system_.lseek(request, node, in.fh, in.offset, in.whence);
        }
        case FUSE_COPY_FILE_RANGE:
        case abi::kCopyFileRange64: {
            const auto in = arguments.take<fuse_copy_file_range_in>();
            if (bad()) return;
            std::uint64_t size = in.len;
            // The older reply has 32 bits: less is copied then, and the client asks again.
            if (request.opcode() == FUSE_COPY_FILE_RANGE) size = std::min<std::uint64_t>(size, 0xfffff000u);
            if (in.nodeid_out == 0 || in.flags != 0 || !is_file_range(in.off_in, size) ||
                !is_file_range(in.off_out, size))
                return reject(request, EINVAL);
            return file_system_.copy_file_range(request, {.node_in = node,
                                                          .handle_in = in.fh_in,
                                                          .offset_in = in.off_in,
                                                          .node_out = in.nodeid_out,
                                                          .handle_out = in.fh_out,
                                                          .offset_out = in.off_out,
                                                          .size = size,
                                                          .flags = in.flags});
        }
        default:
            return reject(request, ENOSYS);
    }
}

// ---- Operations on a node or an open file with nothing but fixed arguments.

void Session::dispatch_file(Request& request, Arguments& arguments) {
    const NodeId node = request.node();
    const auto bad = [&] {
        if (const int error = arguments.end(); error != 0) {
            reject(request, error);
            return true;
        }
        return false;
    };
    switch (request.opcode()) {
        case FUSE_FORGET: {
            const auto in = arguments.take<fuse_forget_in>();
            if (bad()) return;
            file_system_.forget(node, in.nlookup);
            return request.reply_none();
        }
        case FUSE_GETATTR: {
            const auto in = arguments.take<fuse_getattr_in>();
            if (bad()) return;
            const bool has_handle = (in.getattr_flags & FUSE_GETATTR_FH) != 0;
            return file_system_.getattr(request, node, has_handle ? &in.fh : nullptr);
        }
        case abi::kStatx: {
            const auto in = arguments.take<abi::StatxIn>();
            if (bad()) return;
            const Handle handle = in.fh;
            const bool has_handle = (in.getattr_flags & FUSE_GETATTR_FH) != 0;
            return file_system_.getattr(request, node, has_handle ? &handle : nullptr);
        }
        case FUSE_SETATTR: {
            const auto in = arguments.take<fuse_setattr_in>();
            if (bad()) return;
            const auto has = [&](std::uint32_t flag) { return (in.valid & flag) != 0; };
            AttributeChange change;
            change.set_mode = has(FATTR_MODE);
            change.set_uid = has(FATTR_UID);
            change.set_gid = has(FATTR_GID);
            change.set_size = has(FATTR_SIZE);
            change.set_atime = has(FATTR_ATIME);
            change.set_mtime = has(FATTR_MTIME);
            change.set_ctime = has(FATTR_CTIME);
            change.atime_now = has(FATTR_ATIME_NOW);
            change.mtime_now = has(FATTR_MTIME_NOW);
            change.kill_suid_sgid = has(FATTR_KILL_SUIDGID);
            change.has_handle = has(FATTR_FH);
            change.mode = in.mode & kPermissions;
            change.uid = in.uid;
            change.gid = in.gid;
            change.size = in.size;
            change.atime = time_of(in.atime, in.atimensec);
            change.mtime = time_of(in.mtime, in.mtimensec);
            change.ctime = time_of(in.ctime, in.ctimensec);
            change.handle = in.fh;
            if (change.set_size && !is_file_range(change.size, 0)) return reject(request, EINVAL);
            constexpr std::uint32_t kSecond = 1'000'000'000;
            if (in.atimensec >= kSecond || in.mtimensec >= kSecond || in.ctimensec >= kSecond)
                return reject(request, EINVAL);
            return file_system_.setattr(request, node, change);
        }
        case FUSE_OPEN:
        case FUSE_OPENDIR: {
            const auto in = arguments.take<fuse_open_in>();
            if (bad()) return;
            if (request.opcode() == FUSE_OPENDIR) return file_system_.opendir(request, node, in.flags & ~kNotForOpen);
            if (options_.read_only && opens_for_writing(in.flags)) return request.reply_error(EROFS);
            return file_system_.open(request, node, in.flags & ~kNotForOpen,
                                     (in.open_flags & FUSE_OPEN_KILL_SUIDGID) != 0);
        }
        case FUSE_RELEASE:
        case FUSE_RELEASEDIR: {
            const auto in = arguments.take<fuse_release_in>();
            if (bad()) return;
            if (request.opcode() == FUSE_RELEASEDIR) return file_system_.releasedir(request, node, in.fh);
            return file_system_.release(request, {.node = node,
                                                  .handle = in.fh,
                                                  .flags = in.flags,
                                                  .lock_owner = in.lock_owner,
                                                  .flock_unlock = (in.release_flags & FUSE_RELEASE_FLOCK_UNLOCK) != 0});
        }
        case FUSE_FLUSH: {
            const auto in = arguments.take<fuse_flush_in>();
            if (bad()) return;
            return file_system_.flush(request, node, in.fh, in.lock_owner);
        }
        case FUSE_FSYNC:
        case FUSE_FSYNCDIR: {
            const auto in = arguments.take<fuse_fsync_in>();
            if (bad()) return;
            const bool data_only = (in.fsync_flags & FUSE_FSYNC_FDATASYNC) != 0;
            if (request.opcode() == FUSE_FSYNC) return file_system_.fsync(request, node, in.fh, data_only);
            return file_system_.fsyncdir(request, node, in.fh, data_only);
        }
        case FUSE_STATFS: {
            if (bad()) return;
            return file_system_.statfs(request, node);
        }
        case FUSE_ACCESS: {
            const auto in = arguments.take<fuse_access_in>();
            if (bad()) return;
            if ((in.mask & ~7u) != 0) return reject(request, EINVAL);
            return file_system_.access(request, node, in.mask);
        }
        case FUSE_GETLK:
        case FUSE_SETLK:
        case FUSE_SETLKW: {
            const auto in = arguments.take<fuse_lk_in>();
            if (bad()) return;
            const LockRequest lock{
                .node = node,
                .handle = in.fh,
                .owner = in.owner,
                .lock = {.start = in.lk.start, .end = in.lk.end, .type = in.lk.type, .pid = in.lk.pid},
                .flock = (in.lk_flags & FUSE_LK_FLOCK) != 0,
                .wait = request.opcode() == FUSE_SETLKW};
            const bool known_type = in.lk.type == F_RDLCK || in.lk.type == F_WRLCK || in.lk.type == F_UNLCK;
            if (!known_type || in.lk.start > in.lk.end || !is_file_range(in.lk.end, 0)) return reject(request, EINVAL);
            // Only what was agreed on: otherwise the client believes that it holds a lock that nobody keeps.
            if (!connection_.has(lock.flock ? FUSE_FLOCK_LOCKS : FUSE_POSIX_LOCKS)) return request.reply_error(ENOSYS);
            if (request.opcode() == FUSE_GETLK) return file_system_.getlk(request, lock);
            return set_lock(request, lock);
        }
        case FUSE_SYNCFS: {
            arguments.take<fuse_syncfs_in>();
            if (bad()) return;
            return file_system_.syncfs(request, node);
        }
        case FUSE_IOCTL: {
            const auto in = arguments.take<fuse_ioctl_in>();
            if (bad()) return;
            return file_system_.ioctl(request, node, in.fh, in.cmd);
        }
        case FUSE_BMAP: {
            const auto in = arguments.take<fuse_bmap_in>();
            if (bad()) return;
            return file_system_.bmap(request, node, in.block, in.blocksize);
        }
        case FUSE_POLL:
            // Nobody serves it, and honest clients try.
            return request.reply_error(ENOSYS);
        default:
            return reject(request, ENOSYS);
    }
}

}  // namespace farhaul::fuse
