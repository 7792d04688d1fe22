// Listings: getdents64() into a buffer of the open directory, whose cookies (d_off) are the host's. A reader that goes
// on where it stopped is served from the buffer; any other seeks. The host's file system sees to it that entries
// deleted meanwhile move no others.
#include <cerrno>
#include <cstddef>
#include <cstring>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/mirror/mirror_file_system.hpp"

namespace farhaul::backend::mirror {

namespace {

constexpr std::size_t kBuffer = 64 << 10;

struct NativeEntry {
    std::uint64_t ino;
    std::int64_t off;
    std::uint16_t reclen;
    std::uint8_t type;
};
constexpr std::size_t kNameOffset = 19;

}  // namespace

void MirrorFileSystem::opendir(Request& request, NodeId node, std::uint32_t) {
    InodePtr inode;
    PathFd path;
    int error = find_directory(node, inode, path);
    Fd fd;
    if (error == 0) {
        fd.reset(reopen(path.get(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!fd) error = errno;
    }
    if (error != 0) return request.reply_error(error);
    auto file = std::make_shared<OpenedFile>();
    file->fd = std::move(fd);
    file->inode = std::move(inode);
    file->directory = true;
    store_.opened(*file->inode, file, file->fd.get());
    fuse::OpenFile open;
    open.keep_cache = open.cache_directory = options_.cache == MirrorOptions::Cache::kAlways;
    open.handle = files_.add(std::move(file));
    request.reply_open(open);
}

void MirrorFileSystem::releasedir(Request& request, NodeId, Handle handle) {
    if (files_.remove(handle, true) == nullptr) return request.reply_error(EBADF);
    request.reply_ok();
}

void MirrorFileSystem::readdir(Request& request, NodeId, Handle handle, std::uint64_t offset) {
    const FilePtr file = files_.find(handle, true);
    if (file == nullptr) return request.reply_error(EBADF);
    const int fd = file->fd.get();
    const InodePtr& directory = file->inode;
    fuse::DirectoryWriter writer(request);
    bool any = false;
    int error = 0;
    {
        const std::scoped_lock lock(file->listing);
        if (offset == 0 || offset != file->next_cookie) {
            file->entries_at = file->entries_end = 0;
            if (::lseek(fd, static_cast<off_t>(offset), SEEK_SET) < 0) return request.reply_error(errno);
            file->next_cookie = offset;
        }
        for (;;) {
            if (file->entries_at == file->entries_end) {
                if (file->entries.empty()) file->entries.resize(kBuffer);
                const long size = ::syscall(SYS_getdents64, fd, file->entries.data(), file->entries.size());
                if (size <= 0) {
                    // A directory that was removed meanwhile is empty.
                    if (size < 0 && errno != ENOENT) error = errno;
                    break;
                }
                file->entries_at = 0;
                file->entries_end = static_cast<std::size_t>(size);
            }
            const std::byte* at = file->entries.data() + file->entries_at;
            NativeEntry native;
            std::memcpy(&native, at, kNameOffset);
            const std::string_view name(reinterpret_cast<const char*>(at) + kNameOffset);
            const auto next = static_cast<std::uint64_t>(native.off);
            if (!writer.fits(name.size())) {
                if (!any) error = EINVAL;
                break;
            }
            const bool dots = name == "." || name == "..";
            const bool outside = name == ".." && directory->id == fuse::kRootNode;
            const std::uint64_t ino = outside ? directory->shown : store_.shown(directory->key.dev, native.ino);
            bool added = true;
            if (!dots && writer.plus()) {
                InodePtr inode;
                struct statx stat;
                const int failed = store_.look_up(directory, fd, name.data(), inode, stat);
                if (failed == 0) {
                    added = writer.add_plus(name, entry(stat, *inode), next);
                    if (!added) store_.forget(inode->id, 1);
                } else if (failed != ENOENT) {
                    // Too many descriptors, an error of the disk: the name is there all the same.
                    added = writer.add(name, ino, native.type, next);
                }
            } else {
                added = writer.add(name, ino, native.type, next);
            }
            if (!added) break;
            any = true;
            file->entries_at += native.reclen;
            file->next_cookie = next;
        }
    }
    if (error != 0 && !any) return request.reply_error(error);
    request.reply_directory(writer);
}

}  // namespace farhaul::backend::mirror
