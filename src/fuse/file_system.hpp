// What a backend implements. Override what the file system can do; what it does not override answers ENOSYS, which the
// client remembers where it has another way (no CREATE: MKNOD and OPEN; no FLUSH, no ACCESS: not asked again).
//
// Every call hands over a Request; the file system calls exactly one reply function on it, before it returns or later,
// on any thread (request.hpp). References and names passed along live until that reply. Calls come from several threads
// at once, unless the HAL was told to use one.
//
// Node ids and handles come from the client and may be forged: look them up, never cast them to pointers. An unknown
// node is answered ESTALE, an unknown handle EBADF.
//
// Lookup counts: each Entry that a reply carries gives the client one lookup of its node (the root has one for ever). A
// node lives while its count is above zero, even when its last name is gone; forget() takes counts back.
//
// The shape is that of libfuse's low-level interface, so that its documentation helps.
#pragma once

#include <cerrno>
#include <cstdint>
#include <span>

#include "fuse/request.hpp"
#include "fuse/types.hpp"

namespace farhaul::fuse {

/// What a file system wants of its client; what INIT then agrees on is min(this, the session's options, the client).
struct Wishes {
    bool posix_locks = false;  ///< getlk() and setlk() are served: record locks are seen by other clients
    bool flock = false;        ///< setlk() is served for flock() too
    bool posix_acl = false;    ///< xattrs system.posix_acl_* are served; creations get the raw mode and their umask
    bool handle_kill_priv = false;  ///< write(), setattr() and open() clear S_ISUID and S_ISGID when told to (V2)
    bool atomic_o_trunc = false;    ///< open() and create() handle O_TRUNC themselves
    bool readdirplus = true;
    bool parallel_directory_operations = true;
    bool export_support = false;  ///< lookup() of "." and ".." works on any node that was ever given out
    bool submounts = false;       ///< Attributes::submount is meant
    bool passthrough = false;     ///< open() and create() may reply with a backing_id
};

/// What INIT agreed on.
struct Connection {
    std::uint32_t minor = 0;                ///< of protocol 7
    std::uint64_t flags = 0;                ///< FUSE_* flags in force
    std::uint32_t max_write = 0;            ///< bytes of data in one WRITE
    std::uint32_t max_readahead = 0;        ///< bytes
    BackingFiles* backing_files = nullptr;  ///< if passthrough was agreed on; lives as long as the session
    bool has(std::uint64_t flag) const { return (flags & flag) != 0; }
};

struct RenameRequest {
    NodeId parent = 0;
    Name name{};
    NodeId new_parent = 0;
    Name new_name{};
    std::uint32_t flags = 0;  ///< RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT
};

/// Of MKNOD, MKDIR, SYMLINK, CREATE, TMPFILE.
struct CreateRequest {
    NodeId parent = 0;
    Name name{};  ///< empty for TMPFILE
    std::uint32_t mode =
        0;  ///< type and permissions; the umask is already applied unless Wishes::posix_acl was agreed on
    std::uint32_t umask = 0;
    std::uint32_t rdev = 0;   ///< MKNOD: see decode_device()
    std::uint32_t flags = 0;  ///< CREATE, TMPFILE: flags of open(2)
    bool kill_suid_sgid = false;
};

struct ReadRequest {
    NodeId node = 0;
    Handle handle = 0;
    std::uint64_t offset = 0;
    std::size_t size = 0;     ///< that of data_out()
    std::uint32_t flags = 0;  ///< of the open file
};

struct WriteRequest {
    NodeId node = 0;
    Handle handle = 0;
    std::uint64_t offset = 0;
    std::size_t size = 0;     ///< that of data_in()
    std::uint32_t flags = 0;  ///< of the open file
    bool from_cache = false;  ///< written back from the client's page cache: handle and caller are guesses
    bool kill_suid_sgid = false;
};

struct ReleaseRequest {
    NodeId node = 0;
    Handle handle = 0;
    std::uint32_t flags = 0;
    std::uint64_t lock_owner = 0;
    bool flock_unlock = false;  ///< a flock held by this open file ends
};

struct LockRequest {
    NodeId node = 0;
    Handle handle = 0;
    std::uint64_t owner = 0;
    FileLock lock;
    bool flock = false;  ///< flock(2), not fcntl(2)
    bool wait = false;   ///< SETLKW: reply when the lock is there; see interrupt()
};

struct CopyRequest {
    NodeId node_in = 0;
    Handle handle_in = 0;
    std::uint64_t offset_in = 0;
    NodeId node_out = 0;
    Handle handle_out = 0;
    std::uint64_t offset_out = 0;
    std::uint64_t size = 0;
    std::uint64_t flags = 0;
};

class FileSystem {
 public:
    FileSystem() = default;
    virtual ~FileSystem() = default;
    FileSystem(const FileSystem&) = delete;
    FileSystem& operator=(const FileSystem&) = delete;

