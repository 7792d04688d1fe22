// Operations on names: lookup, what creates, removes and moves them.
#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "backend/mirror/mirror_file_system.hpp"

namespace farhaul::backend::mirror {

namespace {

/// The session checks names; here it is what keeps a client inside, so here it is checked too.
bool is_name(fuse::Name name) {
    return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos;
}

/// O_PATH of an open file that was made as `name`, and its attributes: of that inode, not of what the name stands for
/// by now. By name first, which is faster: while the file is open, nothing else has its number. 0 or an errno.
int path_of(int made, int directory, const char* name, Fd& path, struct statx& stat) {
    if (const int error = stat_fd(made, stat); error != 0) return error;
    path.reset(open_path_beneath(directory, name));
    struct stat by_name;
    if (path && ::fstat(path.get(), &by_name) == 0 && by_name.st_ino == stat.stx_ino &&
        by_name.st_dev == makedev(stat.stx_dev_major, stat.stx_dev_minor))
        return 0;
    path.reset(reopen(made, O_PATH | O_CLOEXEC));
    return path ? 0 : errno;
}

}  // namespace

void MirrorFileSystem::lookup(Request& request, NodeId parent, Name name) {
    InodePtr directory, inode;
    PathFd fd;
    struct statx stat;
    int error = is_name(name) ? find_directory(parent, directory, fd) : EINVAL;
    if (error == 0) error = store_.look_up(directory, fd.get(), name.c_str(), inode, stat);
    if (error == ENOENT && negative_timeout_ > Duration{}) {
        fuse::Entry none;
        none.entry_timeout = negative_timeout_;
        return request.reply_entry(none);
    }
    if (error != 0) return request.reply_error(error);
    request.reply_entry(entry(stat, *inode));
}

void MirrorFileSystem::forget(NodeId node, std::uint64_t count) { store_.forget(node, count); }

template <typename Act>
void MirrorFileSystem::make(Request& request, const fuse::CreateRequest& create, Act&& act) {
    InodePtr directory, inode;
    PathFd fd;
    struct statx stat;
    int error = may_change();
    if (error == 0 && !is_name(create.name)) error = EINVAL;
    if (error == 0) error = find_directory(create.parent, directory, fd);
    if (error == 0) {
        CreationScope scope(abilities_.privilege, identity(request), umask_of(create));
        error = scope.error();
        if (error == 0 && scope.run([&] { return act(fd.get()); }) < 0) error = errno;
    }
    if (error == 0) error = store_.look_up(directory, fd.get(), create.name.c_str(), inode, stat);
    if (error != 0) return request.reply_error(error);
    request.reply_entry(entry(stat, *inode));
}

void MirrorFileSystem::mknod(Request& request, const fuse::CreateRequest& create) {
    make(request, create, [&](int directory) {
        return ::mknodat(directory, create.name.c_str(), create.mode, fuse::decode_device(create.rdev));
    });
}

void MirrorFileSystem::mkdir(Request& request, const fuse::CreateRequest& create) {
    make(request, create,
         [&](int directory) { return ::mkdirat(directory, create.name.c_str(), create.mode & 07777); });
}

void MirrorFileSystem::symlink(Request& request, const fuse::CreateRequest& create, Name target) {
    make(request, create, [&](int directory) { return ::symlinkat(target.c_str(), directory, create.name.c_str()); });
}

void MirrorFileSystem::link(Request& request, NodeId node, NodeId new_parent, Name new_name) {
    InodePtr inode, directory;
    PathFd fd, directory_fd;
    struct statx stat;
    int error = may_change();
    if (error == 0 && !is_name(new_name)) error = EINVAL;
    if (error == 0) error = find(node, inode, fd);
    if (error == 0) error = find_directory(new_parent, directory, directory_fd);
    // Through /proc, the link is to the very inode, be it a symlink.
    if (error == 0 &&
        ::linkat(AT_FDCWD, FdPath(fd.get()).c_str(), directory_fd.get(), new_name.c_str(), AT_SYMLINK_FOLLOW) != 0)
        error = errno;
    if (error == 0) error = stat_fd(fd.get(), stat);
    if (error != 0) return request.reply_error(error);
    store_.add_lookup(*inode);
    request.reply_entry(entry(stat, *inode));
}

void MirrorFileSystem::remove(Request& request, NodeId parent, Name name, int flags) {
    InodePtr directory;
    PathFd fd;
    int error = may_change();
    if (error == 0 && !is_name(name)) error = EINVAL;
    if (error == 0) error = find_directory(parent, directory, fd);
    if (error == 0) store_.losing(fd.get(), name.c_str());
    if (error == 0 && ::unlinkat(fd.get(), name.c_str(), flags) != 0) error = errno;
    if (error != 0) return request.reply_error(error);
    request.reply_ok();
}

void MirrorFileSystem::unlink(Request& request, NodeId parent, Name name) { remove(request, parent, name, 0); }
void MirrorFileSystem::rmdir(Request& request, NodeId parent, Name name) {
    remove(request, parent, name, AT_REMOVEDIR);
}

void MirrorFileSystem::rename(Request& request, const fuse::RenameRequest& rename) {
    InodePtr from, to;
    PathFd from_fd, to_fd;
    int error = may_change();
    if (error == 0 && (!is_name(rename.name) || !is_name(rename.new_name))) error = EINVAL;
    if (error == 0) error = find_directory(rename.parent, from, from_fd);
    if (error == 0) error = find_directory(rename.new_parent, to, to_fd);
    const auto act = [&] {
        return ::renameat2(from_fd.get(), rename.name.c_str(), to_fd.get(), rename.new_name.c_str(), rename.flags);
    };
    if (error == 0 && (rename.flags & (RENAME_EXCHANGE | RENAME_NOREPLACE)) == 0)
        store_.losing(to_fd.get(), rename.new_name.c_str());
    if (error == 0 && (rename.flags & RENAME_WHITEOUT) != 0) {
        // What is left behind is a new inode: the caller's.
        CreationScope scope(abilities_.privilege, identity(request), 0);
        error = scope.error();
        if (error == 0 && scope.run(act) != 0) error = errno;
    } else if (error == 0 && act() != 0) {
        error = errno;
    }
    if (error != 0) return request.reply_error(error);
    store_.moved(to, to_fd.get(), rename.new_name.c_str());
    if ((rename.flags & RENAME_EXCHANGE) != 0) store_.moved(from, from_fd.get(), rename.name.c_str());
    request.reply_ok();
}

void MirrorFileSystem::readlink(Request& request, NodeId node) {
    InodePtr inode;
    PathFd fd;
    if (const int error = find(node, inode, fd); error != 0) return request.reply_error(error);
    if (inode->type != S_IFLNK) return request.reply_error(EINVAL);
    char target[4096];
    const ssize_t size = ::readlinkat(fd.get(), "", target, sizeof(target));
    if (size < 0) return request.reply_error(errno);
    request.reply_bytes(std::as_bytes(std::span(target, static_cast<std::size_t>(size))));
}

// ---- Files that are made and opened at once.

void MirrorFileSystem::create(Request& request, const fuse::CreateRequest& create) {
    InodePtr directory, inode;
    PathFd fd;
    struct statx stat;
    FilePtr file;
    int error = may_change();
    if (error == 0 && !is_name(create.name)) error = EINVAL;
    if (error == 0) error = find_directory(create.parent, directory, fd);
    if (error != 0) return request.reply_error(error);
    constexpr int kAttempts = 8;  // somebody else creates and removes the name meanwhile
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        Fd made;
        {
            CreationScope scope(abilities_.privilege, identity(request), umask_of(create));
            error = scope.error();
            // Of a new file the creator's descriptor may write, whatever the mode says. O_EXCL: never opens what is
            // there, which may be anything.
            if (error == 0) {
                made.reset(scope.run([&] {
                    return ::openat(fd.get(), create.name.c_str(),
                                    static_cast<int>(data_flags(create.flags & ~std::uint32_t{O_TRUNC})) | O_CREAT |
                                        O_EXCL | O_NOFOLLOW,
                                    create.mode & 07777);
                }));
                if (!made) error = errno;
            }
        }
        if (error == 0) {
            Fd path;
            error = path_of(made.get(), fd.get(), create.name.c_str(), path, stat);
            if (error != 0) break;
            store_.enter_known(std::move(path), directory, create.name.c_str(), inode, stat);
            file = std::make_shared<OpenedFile>();
            file->fd = std::move(made);
            file->inode = inode;
            file->writable = (create.flags & O_ACCMODE) != O_RDONLY;
            add_direct(*file, create.flags);
            break;
        }
        if (error != EEXIST || (create.flags & O_EXCL) != 0) break;
        error = store_.look_up(directory, fd.get(), create.name.c_str(), inode, stat);
        if (error == ENOENT) continue;
        if (error != 0) break;
        PathFd path;
        // Anything but a file: let the client look again, and see.
        error = inode->is_regular() ? store_.path(*inode, path) : ESTALE;
        if (error == 0) error = open_data(inode, path.get(), create.flags, file);
        if (error == 0 && (create.flags & O_TRUNC) != 0) {
            if (create.kill_suid_sgid) error = kill_suid_sgid(file->fd.get(), request.caller());
            if (error == 0) error = stat_fd(path.get(), stat);
        }
        if (error != 0) store_.forget(inode->id, 1);
        break;
    }
    if (error != 0) return request.reply_error(error);
    const fuse::OpenFile open = opened(std::move(file), true, create.flags, &stat);
    request.reply_create(entry(stat, *inode), open);
}

