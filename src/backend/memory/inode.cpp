#include "backend/memory/inode.hpp"

namespace farhaul::backend::memory {

namespace {

constexpr std::int64_t kDay = 24 * 60 * 60;

bool not_after(const timespec& a, const timespec& b) {
    return a.tv_sec < b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec <= b.tv_nsec);
}

}  // namespace

fuse::Attributes Inode::attributes() const {
    fuse::Attributes attributes;
    attributes.ino = id;
    attributes.size = size;
    attributes.blocks = (data.pages() + target_pages) * (kPageSize / 512);
    attributes.atime = atime;
    attributes.mtime = mtime;
    attributes.ctime = ctime;
    attributes.btime = btime;
    attributes.has_btime = true;
    attributes.mode = type | permissions;
    attributes.nlink = nlink;
    attributes.uid = uid;
    attributes.gid = gid;
    attributes.rdev = rdev;
    attributes.blksize = kPageSize;
    return attributes;
}

bool Inode::atime_due(const timespec& now) const {
    return not_after(atime, mtime) || not_after(atime, ctime) || now.tv_sec - atime.tv_sec >= kDay;
}

std::uint64_t Inode::drop_capabilities() {
    const auto found = xattrs.find("security.capability");
    if (found == xattrs.end()) return 0;
    const std::uint64_t space = xattr_space(found->first, found->second.size());
    xattrs.erase(found);
    return space;
}

void Inode::drop_suid_sgid(const fuse::Caller& caller) {
    if (is_directory()) return;
    permissions &= ~std::uint32_t{S_ISUID};
    // Without execution by the group S_ISGID is a relic that ends only when strangers to the group write. Which other
    // groups the caller is in is not known here.
    const bool stranger = caller.uid != 0 && caller.gid != gid;
    if ((permissions & S_IXGRP) != 0 || stranger) permissions &= ~std::uint32_t{S_ISGID};
}

void Inode::chmod(std::uint32_t mode) {
    permissions = mode & 07777;
    if (access_acl) change_mode(*access_acl, permissions);
}

std::uint64_t xattr_space(std::string_view name, std::uint64_t size) {
    constexpr std::uint64_t kHead = 56;  // what the kernel counts for its own record
    return kHead + name.size() + 1 + size;
}

}  // namespace farhaul::backend::memory
