// rename(2) with its flags. The client's kernel has checked most of this already, against names that may be out of
// date.
#include <cerrno>

#include <linux/fs.h>

#include "backend/memory/tree.hpp"

namespace farhaul::backend::memory {

namespace {

/// Is `directory` the inode itself or below it?
bool is_within(const Inode& directory, const Inode& inode) {
    for (const Inode* step = &directory;; step = step->parent) {
        if (step == &inode) return true;
        if (step->parent == step || step->parent == nullptr) return false;
    }
}

}  // namespace

int Tree::check_rename(const Inode& from, const Inode& source, const Inode& to, const Inode* target,
                       std::uint32_t flags) const {
    const bool exchange = (flags & RENAME_EXCHANGE) != 0;
    if (target != nullptr && (flags & RENAME_NOREPLACE) != 0) return EEXIST;
    if (target == nullptr && exchange) return ENOENT;
    if (source.is_directory() && is_within(to, source)) return EINVAL;
    if (target != nullptr && target->is_directory() && is_within(from, *target)) return exchange ? EINVAL : ENOTEMPTY;
    if (to.parent == nullptr) return ENOENT;  // removed
    if (target == nullptr || target == &source || exchange) return 0;
    if (source.is_directory() && !target->is_directory()) return ENOTDIR;
    if (!source.is_directory() && target->is_directory()) return EISDIR;
    if (target->is_directory() && !target->entries->empty()) return ENOTEMPTY;
    return 0;
}

void Tree::exchange(Inode& from, Inode& source, std::string_view name, Inode& to, Inode& target,
                    std::string_view new_name) {
    const timespec time = now();
    from.entries->replace(name, target);
    to.entries->replace(new_name, source);
    if (source.is_directory()) source.parent = &to;
    if (target.is_directory()) target.parent = &from;
    const int moved = (source.is_directory() ? 1 : 0) - (target.is_directory() ? 1 : 0);
    if (&from == &to) {
        update_directory(from, time, 0);
    } else {
        update_directory(from, time, -moved);
        update_directory(to, time, moved);
    }
    for (Inode* inode : {&source, &target}) {
        const std::scoped_lock lock(inode->mutex);
        inode->changed(time);
    }
}

int Tree::rename(const Caller& caller, const fuse::RenameRequest& rename) {
    constexpr std::uint32_t kKnown = RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT;
    if ((rename.flags & ~kKnown) != 0) return EINVAL;
    if ((rename.flags & RENAME_EXCHANGE) != 0 && (rename.flags & ~RENAME_EXCHANGE) != 0) return EINVAL;
    if (rename.new_name.size() > kLongestName) return ENAMETOOLONG;

    Ended ended;
    const std::scoped_lock lock(mutex_);
    const auto from_found = find_directory(rename.parent);
    if (!from_found) return from_found.error();
    const auto to_found = find_directory(rename.new_parent);
    if (!to_found) return to_found.error();
    Inode& from = **from_found;
    Inode& to = **to_found;
    Inode* source = from.entries->find(rename.name);
    if (source == nullptr) return ENOENT;
    Inode* target = to.entries->find(rename.new_name);
    if (const int error = check_rename(from, *source, to, target, rename.flags); error != 0) return error;
    if (target == source) return 0;  // two names of one inode: both stay
    if ((rename.flags & RENAME_EXCHANGE) != 0) {
        exchange(from, *source, rename.name, to, *target, rename.new_name);
        return 0;
    }

    const timespec time = now();
    Inode* whiteout = nullptr;
    if ((rename.flags & RENAME_WHITEOUT) != 0) {
        const auto made = new_inode(caller, from, {.mode = S_IFCHR, .rdev = 0}, {}, time);
        if (!made) return made.error();
        whiteout = *made;
        whiteout->nlink = 1;
    }
    if (whiteout != nullptr) {
        from.entries->replace(rename.name, *whiteout);
    } else if (target != nullptr || &from != &to) {
        from.entries->remove(rename.name);
    }
    if (target != nullptr) {
        to.entries->replace(rename.new_name, *source);
    } else if (whiteout != nullptr || &from != &to) {
        to.entries->add(rename.new_name, *source);
    } else {
        from.entries->rename(rename.name, rename.new_name);
    }

    const bool moves_directory = source->is_directory();
    if (moves_directory) source->parent = &to;
    if (&from == &to) {
        update_directory(from, time, moves_directory && target != nullptr ? -1 : 0);
    } else {
        update_directory(from, time, moves_directory ? -1 : 0);
        update_directory(to, time, moves_directory && target == nullptr ? 1 : 0);
    }
    {
        const std::scoped_lock source_lock(source->mutex);
        source->changed(time);
    }
    if (target != nullptr) drop_name(*target, time, ended);
    return 0;
}

}  // namespace farhaul::backend::memory