void MirrorFileSystem::tmpfile(Request& request, const fuse::CreateRequest& create) {
    InodePtr directory, inode;
    PathFd fd;
    struct statx stat;
    int error = may_change();
    if (error == 0) error = find_directory(create.parent, directory, fd);
    Fd made;
    if (error == 0) {
        CreationScope scope(abilities_.privilege, identity(request), umask_of(create));
        error = scope.error();
        if (error == 0) {
            std::uint32_t flags = data_flags(create.flags & ~std::uint32_t{O_TRUNC});
            flags |= O_TMPFILE | (create.flags & O_EXCL);
            made.reset(
                scope.run([&] { return ::openat(fd.get(), ".", static_cast<int>(flags), create.mode & 07777); }));
            if (!made) error = errno;
        }
    }
    if (error == 0) {
        Fd path(reopen(made.get(), O_PATH | O_CLOEXEC));
        error = path ? store_.enter(std::move(path), directory, nullptr, inode, stat) : errno;
    }
    if (error != 0) return request.reply_error(error);
    auto file = std::make_shared<OpenedFile>();
    file->fd = std::move(made);
    file->inode = inode;
    file->writable = true;
    add_direct(*file, create.flags);
    const fuse::OpenFile open = opened(std::move(file), true, create.flags, &stat);
    request.reply_create(entry(stat, *inode), open);
}

}  // namespace farhaul::backend::mirror
