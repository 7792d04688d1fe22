// The words that a session and a file system exchange: nodes, attributes, names, callers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <sys/stat.h>

#include "base/time.hpp"

namespace farhaul::fuse {

/// What a file system calls an inode; chosen by it, never reused while the client holds a lookup of it.
using NodeId = std::uint64_t;
inline constexpr NodeId kRootNode = 1;

/// What a file system calls an open file or directory; any number, 0 included.
using Handle = std::uint64_t;

/// A name or a path that came from the client: NUL-terminated, no NUL inside.
/// Names of directory entries were checked by the session: 1 to 255 bytes, no '/', neither "." nor "..".
class Name : public std::string_view {
 public:
    constexpr Name() : std::string_view("", 0) {}
    /// `text` must be followed by a NUL, as literals and std::string are.
    constexpr explicit Name(std::string_view text) : std::string_view(text) {}
    const char* c_str() const { return data(); }
};

/// Who asks. Groups beyond `gid` are not known, apart from one that the client found to matter for a creation.
struct Caller {
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::uint32_t pid = 0;
    /// The caller is a member of the parent directory's group and that group is this one (FUSE_CREATE_SUPP_GROUP); only
    /// with operations that create something.
    std::uint32_t supplementary_gid = 0;
    bool has_supplementary_gid = false;
};

struct Attributes {
    std::uint64_t ino = 0;  ///< st_ino that applications see
    std::uint64_t size = 0;
    std::uint64_t blocks = 0;  ///< of 512 bytes
    timespec atime{};
    timespec mtime{};
    timespec ctime{};
    timespec btime{};  ///< time of birth; only statx shows it
    bool has_btime = false;
    std::uint32_t mode = 0;  ///< type and permissions, as st_mode
    std::uint32_t nlink = 0;
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::uint32_t rdev = 0;  ///< as the kernel's new_encode_dev: see encode_device()
    std::uint32_t blksize = 4096;
    bool submount = false;  ///< the root of another file system: the client shows another st_dev (FUSE_SUBMOUNTS)
};

/// The ABI's 32-bit form of a device number (the kernel's new_encode_dev), from st_rdev's form, and back.
std::uint32_t encode_device(dev_t device);
dev_t decode_device(std::uint32_t encoded);

Attributes attributes_from(const struct stat& stat);
Attributes attributes_from(const struct statx& stat);

/// A directory entry that was looked up: the client now holds one lookup of `node`, until FORGET.
struct Entry {
    NodeId node = 0;  ///< 0: there is no such name, and the client may remember that for `entry_timeout`
    std::uint64_t generation = 0;
    Attributes attributes;
    Duration attribute_timeout{};  ///< how long the client may answer stat() by itself
    Duration entry_timeout{};      ///< how long the client may resolve the name by itself
};

/// Of an open reply.
struct OpenFile {
    Handle handle = 0;
    bool direct_io = false;        ///< bypass the client's page cache
    bool keep_cache = false;       ///< what the client has cached of this file is still good
    bool cache_directory = false;  ///< the client may cache the listing
    bool nonseekable = false;
    bool no_flush = false;                ///< no FLUSH on close
    bool parallel_direct_writes = false;  ///< direct writes of one file need no order among each other
    /// Of BackingFiles: the client reads, writes and maps that file by itself (with direct_io: only maps it). 0: none.
    std::int32_t backing_id = 0;
};

/// Files of this host that the client may read and write without asking (FUSE_PASSTHROUGH): offered by a HAL whose
/// client is this host's kernel. All opens of one inode at a time must name the same id, be direct_io, or name none.
class BackingFiles {
 public:
    virtual ~BackingFiles() = default;
    /// The id of the regular file that `fd` (which may be O_PATH) stands for, above 0; or a negative errno. The client
    /// uses it with the credentials that the calling thread has now.
    virtual std::int32_t open(int fd) = 0;
    /// Files that the client has open with it stay open.
    virtual void close(std::int32_t id) = 0;
};

/// What SETATTR changes. A member counts only if its flag is set.
struct AttributeChange {
    bool set_mode = false, set_uid = false, set_gid = false, set_size = false;
    bool set_atime = false, set_mtime = false, set_ctime = false;
    bool atime_now = false, mtime_now = false;  ///< with set_atime, set_mtime: the time is now, not the member
    bool kill_suid_sgid = false;  ///< a chown or truncate by someone without the privilege to keep S_ISUID and S_ISGID
    bool has_handle = false;
    std::uint32_t mode = 0, uid = 0, gid = 0;
    std::uint64_t size = 0;
    timespec atime{}, mtime{}, ctime{};
    Handle handle = 0;
};

/// A POSIX record lock or a whole-file flock.
struct FileLock {
    std::uint64_t start = 0;
    std::uint64_t end = 0;   ///< inclusive; INT64_MAX: to the end of the file
    std::uint32_t type = 0;  ///< F_RDLCK, F_WRLCK or F_UNLCK
    std::uint32_t pid = 0;
};

struct FileSystemStatistics {
    std::uint64_t blocks = 0, blocks_free = 0, blocks_available = 0;
    std::uint64_t files = 0, files_free = 0;
    std::uint32_t block_size = 4096;
    std::uint32_t fragment_size = 4096;
    std::uint32_t name_length = 255;
};

}  // namespace farhaul::fuse
