// Opening and closing files, and what is done to an open file besides reading and writing.
#include <algorithm>
#include <cerrno>
#include <ctime>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/mirror/credentials.hpp"
#include "backend/mirror/mirror_file_system.hpp"

namespace farhaul::backend::mirror {

std::uint32_t MirrorFileSystem::data_flags(std::uint32_t flags) const {
    // O_APPEND and O_SYNC go with each write instead: fcntl(F_SETFL) may change them, and what the client's page cache
    // writes back has a place. O_DIRECT is ours to decide.
    std::uint32_t out = flags & (O_ACCMODE | O_TRUNC | O_NOATIME);
    if (!abilities_.privilege.change_identity) out &= ~std::uint32_t{O_NOATIME};
    // The client's page cache reads the rest of a page before it changes a part of it.
    if (writeback_ && (out & O_ACCMODE) == O_WRONLY) out = (out & ~std::uint32_t{O_ACCMODE}) | O_RDWR;
    return out | O_CLOEXEC | O_NOCTTY;
}

void MirrorFileSystem::add_direct(OpenedFile& file, std::uint32_t flags) const {
    if (!options_.direct_io) return;
    const std::uint32_t again = data_flags(flags & ~std::uint32_t{O_TRUNC}) | O_DIRECT;
    file.direct.reset(reopen(file.fd.get(), static_cast<int>(again)));
}

int MirrorFileSystem::open_data(const InodePtr& inode, int path, std::uint32_t flags, FilePtr& file) {
    if (!inode->is_regular()) return inode->is_directory() ? EISDIR : inode->type == S_IFLNK ? ELOOP : ENXIO;
    const bool writable = (flags & O_ACCMODE) != O_RDONLY;
    if (options_.read_only && (writable || (flags & O_TRUNC) != 0)) return EROFS;
    Fd fd(reopen(path, static_cast<int>(data_flags(flags))));
    if (!fd && errno == EACCES && writeback_)
        fd.reset(reopen(path, static_cast<int>((data_flags(flags) & ~std::uint32_t{O_ACCMODE}) | (flags & O_ACCMODE))));
    if (!fd) return errno;
    file = std::make_shared<OpenedFile>();
    file->fd = std::move(fd);
    file->inode = inode;
    file->writable = writable;
    add_direct(*file, flags);
    return 0;
}

bool MirrorFileSystem::pass_through(OpenedFile& file, std::uint32_t flags, const struct statx* known,
                                    fuse::OpenFile& out) {
    fuse::BackingFiles* const backing_files = backing_files_.load(std::memory_order_relaxed);
    if (backing_files == nullptr) return false;
    struct statx stat;
    bool ask = (flags & O_APPEND) != 0;
    if (file.writable) {
        if (known != nullptr) {
            stat = *known;
        } else if (stat_fd(file.fd.get(), stat) != 0) {
            ask = true;
        }
        ask = ask || (stat.stx_mode & (S_ISUID | S_ISGID)) != 0;
    }
    PathFd path;
    Inode& inode = *file.inode;
    const bool have_path = store_.path(inode, path) == 0;
    const std::scoped_lock lock(inode.mutex);
    if (inode.cached_opens == 0 && inode.passed_opens == 0 && have_path) {
        // Not the open file: it is closed when the client closes it, and its locks end then.
        const WithoutSetIdPrivilege scope;
        if (scope) inode.backing_id = std::max(backing_files->open(path.get()), 0);
    }
    if (inode.backing_id == 0) {
        file.cached = !out.direct_io;
        inode.cached_opens += file.cached ? 1 : 0;
        return false;
    }
    ++inode.passed_opens;
    file.passed = true;
    out.backing_id = inode.backing_id;
    // The kernel's own writes know O_APPEND as it was when the file was opened, which fcntl(F_SETFL) may change; and
    // they end S_ISUID even if the writer may keep it. So these writes come to us; mapped is the backing file.
    out.direct_io = ask;
    return true;
}

void MirrorFileSystem::closed(OpenedFile& file) {
    if (!file.passed && !file.cached) return;
    Inode& inode = *file.inode;
    const std::scoped_lock lock(inode.mutex);
    if (file.cached) --inode.cached_opens;
    if (!file.passed || --inode.passed_opens != 0) return;
    if (fuse::BackingFiles* const backing_files = backing_files_.load(std::memory_order_relaxed))
        backing_files->close(inode.backing_id);
    inode.backing_id = 0;
}

fuse::OpenFile MirrorFileSystem::opened(FilePtr file, bool changed, std::uint32_t flags, const struct statx* known) {
    fuse::OpenFile out;
    out.direct_io = options_.cache == MirrorOptions::Cache::kNever;
    out.keep_cache = options_.cache == MirrorOptions::Cache::kAlways;
    // FLUSH ends locks and reports late errors.
    out.no_flush = !options_.posix_locks && !abilities_.remote;
    out.parallel_direct_writes = true;
    const bool passed = pass_through(*file, flags, known, out);
    struct statx stat;
    if (!passed && options_.cache == MirrorOptions::Cache::kAuto && !changed && stat_fd(file->fd.get(), stat) == 0) {
        // Good while ctime and size stay. A ctime of just now proves nothing: the next change may have the same.
        timespec now{};
        ::clock_gettime(CLOCK_REALTIME, &now);
        const std::int64_t age = (now.tv_sec - stat.stx_ctime.tv_sec) * 1'000 +
                                 (now.tv_nsec - static_cast<std::int64_t>(stat.stx_ctime.tv_nsec)) / 1'000'000;
        constexpr std::int64_t kCoarsestTick = 20;  // ms
        Inode& inode = *file->inode;
        const std::scoped_lock lock(inode.mutex);
        out.keep_cache = inode.opened_ctime.tv_sec == stat.stx_ctime.tv_sec &&
                         inode.opened_ctime.tv_nsec == stat.stx_ctime.tv_nsec && inode.opened_size == stat.stx_size;
        inode.opened_ctime = age >= kCoarsestTick ? stat.stx_ctime : statx_timestamp{};
        inode.opened_size = stat.stx_size;
    }
    store_.opened(*file->inode, file, file->fd.get());
    out.handle = files_.add(std::move(file));
    return out;
}

void MirrorFileSystem::open(Request& request, NodeId node, std::uint32_t flags, bool kill) {
    InodePtr inode;
    PathFd path;
    FilePtr file;
    int error = find(node, inode, path);
    if (error == 0) error = open_data(inode, path.get(), flags, file);
    const bool truncated = (flags & O_TRUNC) != 0;
    if (error == 0 && truncated && kill) error = kill_suid_sgid(file->fd.get(), request.caller());
    if (error != 0) return request.reply_error(error);
    request.reply_open(opened(std::move(file), truncated, flags, nullptr));
}

void MirrorFileSystem::flush(Request& request, NodeId, Handle handle, std::uint64_t lock_owner) {
    const FilePtr file = files_.find(handle, false);
    if (file == nullptr) return request.reply_error(EBADF);
    if (drop_record_locks(*file->inode, lock_owner)) waiters_.wake();
    if (abilities_.remote && file->writable) {
        // Errors of earlier writes come with close(2) of any descriptor.
        const int copy = ::fcntl(file->fd.get(), F_DUPFD_CLOEXEC, 0);
        if (copy < 0 || ::close(copy) != 0) return request.reply_error(errno);
    }
    request.reply_ok();
}

void MirrorFileSystem::release(Request& request, const fuse::ReleaseRequest& release) {
    FilePtr file = files_.remove(release.handle, false);
    if (file == nullptr) return request.reply_error(EBADF);
    const bool unlocked = drop_record_locks_of(*file->inode, release.handle);
    closed(*file);
    file.reset();
    if (unlocked || release.flock_unlock) waiters_.wake();
    request.reply_ok();
}

void MirrorFileSystem::fallocate(Request& request, NodeId, Handle handle, std::uint32_t mode, std::uint64_t offset,
                                 std::uint64_t length) {
    const FilePtr file = files_.find(handle, false);
    int error = may_change();
    if (error == 0 && file == nullptr) error = EBADF;
    if (error == 0 && ::fallocate(file->fd.get(), static_cast<int>(mode), static_cast<off_t>(offset),
                                  static_cast<off_t>(length)) != 0)
        error = errno;
    if (error != 0) return request.reply_error(error);
    request.reply_ok();
}

void MirrorFileSystem::lseek(Request& request, NodeId, Handle handle, std::uint64_t offset, std::uint32_t whence) {
    const FilePtr file = files_.find(handle, false);
    if (file == nullptr) return request.reply_error(EBADF);
    // SEEK_DATA and SEEK_HOLE only: the descriptor's own position means nothing.
    const off_t found = ::lseek(file->fd.get(), static_cast<off_t>(offset), static_cast<int>(whence));
    if (found < 0) return request.reply_error(errno);
    request.reply_seek(static_cast<std::uint64_t>(found));
}

void MirrorFileSystem::copy_file_range(Request& request, const fuse::CopyRequest& copy) {
    const FilePtr in = files_.find(copy.handle_in, false);
    const FilePtr out = files_.find(copy.handle_out, false);
    if (in == nullptr || out == nullptr) return request.reply_error(EBADF);
    if (const int error = may_change(); error != 0) return request.reply_error(error);
    off_t offset_in = static_cast<off_t>(copy.offset_in);
    off_t offset_out = static_cast<off_t>(copy.offset_out);
    constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 30;
    const ssize_t copied =
        ::copy_file_range(in->fd.get(), &offset_in, out->fd.get(), &offset_out,
                          static_cast<std::size_t>(std::min(copy.size, kAtOnce)), static_cast<unsigned>(copy.flags));
    if (copied < 0) return request.reply_error(errno);
    request.reply_written(static_cast<std::size_t>(copied));
}

void MirrorFileSystem::syncfs(Request& request, NodeId node) {
    if (options_.sync == MirrorOptions::Sync::kNever) return request.reply_ok();
    InodePtr inode;
    PathFd path;
    int error = find(node, inode, path);
    if (error == 0 && !inode->is_directory() && !inode->is_regular()) error = EINVAL;
    if (error == 0) {
        const Fd fd(reopen(path.get(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
        if (!fd || ::syncfs(fd.get()) != 0) error = errno;
    }
    if (error != 0) return request.reply_error(error);
    request.reply_ok();
}

}  // namespace farhaul::backend::mirror