    virtual Wishes wishes() const { return {}; }
    /// INIT is agreed. A client may say INIT again (a rebooted guest): destroy() comes between.
    virtual void init(const Connection&) {}
    /// The client is gone: all its lookups, open files and locks end, and who waits for a lock is answered. An honest
    /// client has no other request under way. A hostile one may, on other threads: each is answered still, and none
    /// waits for a lock once it and this have returned; what it opens meanwhile ends with the next client.
    virtual void destroy() {}

    // Each is followed by a reply; which one is said in request.hpp.
    virtual void lookup(Request& request, NodeId /*parent*/, Name /*name*/) { request.reply_error(ENOSYS); }
    /// No reply: takes back `count` lookups of `node`. Counts above what the client holds are the client's fault:
    /// ignore the rest.
    virtual void forget(NodeId /*node*/, std::uint64_t /*count*/) {}
    /// `handle`: the open file through which the client asks, or nullptr.
    virtual void getattr(Request& request, NodeId /*node*/, const Handle* /*handle*/) { request.reply_error(ENOSYS); }
    virtual void setattr(Request& request, NodeId /*node*/, const AttributeChange&) { request.reply_error(ENOSYS); }
    /// Reply: reply_bytes() with the target.
    virtual void readlink(Request& request, NodeId /*node*/) { request.reply_error(ENOSYS); }
    virtual void mknod(Request& request, const CreateRequest&) { request.reply_error(ENOSYS); }
    virtual void mkdir(Request& request, const CreateRequest&) { request.reply_error(ENOSYS); }
    virtual void symlink(Request& request, const CreateRequest&, Name /*target*/) { request.reply_error(ENOSYS); }
    virtual void unlink(Request& request, NodeId /*parent*/, Name /*name*/) { request.reply_error(ENOSYS); }
    virtual void rmdir(Request& request, NodeId /*parent*/, Name /*name*/) { request.reply_error(ENOSYS); }
    virtual void rename(Request& request, const RenameRequest&) { request.reply_error(ENOSYS); }
    virtual void link(Request& request, NodeId /*node*/, NodeId /*new_parent*/, Name /*new_name*/) {
        request.reply_error(EPERM);
    }

    /// `flags` of open(2), without O_CREAT and O_EXCL. `kill_suid_sgid`: with O_TRUNC, as in AttributeChange.
    virtual void open(Request& request, NodeId /*node*/, std::uint32_t /*flags*/, bool /*kill_suid_sgid*/) {
        request.reply_open({});
    }
    virtual void create(Request& request, const CreateRequest&) { request.reply_error(ENOSYS); }
    virtual void tmpfile(Request& request, const CreateRequest&) { request.reply_error(EOPNOTSUPP); }
    virtual void read(Request& request, const ReadRequest&) { request.reply_error(ENOSYS); }
    virtual void write(Request& request, const WriteRequest&) { request.reply_error(ENOSYS); }
    /// A descriptor was closed; errors of earlier writes may be reported here. The locks of `lock_owner` on the file
    /// end.
    virtual void flush(Request& request, NodeId /*node*/, Handle, std::uint64_t /*lock_owner*/) {
        request.reply_error(ENOSYS);
    }
    virtual void release(Request& request, const ReleaseRequest&) { request.reply_ok(); }
    virtual void fsync(Request& request, NodeId /*node*/, Handle, bool /*data_only*/) { request.reply_error(ENOSYS); }

