// Making, removing, linking and listing names. rename() has a file of its own.
#include <cerrno>

#include <fcntl.h>

#include "backend/memory/tree.hpp"

namespace farhaul::backend::memory {

namespace {

/// Targets that are shorter cost no page, as on tmpfs.
constexpr std::size_t kShortTarget = 127;
constexpr std::size_t kLongestTarget = 4095;

bool in_group(const Caller& caller, std::uint32_t gid) {
    return caller.uid == 0 || caller.gid == gid || (caller.has_supplementary_gid && caller.supplementary_gid == gid);
}

}  // namespace

void Tree::update_directory(Inode& directory, const timespec& now, int subdirectories) {
    const std::scoped_lock lock(directory.mutex);
    directory.size = (2 + directory.entries->size()) * kEntrySize;
    directory.nlink += static_cast<std::uint32_t>(subdirectories);
    directory.modified(now);
}

Answer<Inode*> Tree::new_inode(const Caller& caller, Inode& directory, const fuse::CreateRequest& create,
                               std::string_view target, const timespec& now) {
    std::uint32_t type = create.mode & S_IFMT;
    if (type == 0) type = S_IFREG;
    switch (type) {
        case S_IFREG:
        case S_IFDIR:
        case S_IFLNK:
        case S_IFIFO:
        case S_IFSOCK:
        case S_IFCHR:
        case S_IFBLK:
            break;
        default:
            return std::unexpected(EINVAL);
    }
    if (target.size() > kLongestTarget) return std::unexpected(ENAMETOOLONG);
    const std::uint64_t target_pages = target.size() > kShortTarget ? 1 : 0;
    if (!inode_space_.take(kInodeSpace)) return std::unexpected(ENOSPC);
    if (!pages_.take(target_pages)) {
        inode_space_.give_back(kInodeSpace);
        return std::unexpected(ENOSPC);
    }
    auto inode = std::make_shared<Inode>(++last_id_, type, pages_);
    inode->uid = caller.uid;
    inode->gid = caller.gid;
    inode->permissions = create.mode & 07777;
    inode->atime = inode->mtime = inode->ctime = inode->btime = now;
    if (type == S_IFCHR || type == S_IFBLK) inode->rdev = create.rdev;
    if (type == S_IFLNK) {
        inode->permissions = 0777;
        inode->target = target;
        inode->target_pages = target_pages;
        inode->size = target.size();
    }
    if (type == S_IFDIR) {
        inode->entries = std::make_unique<Directory>();
        inode->size = 2 * kEntrySize;
    }

    const std::shared_lock lock(directory.mutex);
    if ((directory.permissions & S_ISGID) != 0) {
        inode->gid = directory.gid;
        constexpr std::uint32_t kGroupRuns = S_ISGID | S_IXGRP;
        if (type == S_IFDIR) {
            inode->permissions |= S_ISGID;
        } else if ((inode->permissions & kGroupRuns) == kGroupRuns && !in_group(caller, directory.gid)) {
            // Nobody makes a program that runs as a group that he is not in.
            inode->permissions &= ~std::uint32_t{S_ISGID};
        }
    }
    if (type != S_IFLNK) {
        if (directory.default_acl) {
            auto inherited = inherit(*directory.default_acl, inode->permissions & 0777);
            inode->permissions = (inode->permissions & ~0777u) | inherited.permissions;
            inode->access_acl = std::move(inherited.access);
            if (type == S_IFDIR) inode->default_acl = directory.default_acl;
        } else {
            inode->permissions &= ~(create.umask & 0777);
        }
    }
    Inode* made = inode.get();
    inodes_.emplace(made->id, std::move(inode));
    return made;
}

Answer<Inode*> Tree::make_locked(const Caller& caller, const fuse::CreateRequest& create, std::string_view target) {
    const auto parent = find_directory(create.parent);
    if (!parent) return parent;
    Inode& directory = **parent;
    if (create.name.size() > kLongestName) return std::unexpected(ENAMETOOLONG);
    if (create.name.empty()) return std::unexpected(EINVAL);
    if (directory.entries->find(create.name) != nullptr) return std::unexpected(EEXIST);
    if (directory.parent == nullptr) return std::unexpected(ENOENT);
    const timespec time = now();
    const auto inode = new_inode(caller, directory, create, target, time);
    if (!inode) return inode;
    Inode& made = **inode;
    made.nlink = made.is_directory() ? 2 : 1;
    if (made.is_directory()) made.parent = &directory;
    directory.entries->add(create.name, made);
    update_directory(directory, time, made.is_directory() ? 1 : 0);
    return inode;
}

Answer<fuse::Entry> Tree::make(const Caller& caller, const fuse::CreateRequest& create, std::string_view target) {
    const std::scoped_lock lock(mutex_);
    const auto inode = make_locked(caller, create, target);
    if (!inode) return std::unexpected(inode.error());
    return entry_of(**inode);
}

Answer<Tree::Created> Tree::create(const Caller& caller, const fuse::CreateRequest& create) {
    const std::scoped_lock lock(mutex_);
    const auto parent = find_directory(create.parent);
    if (!parent) return std::unexpected(parent.error());
    Created created;
    Inode* inode = (*parent)->entries->find(create.name);
    if (inode != nullptr) {
        // The client did not know of the name.
        if ((create.flags & O_EXCL) != 0) return std::unexpected(EEXIST);
        if (inode->is_directory()) return std::unexpected(EISDIR);
        // A link or a device is the client's to follow: it looks again.
        if (!inode->is_regular()) return std::unexpected(ESTALE);
        created.made = false;
    } else {
        fuse::CreateRequest regular = create;
        regular.mode = (create.mode & 07777) | S_IFREG;
        const auto made = make_locked(caller, regular, {});
        if (!made) return std::unexpected(made.error());
        inode = *made;
    }
    ++inode->opens;
    created.inode = inode->shared_from_this();
    created.entry = entry_of(*inode);
    return created;
}

Answer<Tree::Created> Tree::make_nameless(const Caller& caller, const fuse::CreateRequest& create) {
    const std::scoped_lock lock(mutex_);
    const auto parent = find_live_directory(create.parent);
    if (!parent) return std::unexpected(parent.error());
    fuse::CreateRequest regular = create;
    regular.mode = (create.mode & 07777) | S_IFREG;
    const auto made = new_inode(caller, **parent, regular, {}, now());
    if (!made) return std::unexpected(made.error());
    Inode& inode = **made;
    inode.linkable = (create.flags & O_EXCL) == 0;
    ++inode.opens;
    return Created{.entry = entry_of(inode), .inode = inode.shared_from_this(), .made = true};
}

void Tree::drop_name(Inode& inode, const timespec& now, Ended& ended) {
    {
        const std::scoped_lock lock(inode.mutex);
        if (inode.is_directory()) {
            inode.nlink = 0;
            inode.parent = nullptr;
        } else if (--inode.nlink != 0) {
            inode_space_.give_back(kInodeSpace);
        }
        inode.changed(now);
    }
    end_if_unused(inode, ended);
}

int Tree::unlink(NodeId parent, std::string_view name) {
    Ended ended;
    const std::scoped_lock lock(mutex_);
    const auto directory = find_directory(parent);
    if (!directory) return directory.error();
    Inode* inode = (*directory)->entries->find(name);
    if (inode == nullptr) return ENOENT;
    if (inode->is_directory()) return EISDIR;
    const timespec time = now();
    (*directory)->entries->remove(name);
    update_directory(**directory, time, 0);
    drop_name(*inode, time, ended);
    return 0;
}

int Tree::rmdir(NodeId parent, std::string_view name) {
    Ended ended;
    const std::scoped_lock lock(mutex_);
    const auto directory = find_directory(parent);
    if (!directory) return directory.error();
    Inode* inode = (*directory)->entries->find(name);
    if (inode == nullptr) return ENOENT;
    if (!inode->is_directory()) return ENOTDIR;
    if (!inode->entries->empty()) return ENOTEMPTY;
    const timespec time = now();
    (*directory)->entries->remove(name);
    update_directory(**directory, time, -1);
    drop_name(*inode, time, ended);
    return 0;
}

Answer<fuse::Entry> Tree::link(NodeId node, NodeId new_parent, std::string_view name) {
    const std::scoped_lock lock(mutex_);
    const auto found = find_locked(node);
    if (!found) return std::unexpected(found.error());
    const auto parent = find_directory(new_parent);
    if (!parent) return std::unexpected(parent.error());
    Inode& inode = **found;
    Inode& directory = **parent;
    if (name.size() > kLongestName) return std::unexpected(ENAMETOOLONG);
    if (directory.entries->find(name) != nullptr) return std::unexpected(EEXIST);
    if (directory.parent == nullptr) return std::unexpected(ENOENT);
    if (inode.is_directory()) return std::unexpected(EPERM);
    if (inode.nlink == 0 && !inode.linkable) return std::unexpected(ENOENT);
    if (inode.nlink == UINT32_MAX) return std::unexpected(EMLINK);
    if (inode.nlink != 0 && !inode_space_.take(kInodeSpace)) return std::unexpected(ENOSPC);
    const timespec time = now();
    directory.entries->add(name, inode);
    update_directory(directory, time, 0);
    {
        const std::scoped_lock inode_lock(inode.mutex);
        ++inode.nlink;
        inode.linkable = false;
        inode.changed(time);
    }
    return entry_of(inode);
}

int Tree::list(Inode& directory, std::uint64_t offset, fuse::DirectoryWriter& writer) {
    const std::scoped_lock lock(mutex_);
    if (directory.parent == nullptr) return ENOENT;  // removed
    constexpr std::uint32_t kDirectoryType = S_IFDIR >> 12;
    bool more = false;  // something did not fit
    if (offset < Directory::kDot) more = !writer.add(".", directory.id, kDirectoryType, Directory::kDot);
    if (offset < Directory::kDotDot && !more)
        more = !writer.add("..", directory.parent->id, kDirectoryType, Directory::kDotDot);
    if (!more) {
        const std::uint64_t below = offset <= Directory::kDotDot ? UINT64_MAX : offset;
        directory.entries->list_below(below, [&](std::uint64_t cookie, const Directory::Item& item) {
            more = !writer.fits(item.name.size());
            if (more) return false;
            if (writer.plus()) {
                writer.add_plus(item.name, entry_of(*item.inode), cookie);
            } else {
                writer.add(item.name, item.inode->id, item.inode->type >> 12, cookie);
            }
            return true;
        });
    }
    // An empty reply would say that the listing is over.
    return more && writer.size() == 0 ? EINVAL : 0;
}

}  // namespace farhaul::backend::memory
