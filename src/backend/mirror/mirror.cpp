#include "backend/mirror/mirror.hpp"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>

#include "backend/mirror/file_handle.hpp"
#include "backend/mirror/mirror_file_system.hpp"
#include "base/log.hpp"

namespace farhaul::backend {

namespace mirror {

namespace {

constexpr Duration kForEver = Duration::from_seconds(86400);

/// Descriptors that this process may have from now on.
std::size_t raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
    if (limit.rlim_cur < limit.rlim_max) {
        const rlim_t before = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
    }
    return static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 24));
}

bool is_remote(int fd) {
    struct statfs statistics{};
    if (::fstatfs(fd, &statistics) != 0) return false;
    constexpr std::uint32_t kCifs = 0xff534d42, kSmb2 = 0xfe534d42, kCeph = 0x00c36400, kFuse = 0x65735546;
    const auto type = static_cast<std::uint32_t>(statistics.f_type);
    return type == NFS_SUPER_MAGIC || type == kCifs || type == kSmb2 || type == kCeph || type == kFuse;
}

}  // namespace

MirrorFileSystem::MirrorFileSystem(MirrorOptions options, const Abilities& abilities, Fd root, const struct statx& stat)
    : options_(std::move(options)),
      abilities_(abilities),
      attribute_timeout_(options_.attribute_timeout),
      entry_timeout_(options_.entry_timeout),
      negative_timeout_(options_.negative_timeout),
      store_(std::move(root), stat,
             {.use_handles = abilities.file_handles,
              .max_pinned = abilities.max_pinned,
              .announce_submounts = options_.announce_submounts}),
      waiters_([](void* self,
                  const LockWaiters::Waiter& waiter) { return static_cast<MirrorFileSystem*>(self)->try_lock(waiter); },
               this) {
    if (options_.cache == MirrorOptions::Cache::kNever)
        attribute_timeout_ = entry_timeout_ = negative_timeout_ = Duration{};
    if (options_.cache == MirrorOptions::Cache::kAlways) attribute_timeout_ = entry_timeout_ = kForEver;
}

MirrorFileSystem::~MirrorFileSystem() { waiters_.interrupt_all(); }

fuse::Wishes MirrorFileSystem::wishes() const {
    return {.posix_locks = options_.posix_locks,
            .flock = options_.flock,
            .posix_acl = abilities_.acl,
            .handle_kill_priv = true,
            .atomic_o_trunc = true,
            .readdirplus = true,
            .parallel_directory_operations = true,
            .export_support = false,
            .submounts = options_.announce_submounts,
            // What these promise of each write, or of none, only we can keep.
            .passthrough = options_.sync == MirrorOptions::Sync::kAsAsked && !options_.direct_io};
}

void MirrorFileSystem::init(const fuse::Connection& connection) {
    writeback_ = connection.has(FUSE_WRITEBACK_CACHE);
    dont_mask_ = connection.has(FUSE_DONT_MASK);
    backing_files_ = connection.backing_files;
}

void MirrorFileSystem::destroy() {
    // In this order: see setlk().
    files_.clear();
    waiters_.interrupt_all();
    store_.clear();
}

// ---- What all operations share.

fuse::Attributes MirrorFileSystem::attributes(const struct statx& stat, const Inode& inode) {
    fuse::Attributes out = fuse::attributes_from(stat);
    out.ino = inode.shown;
    out.submount = inode.submount;
    return out;
}

fuse::Entry MirrorFileSystem::entry(const struct statx& stat, const Inode& inode) {
    return {.node = inode.id,
            .generation = 0,  // a node id is used once
            .attributes = attributes(stat, inode),
            .attribute_timeout = attribute_timeout_,
            .entry_timeout = entry_timeout_};
}

int MirrorFileSystem::find(NodeId node, InodePtr& inode, PathFd& fd) {
    inode = store_.find(node);
    return inode == nullptr ? ESTALE : store_.path(*inode, fd);
}

int MirrorFileSystem::find_directory(NodeId node, InodePtr& inode, PathFd& fd) {
    const int error = find(node, inode, fd);
    if (error != 0) return error;
    return inode->is_directory() ? 0 : ENOTDIR;
}