    virtual void opendir(Request& request, NodeId /*node*/, std::uint32_t /*flags*/) { request.reply_open({}); }
    /// READDIR and READDIRPLUS: fill a DirectoryWriter, from the entry behind `offset` on (0: the first), and
    /// reply_directory(). An empty reply is the end. Entries that come or go meanwhile may or may not be seen; all
    /// others are seen once.
    virtual void readdir(Request& request, NodeId /*node*/, Handle, std::uint64_t /*offset*/) {
        request.reply_error(ENOSYS);
    }
    virtual void releasedir(Request& request, NodeId /*node*/, Handle) { request.reply_ok(); }
    virtual void fsyncdir(Request& request, NodeId /*node*/, Handle, bool /*data_only*/) {
        request.reply_error(ENOSYS);
    }

    virtual void statfs(Request& request, NodeId /*node*/) { request.reply_statfs({}); }
    virtual void access(Request& request, NodeId /*node*/, std::uint32_t /*mask*/) { request.reply_error(ENOSYS); }
    /// `value` lives until the reply. `flags`: XATTR_CREATE, XATTR_REPLACE. `kill_sgid`: setting this ACL ends S_ISGID.
    virtual void setxattr(Request& request, NodeId /*node*/, Name /*name*/, std::span<const std::byte> /*value*/,
                          std::uint32_t /*flags*/, bool /*kill_sgid*/) {
        request.reply_error(ENOSYS);
    }
    /// `size` 0: reply_xattr_size(). Otherwise reply_bytes() or reply_data().
    virtual void getxattr(Request& request, NodeId /*node*/, Name /*name*/, std::size_t /*size*/) {
        request.reply_error(ENOSYS);
    }
    /// As getxattr(); the names, each with its NUL, one behind the other.
    virtual void listxattr(Request& request, NodeId /*node*/, std::size_t /*size*/) { request.reply_error(ENOSYS); }
    virtual void removexattr(Request& request, NodeId /*node*/, Name /*name*/) { request.reply_error(ENOSYS); }

    virtual void getlk(Request& request, const LockRequest&) { request.reply_error(ENOSYS); }
    virtual void setlk(Request& request, const LockRequest&) { request.reply_error(ENOSYS); }
    /// The caller of the request `unique`, which waits for a lock, got a signal: if it waits here, reply EINTR to it
    /// and return true. May be called for requests that have ended, and twice.
    virtual bool interrupt(std::uint64_t /*unique*/) { return false; }

    /// `mode` of fallocate(2).
    virtual void fallocate(Request& request, NodeId /*node*/, Handle, std::uint32_t /*mode*/, std::uint64_t /*offset*/,
                           std::uint64_t /*length*/) {
        request.reply_error(ENOSYS);
    }
    /// `whence`: SEEK_DATA or SEEK_HOLE.
    virtual void lseek(Request& request, NodeId /*node*/, Handle, std::uint64_t /*offset*/, std::uint32_t /*whence*/) {
        request.reply_error(ENOSYS);
    }
    virtual void copy_file_range(Request& request, const CopyRequest&) { request.reply_error(ENOSYS); }
    virtual void syncfs(Request& request, NodeId /*node*/) { request.reply_error(ENOSYS); }
    virtual void ioctl(Request& request, NodeId /*node*/, Handle, std::uint32_t /*command*/) {
        request.reply_error(ENOTTY);
    }
    virtual void bmap(Request& request, NodeId /*node*/, std::uint64_t /*block*/, std::uint32_t /*block_size*/) {
        request.reply_error(ENOSYS);
    }
};

}  // namespace farhaul::fuse
