// Extended attributes, through /proc: the calls that take descriptors refuse those of O_PATH, and those that take paths
// would need a path.
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <sys/xattr.h>

#include "backend/mirror/mirror_file_system.hpp"

namespace farhaul::backend::mirror {

namespace {

constexpr std::size_t kLongestName = 255;

/// The name on the host: in `buffer` if there is a prefix. Empty: too long.
const char* host_name(const std::string& prefix, fuse::Name name, std::string& buffer) {
    if (prefix.empty()) return name.c_str();
    buffer = prefix;
    buffer.append(name);
    return buffer.size() > kLongestName ? nullptr : buffer.c_str();
}

}  // namespace

void MirrorFileSystem::setxattr(Request& request, NodeId node, Name name, std::span<const std::byte> value,
                                std::uint32_t flags, bool kill_sgid) {
    if (!options_.xattr) return request.reply_error(ENOSYS);
    std::string buffer;
    const char* host = host_name(options_.xattr_prefix, name, buffer);
    InodePtr inode;
    PathFd fd;
    int error = may_change();
    if (error == 0 && host == nullptr) error = ERANGE;
    if (error == 0) error = find(node, inode, fd);
    if (error == 0) {
        const FdPath path(fd.get());
        if (::setxattr(path.c_str(), host, value.data(), value.size(), static_cast<int>(flags)) != 0) {
            error = errno;
        } else if (kill_sgid && name == "system.posix_acl_access") {  // a default ACL has no say in the mode
            struct stat stat;
            if (::fstatat(fd.get(), "", &stat, AT_EMPTY_PATH) != 0 ||
                ((stat.st_mode & S_ISGID) != 0 && ::chmod(path.c_str(), stat.st_mode & 07777 & ~mode_t{S_ISGID}) != 0))
                error = errno;
        }
    }
    if (error != 0) return request.reply_error(error);
    request.reply_ok();
}

void MirrorFileSystem::getxattr(Request& request, NodeId node, Name name, std::size_t size) {
    if (!options_.xattr) return request.reply_error(ENOSYS);
    std::string buffer;
    const char* host = host_name(options_.xattr_prefix, name, buffer);
    InodePtr inode;
    PathFd fd;
    if (host == nullptr) return request.reply_error(ERANGE);
    if (const int error = find(node, inode, fd); error != 0) return request.reply_error(error);
    const FdPath path(fd.get());
    std::vector<std::byte> value(std::min<std::size_t>(size, XATTR_SIZE_MAX));
    const ssize_t found = ::getxattr(path.c_str(), host, value.data(), value.size());
    if (found < 0) return request.reply_error(errno);
    if (size == 0) return request.reply_xattr_size(static_cast<std::size_t>(found));
    request.reply_bytes(std::span(value).first(static_cast<std::size_t>(found)));
}

void MirrorFileSystem::listxattr(Request& request, NodeId node, std::size_t size) {
    if (!options_.xattr) return request.reply_error(ENOSYS);
    InodePtr inode;
    PathFd fd;
    if (const int error = find(node, inode, fd); error != 0) return request.reply_error(error);
    std::vector<char> names(XATTR_LIST_MAX);
    const ssize_t found = ::listxattr(FdPath(fd.get()).c_str(), names.data(), names.size());
    if (found < 0) return request.reply_error(errno);
    names.resize(static_cast<std::size_t>(found));
    const std::string& prefix = options_.xattr_prefix;
    if (!prefix.empty()) {
        std::vector<char> shown;
        for (std::size_t at = 0; at < names.size();) {
            const std::string_view name(names.data() + at);
            if (name.size() > prefix.size() && name.starts_with(prefix))
                shown.insert(shown.end(), name.begin() + static_cast<std::ptrdiff_t>(prefix.size()),
                             name.begin() + static_cast<std::ptrdiff_t>(name.size() + 1));
            at += name.size() + 1;
        }
        names = std::move(shown);
    }
    // Linux lists trusted.* to those only who may read them; we were asked by one of our own threads, which may.
    if (request.caller().uid != 0) {
        std::vector<char> shown;
        for (std::size_t at = 0; at < names.size();) {
            const std::string_view name(names.data() + at);
            const auto begin = names.begin() + static_cast<std::ptrdiff_t>(at);
            if (!name.starts_with("trusted."))
                shown.insert(shown.end(), begin, begin + static_cast<std::ptrdiff_t>(name.size() + 1));
            at += name.size() + 1;
        }
        names = std::move(shown);
    }
    if (size == 0) return request.reply_xattr_size(names.size());
    request.reply_bytes(std::as_bytes(std::span(names)));
}

void MirrorFileSystem::removexattr(Request& request, NodeId node, Name name) {
    if (!options_.xattr) return request.reply_error(ENOSYS);
    std::string buffer;
    const char* host = host_name(options_.xattr_prefix, name, buffer);
    InodePtr inode;
    PathFd fd;
    int error = may_change();
    if (error == 0 && host == nullptr) error = ERANGE;
    if (error == 0) error = find(node, inode, fd);
    if (error == 0 && ::removexattr(FdPath(fd.get()).c_str(), host) != 0) error = errno;
    if (error != 0) return request.reply_error(error);
    request.reply_ok();
}

}  // namespace farhaul::backend::mirror