CreationScope::Identity MirrorFileSystem::identity(const fuse::Request& request) const {
    const fuse::Caller& caller = request.caller();
    CreationScope::Identity identity{.uid = options_.squash_uid.value_or(caller.uid),
                                     .gid = options_.squash_gid.value_or(caller.gid),
                                     .group = std::nullopt};
    if (caller.has_supplementary_gid && !options_.squash_gid) identity.group = caller.supplementary_gid;
    return identity;
}

}  // namespace mirror

Result<std::unique_ptr<fuse::FileSystem>> make_mirror(MirrorOptions options) {
    using mirror::Fd;
    const std::string& directory = options.directory;
    if (directory.empty())
        return fail(ErrorCode::kInvalidArgument, "mirror: no directory is given: write mirror:/path/of/a/directory");
    if (options.attribute_timeout < Duration{} || options.entry_timeout < Duration{} ||
        options.negative_timeout < Duration{})
        return fail(ErrorCode::kInvalidArgument, "mirror:{}: a timeout is negative: 0 turns caching off", directory);
    if (!options.xattr_prefix.empty()) {
        if (!options.xattr)
            return fail(ErrorCode::kInvalidArgument, "mirror:{}: a prefix for attributes, and attributes are off",
                        directory);
        const auto dot = options.xattr_prefix.find('.');
        const std::string space = options.xattr_prefix.substr(0, dot);
        if (dot == std::string::npos || (space != "user" && space != "trusted" && space != "security") ||
            options.xattr_prefix.size() > 128 || options.xattr_prefix.find('\0') != std::string::npos)
            return fail(ErrorCode::kInvalidArgument,
                        "mirror:{}: the prefix '{}' makes no names of attributes: begin it with user., trusted. or "
                        "security., in at most 128 characters",
                        directory, options.xattr_prefix);
    }
    Fd root(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!root) {
        const int error = errno;
        if (error == ENOENT)
            return fail(ErrorCode::kInvalidArgument, "mirror:{}: there is no such directory: create it first",
                        directory);
        if (error == ENOTDIR)
            return fail(ErrorCode::kInvalidArgument, "mirror:{}: is not a directory: name the one above it", directory);
        return fail_errno(error, fmt::format("mirror:{}: cannot open the directory", directory));
    }
    struct statx stat;
    if (const int error = mirror::stat_fd(root.get(), stat); error != 0)
        return fail_errno(error, fmt::format("mirror:{}: cannot read the directory's attributes", directory));
    // Files are opened for data through /proc: by what was looked up, not by name again.
    if (!Fd(mirror::reopen(root.get(), O_RDONLY | O_DIRECTORY | O_CLOEXEC))) {
        const int error = errno;
        if (error == ENOENT)
            return fail(ErrorCode::kUnsupported, "mirror:{}: /proc is not there: mount it (mount -t proc proc /proc)",
                        directory);
        return fail_errno(error, fmt::format("mirror:{}: cannot read the directory", directory));
    }
    if (!Fd(mirror::open_path_beneath(root.get(), ".")) && errno == ENOSYS)
        return fail(ErrorCode::kUnsupported, "mirror:{}: needs openat2(2): Linux 5.6 or later", directory);

    mirror::Abilities abilities;
    abilities.privilege = mirror::Privilege::of_this_thread();
    if (!abilities.privilege.change_identity)
        log().warn("mirror:{}: no privilege to act as the callers: what they create belongs to this process' user",
                   directory);
    using Handles = MirrorOptions::FileHandles;
    abilities.file_handles = options.file_handles != Handles::kNever && mirror::can_use_file_handles(root.get());
    if (options.file_handles == Handles::kAlways && !abilities.file_handles)
        return fail(ErrorCode::kUnsupported,
                    "mirror:{}: file handles cannot be used: run with CAP_DAC_READ_SEARCH on a file system that has "
                    "them, or let the choice be automatic",
                    directory);
    const std::size_t limit = mirror::raise_descriptor_limit();
    abilities.max_pinned = options.file_handles == Handles::kAlways ? 0 : std::max<std::size_t>(limit / 2, 1);
    abilities.remote = mirror::is_remote(root.get());
    if (options.xattr && options.posix_acl && options.xattr_prefix.empty() && abilities.privilege.change_identity &&
        abilities.privilege.own_umask) {
        const mirror::FdPath path(root.get());
        abilities.acl = ::getxattr(path.c_str(), "system.posix_acl_access", nullptr, 0) >= 0 || errno == ENODATA;
    }
    return std::make_unique<mirror::MirrorFileSystem>(std::move(options), abilities, std::move(root), stat);
}

}  // namespace farhaul::backend
