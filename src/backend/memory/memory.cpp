#include "backend/memory/memory.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>

#include "backend/memory/memory_file_system.hpp"

namespace farhaul::backend {

std::unique_ptr<fuse::FileSystem> make_memory(const MemoryOptions& options, WallClock clock) {
    return std::make_unique<memory::MemoryFileSystem>(options, std::move(clock));
}

namespace memory {

namespace {

void reply(Request& request, int error) {
    if (error == 0) {
        request.reply_ok();
    } else {
        request.reply_error(error);
    }
}

void reply(Request& request, const Answer<fuse::Entry>& entry) {
    if (entry) {
        request.reply_entry(*entry);
    } else {
        request.reply_error(entry.error());
    }
}

}  // namespace

MemoryFileSystem::MemoryFileSystem(const MemoryOptions& options, WallClock clock)
    : options_(options), tree_(options, std::move(clock)), locks_(options.max_locks) {}

fuse::Wishes MemoryFileSystem::wishes() const {
    return {.posix_locks = true,
            .flock = true,
            .posix_acl = true,
            .handle_kill_priv = true,
            .atomic_o_trunc = true,
            .readdirplus = true,
            .parallel_directory_operations = true,
            .export_support = true};
}

void MemoryFileSystem::destroy() {
    // In this order: see setlk().
    handles_.clear();
    locks_.clear();
    tree_.forget_all();
}

void MemoryFileSystem::lookup(Request& request, NodeId parent, Name name) {
    reply(request, tree_.lookup(parent, name));
}

void MemoryFileSystem::forget(NodeId node, std::uint64_t count) { tree_.forget(node, count); }

void MemoryFileSystem::getattr(Request& request, NodeId node, const Handle* handle) {
    InodePointer inode;
    if (handle != nullptr) {
        inode = handles_.find(node, *handle).inode;
        if (inode == nullptr) return request.reply_error(EBADF);
    } else {
        auto found = tree_.find(node);
        if (!found) return request.reply_error(found.error());
        inode = std::move(*found);
    }
    fuse::Attributes attributes;
    {
        const std::shared_lock lock(inode->mutex);
        attributes = inode->attributes();
    }
    request.reply_attributes(attributes, options_.timeout);
}

void MemoryFileSystem::resize(Inode& inode, std::uint64_t size) {
    // What fallocate(2) reserved behind the end goes as well.
    if (size <= inode.size) inode.data.discard(size, UINT64_MAX);
    inode.size = size;
}

int MemoryFileSystem::apply(Inode& inode, const Caller& caller, const fuse::AttributeChange& change) {
    const timespec now = tree_.now();
    const std::scoped_lock lock(inode.mutex);
    const bool owner_changes = change.set_uid || change.set_gid;
    const bool nothing = !owner_changes && !change.set_mode && !change.set_size && !change.set_atime &&
                         !change.set_mtime;  // with the writeback cache it has a ctime
    if (change.set_size) {
        if (inode.is_directory()) return EISDIR;
        if (!inode.is_regular()) return EINVAL;
        if (change.size > kMaxFileSize) return EFBIG;
    }
    // A change of nothing is chown(2) with neither owner nor group, by which the owner loses privileges of the file.
    // The client makes the same before a write by anybody else: no error, and where there are privileges not even
    // ctime.
    const bool owner = caller.uid == 0 || caller.uid == inode.uid;
    if (nothing && !owner && !inode.is_directory() && (inode.permissions & (S_ISUID | S_ISGID)) != 0) return 0;
    const bool chowns = owner_changes || (nothing && owner);
    if ((chowns || change.set_size) && !inode.is_directory()) tree_.inode_space().give_back(inode.drop_capabilities());
    if (chowns || change.kill_suid_sgid) inode.drop_suid_sgid(caller);
    // truncate(2), without a handle, that finds nothing to do leaves the times alone.
    const bool idle = change.set_size && !change.has_handle && change.size == inode.size && inode.data.pages() == 0;
    if (change.set_size) {
        resize(inode, change.size);
        if (!idle) inode.mtime = now;
    }
    if (change.set_uid) inode.uid = change.uid;
    if (change.set_gid) inode.gid = change.gid;
    if (change.set_mode) inode.chmod(change.mode);
    if (change.set_atime) inode.atime = change.atime_now ? now : change.atime;
    if (change.set_mtime) inode.mtime = change.mtime_now ? now : change.mtime;
    const bool touched = !idle || chowns || change.set_mode || change.set_atime || change.set_mtime;
    if (change.set_ctime) {
        inode.ctime = change.ctime;
    } else if (touched) {
        inode.changed(now);
    }
    return 0;
}

void MemoryFileSystem::setattr(Request& request, NodeId node, const fuse::AttributeChange& change) {
    InodePointer inode;
    if (change.has_handle) {
        inode = handles_.find(node, change.handle).inode;
        if (inode == nullptr) return request.reply_error(EBADF);
    } else {
        auto found = tree_.find(node);
        if (!found) return request.reply_error(found.error());
        inode = std::move(*found);
    }
    if (const int error = apply(*inode, request.caller(), change); error != 0) return request.reply_error(error);
    fuse::Attributes attributes;
    {
        const std::shared_lock lock(inode->mutex);
        attributes = inode->attributes();
    }
    request.reply_attributes(attributes, options_.timeout);
}

void MemoryFileSystem::touch_atime(Inode& inode) {
    const timespec now = tree_.now();
    {
        const std::shared_lock lock(inode.mutex);
        if (!inode.atime_due(now)) return;
    }
    const std::scoped_lock lock(inode.mutex);
    if (inode.atime_due(now)) inode.atime = now;
}

void MemoryFileSystem::readlink(Request& request, NodeId node) {
    const auto found = tree_.find(node);
    if (!found) return request.reply_error(found.error());
    const Inode& inode = **found;
    if (inode.type != S_IFLNK) return request.reply_error(EINVAL);
    touch_atime(**found);
    request.reply_bytes(std::as_bytes(std::span(inode.target)));  // never changes
}

void MemoryFileSystem::mknod(Request& request, const fuse::CreateRequest& create) {
    const std::uint32_t type = create.mode & S_IFMT;
    if (type == S_IFDIR) return request.reply_error(EPERM);
    if (type == S_IFLNK) return request.reply_error(EINVAL);
    reply(request, tree_.make(request.caller(), create));
}

void MemoryFileSystem::mkdir(Request& request, const fuse::CreateRequest& create) {
    fuse::CreateRequest directory = create;
    directory.mode = (create.mode & 07777) | S_IFDIR;
    reply(request, tree_.make(request.caller(), directory));
}

void MemoryFileSystem::symlink(Request& request, const fuse::CreateRequest& create, Name target) {
    if (target.empty()) return request.reply_error(ENOENT);
    fuse::CreateRequest link = create;
    link.mode = S_IFLNK | 0777;
    reply(request, tree_.make(request.caller(), link, target));
}

void MemoryFileSystem::unlink(Request& request, NodeId parent, Name name) {
    reply(request, tree_.unlink(parent, name));
}

void MemoryFileSystem::rmdir(Request& request, NodeId parent, Name name) { reply(request, tree_.rmdir(parent, name)); }

void MemoryFileSystem::rename(Request& request, const fuse::RenameRequest& rename) {
    reply(request, tree_.rename(request.caller(), rename));
}

void MemoryFileSystem::link(Request& request, NodeId node, NodeId new_parent, Name new_name) {
    reply(request, tree_.link(node, new_parent, new_name));
}

void MemoryFileSystem::statfs(Request& request, NodeId node) {
    if (const auto found = tree_.find(node); !found) return request.reply_error(found.error());
    request.reply_statfs(tree_.statistics());
}

void MemoryFileSystem::access(Request& request, NodeId node, std::uint32_t mask) {
    const auto found = tree_.find(node);
    if (!found) return request.reply_error(found.error());
    if ((mask & ~std::uint32_t{R_OK | W_OK | X_OK}) != 0) return request.reply_error(EINVAL);
    // Asked only by clients that do not check permissions by themselves. Of the caller's groups one is known, and
    // lists are not looked at: what counts is the group's share of st_mode, the most that they allow.
    const Caller& caller = request.caller();
    std::uint32_t allowed = 0;
    {
        const Inode& inode = **found;
        const std::shared_lock lock(inode.mutex);
        if (caller.uid == 0) {
            const bool runs = inode.is_directory() || (inode.permissions & 0111) != 0;
            allowed = std::uint32_t{R_OK | W_OK} | (runs ? std::uint32_t{X_OK} : 0);
        } else if (caller.uid == inode.uid) {
            allowed = inode.permissions >> 6;
        } else if (caller.gid == inode.gid) {
            allowed = inode.permissions >> 3;
        } else {
            allowed = inode.permissions;
        }
    }
    reply(request, (mask & ~(allowed & 7)) == 0 ? 0 : EACCES);
}

void MemoryFileSystem::syncfs(Request& request, NodeId node) {
    const auto found = tree_.find(node);
    reply(request, found ? 0 : found.error());
}

}  // namespace memory

}  // namespace farhaul::backend
