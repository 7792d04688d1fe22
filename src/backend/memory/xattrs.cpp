// Extended attributes: user., trusted. and security. as they are, system.posix_acl_* by what they mean.
#include <cerrno>

#include <linux/xattr.h>
#include <sys/stat.h>

#include "backend/memory/memory_file_system.hpp"

namespace farhaul::backend::memory {

namespace {

constexpr std::string_view kAccess = "system.posix_acl_access";
constexpr std::string_view kDefault = "system.posix_acl_default";
constexpr std::string_view kTrusted = "trusted.";

bool is_acl(std::string_view name) { return name == kAccess || name == kDefault; }

/// 0, or an errno: a name that no file system of this kind has.
int check(std::string_view name) {
    if (is_acl(name)) return 0;
    if (name.size() > XATTR_NAME_MAX) return ERANGE;
    for (const std::string_view prefix : {std::string_view("user."), kTrusted, std::string_view("security.")}) {
        if (name.starts_with(prefix)) return name.size() > prefix.size() ? 0 : EINVAL;
    }
    return EOPNOTSUPP;
}

void reply_value(Request& request, std::size_t size, std::span<const std::byte> value) {
    if (size == 0) {
        request.reply_xattr_size(value.size());
    } else {
        request.reply_bytes(value);
    }
}

}  // namespace

int MemoryFileSystem::set_acl(Inode& inode, std::string_view name, std::span<const std::byte> value, bool kill_sgid) {
    if (inode.type == S_IFLNK) return EOPNOTSUPP;
    auto parsed = parse_acl(value);
    if (!parsed) return parsed.error();
    const timespec now = tree_.now();
    const std::scoped_lock lock(inode.mutex);
    if (name == kDefault) {
        if (!inode.is_directory()) return parsed->empty() ? 0 : EACCES;
        inode.default_acl.reset();
        if (!parsed->empty()) inode.default_acl = std::move(*parsed);
    } else {
        inode.access_acl.reset();
        if (!parsed->empty()) {
            const AclMode mode = mode_of(*parsed);
            inode.permissions = (inode.permissions & ~0777u) | mode.permissions;
            if (!mode.complete) inode.access_acl = std::move(*parsed);
        }
        if (kill_sgid) inode.permissions &= ~std::uint32_t{S_ISGID};
    }
    inode.changed(now);
    return 0;
}

void MemoryFileSystem::setxattr(Request& request, NodeId node, Name name, std::span<const std::byte> value,
                                std::uint32_t flags, bool kill_sgid) {
    const auto found = tree_.find(node);
    if (!found) return request.reply_error(found.error());
    Inode& inode = **found;
    if (const int error = check(name); error != 0) return request.reply_error(error);
    if ((flags & ~std::uint32_t{XATTR_CREATE | XATTR_REPLACE}) != 0) return request.reply_error(EINVAL);
    if (value.size() > XATTR_SIZE_MAX) return request.reply_error(E2BIG);
    if (is_acl(name)) {
        const int error = set_acl(inode, name, value, kill_sgid);
        return error == 0 ? request.reply_ok() : request.reply_error(error);
    }
    std::vector<std::byte> copy(value.begin(), value.end());
    const std::uint64_t space = xattr_space(name, value.size());
    Budget& budget = tree_.inode_space();
    const timespec now = tree_.now();
    int error = 0;
    {
        const std::scoped_lock lock(inode.mutex);
        const auto old = inode.xattrs.find(name);
        if (inode.ended) {
            error = ESTALE;
        } else if (old != inode.xattrs.end() && (flags & XATTR_CREATE) != 0) {
            error = EEXIST;
        } else if (old == inode.xattrs.end() && (flags & XATTR_REPLACE) != 0) {
            error = ENODATA;
        } else if (!budget.take(space)) {
            error = ENOSPC;
        } else {
            if (old != inode.xattrs.end()) {
                budget.give_back(xattr_space(name, old->second.size()));
                old->second = std::move(copy);
            } else {
                inode.xattrs.emplace(name, std::move(copy));
            }
            inode.changed(now);
        }
    }
    if (error != 0) return request.reply_error(error);
    request.reply_ok();
}

void MemoryFileSystem::getxattr(Request& request, NodeId node, Name name, std::size_t size) {
    const auto found = tree_.find(node);
    if (!found) return request.reply_error(found.error());
    if (const int error = check(name); error != 0) return request.reply_error(error);
    std::vector<std::byte> value;
    bool exists = false;
    {
        const Inode& inode = **found;
        const std::shared_lock lock(inode.mutex);
        if (is_acl(name)) {
            const auto& acl = name == kAccess ? inode.access_acl : inode.default_acl;
            exists = acl.has_value();
            if (exists) value = format_acl(*acl);
        } else if (const auto it = inode.xattrs.find(name); it != inode.xattrs.end()) {
            exists = true;
            value = it->second;
        }
    }
    if (!exists) return request.reply_error(ENODATA);
    reply_value(request, size, value);
}

void MemoryFileSystem::listxattr(Request& request, NodeId node, std::size_t size) {
    const auto found = tree_.find(node);
    if (!found) return request.reply_error(found.error());
    std::string names;
    const auto add = [&](std::string_view name) { names.append(name).push_back('\0'); };
    {
        const Inode& inode = **found;
        const std::shared_lock lock(inode.mutex);
        if (inode.access_acl) add(kAccess);
        if (inode.default_acl) add(kDefault);
        for (const auto& [name, value] : inode.xattrs) {
            // Linux shows these to whoever has CAP_SYS_ADMIN; capabilities do not come with a request.
            if (name.starts_with(kTrusted) && request.caller().uid != 0) continue;
            add(name);
        }
    }
    reply_value(request, size, std::as_bytes(std::span(names)));
}

void MemoryFileSystem::removexattr(Request& request, NodeId node, Name name) {
    const auto found = tree_.find(node);
    if (!found) return request.reply_error(found.error());
    Inode& inode = **found;
    if (const int error = check(name); error != 0) return request.reply_error(error);
    const timespec now = tree_.now();
    bool existed = true;
    {
        const std::scoped_lock lock(inode.mutex);
        if (name == kAccess) {
            inode.access_acl.reset();  // without one there is nothing to complain about either, as on tmpfs
        } else if (name == kDefault) {
            inode.default_acl.reset();
        } else if (const auto it = inode.xattrs.find(name); it != inode.xattrs.end()) {
            tree_.inode_space().give_back(xattr_space(name, it->second.size()));
            inode.xattrs.erase(it);
        } else {
            existed = false;
        }
        if (existed) inode.changed(now);
    }
    if (!existed) return request.reply_error(ENODATA);
    request.reply_ok();
}

}  // namespace farhaul::backend::memory
