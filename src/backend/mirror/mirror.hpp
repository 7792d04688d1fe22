// The mirror: backend: a directory of this host, served as it is.
//
// Data go by io_uring (or plain system calls) straight between the files and the request's pages. Names are resolved
// one component at a time, relative to handles of directories, so that nothing climbs out of the directory; symlinks
// are the client's to resolve; device nodes, FIFOs and sockets of this host are shown and never opened.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "base/time.hpp"
#include "fuse/file_system.hpp"

namespace farhaul::backend {

struct MirrorOptions {
    /// auto: the client caches attributes and names for the timeouts below, and data as long as a file has not changed
    /// between two opens. always: it caches everything (for directories that nobody else changes). never: nothing is
    /// cached.
    enum class Cache { kAuto, kAlways, kNever };
    /// as_asked: fsync(2) and O_SYNC do what they say. always: each write is on stable storage before it is answered.
    /// never: fsync(2), O_SYNC and sync(2) are answered without doing anything. UNSAFE: what was acknowledged is lost
    /// with a crash of this host; for scratch data only.
    enum class Sync { kAsAsked, kAlways, kNever };
    /// How inodes that the client knows are kept. automatic: an open descriptor each, while there are fewer than half
    /// of the process' limit (RLIMIT_NOFILE); then a file handle (needs CAP_DAC_READ_SEARCH and a file system that has
    /// them), else the place where it was last seen. always: file handles only, so that inodes of a directory that is
    /// unmounted on the host cost no descriptor. never: no file handles.
    enum class FileHandles { kAutomatic, kAlways, kNever };

    std::string directory{};
    Cache cache = Cache::kAuto;
    Duration attribute_timeout = Duration::from_seconds(1);  ///< cache auto; at least 0
    Duration entry_timeout = Duration::from_seconds(1);      ///< cache auto; at least 0
    Duration negative_timeout{};  ///< how long the client may believe that a name does not exist; cache auto and always
    bool direct_io = false;       ///< past this host's page cache, where size and alignment of a request allow it
    bool read_only = false;       ///< everything that would change something is answered EROFS
    /// Whoever asks, what is created belongs to these. Owners are shown as they are.
    std::optional<std::uint32_t> squash_uid{};
    std::optional<std::uint32_t> squash_gid{};
    Sync sync = Sync::kAsAsked;
    bool xattr = true;  ///< extended attributes are served
    /// Put before the name of each attribute on this host; only attributes with it are shown, without it. As
    /// "user.guest.": the client's "security.x" is then "user.guest.security.x" here. Without ACLs, which are
    /// attributes with fixed names.
    std::string xattr_prefix{};
    FileHandles file_handles = FileHandles::kAutomatic;
    bool announce_submounts = false;  ///< mount points below the directory get a st_dev of their own in the client
    bool posix_locks = true;          ///< fcntl(2) locks are locks on the host's file too
    bool flock = true;                ///< the same for flock(2)
    bool posix_acl = true;            ///< where the host's file system has them, and `xattr`
};

/// Opens the directory. Raises the process' soft limit of descriptors to its hard limit. Threads that serve requests
/// get a umask (and working directory) of their own: unshare(CLONE_FS). Fails with kInvalidArgument (not a directory,
/// senseless options), kIo (cannot be opened) or kUnsupported (no /proc).
Result<std::unique_ptr<fuse::FileSystem>> make_mirror(MirrorOptions options);

}  // namespace farhaul::backend
