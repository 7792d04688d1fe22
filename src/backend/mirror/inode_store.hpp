// The inodes that the client knows.
//
// An inode is found by its node id, which is never used twice, or by (st_dev, st_ino, mount). It is kept in one of
// three ways:
//   pinned    by an O_PATH descriptor; while it is open the host does not use the inode number again
//   handle    by a file handle of the host (name_to_handle_at), which tells inodes apart that had the same number
//   place     by the directory and the name where it was last seen, checked by number and time of birth on each use; or
//             by an open file of the client
// New inodes are pinned until half of the process' descriptors are in use, then kept by handle, or by place where
// handles are not to be had. Nothing is evicted: the client forgets.
//
// Sharded by (st_dev, st_ino, mount); the shard's number is the low bits of the node id, so both ways take one short
// lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>

#include "backend/mirror/fd.hpp"
#include "fuse/types.hpp"

namespace farhaul::backend::mirror {

class InodeLocks;
class InodeStore;

/// What open_by_handle_at() needs of a mount. Lives while an inode needs it, so that the host can unmount afterwards.
struct Mount {
    Fd fd;
};

struct InodeKey {
    std::uint64_t dev = 0;
    std::uint64_t ino = 0;
    std::uint64_t mount = 0;
    bool operator==(const InodeKey&) const = default;
};
struct InodeKeyHash {
    std::size_t operator()(const InodeKey& key) const {
        std::uint64_t h = key.ino * 0x9e3779b97f4a7c15u ^ (key.dev + key.mount * 0xff51afd7ed558ccdu);
        h ^= h >> 32;
        h *= 0xd6e8feb86659fd93u;
        return h ^ (h >> 29);
    }
};

class Inode {
 public:
    Inode();
    ~Inode();
    fuse::NodeId id = 0;
    InodeKey key;
    std::uint32_t type = 0;   ///< S_IFMT bits
    std::uint64_t shown = 0;  ///< st_ino for the client
    bool submount = false;
    statx_timestamp birth{};
    bool is_directory() const { return type == S_IFDIR; }
    bool is_regular() const { return type == S_IFREG; }

    std::mutex mutex;  // of what follows
    // What a file looked like when it was last opened: what the client has cached of it is good while that holds.
    statx_timestamp opened_ctime{};
    std::uint64_t opened_size = 0;
    std::unique_ptr<InodeLocks> locks;
    // The client's opens of it, with a backing file and with the client's page cache: never both at a time.
    std::uint32_t passed_opens = 0;
    std::uint32_t cached_opens = 0;
    std::int32_t backing_id = 0;
    std::atomic<bool> has_locks{false};

 private:
    friend class InodeStore;
    std::atomic<int> fd_{-1};  // O_PATH; set before others see it
    std::string handle_;       // type and bytes, see file_handle.hpp
    std::shared_ptr<Mount> mount_;
    std::shared_ptr<Inode> parent_;  // the place; under mutex
    std::string name_;
    struct Use {
        std::weak_ptr<const void> file;
        int fd;
    };
    std::vector<Use> uses_;      // of an inode that is kept by place; under mutex
    std::uint64_t lookups_ = 0;  // under the shard's lock
    InodeStore* counted_in_ = nullptr;
};
using InodePtr = std::shared_ptr<Inode>;

/// Inode numbers for the client, different for different (device, inode): the device's index in the top 16 bits and the
/// host's number below. Numbers that use these bits themselves are looked up in a table, which keeps them as long as it
/// lives.
class InodeNumbers {
 public:
    std::uint64_t shown(std::uint64_t dev, std::uint64_t ino);

 private:
    static constexpr unsigned kIndexShift = 48;
    static constexpr std::uint64_t kTableIndex = 0xffff;
    std::shared_mutex mutex_;
    std::unordered_map<std::uint64_t, std::uint64_t> devices_;
    std::unordered_map<InodeKey, std::uint64_t, InodeKeyHash> table_;
};

struct InodeStoreOptions {
    bool use_handles = false;    ///< where the kernel allows
    std::size_t max_pinned = 0;  ///< 0: none is pinned if it can be kept by handle
    bool announce_submounts = false;
};

class InodeStore {
 public:
    using Options = InodeStoreOptions;
    /// `root`: O_PATH.
    InodeStore(Fd root, const struct statx& stat, Options options);
    ~InodeStore();

    const InodePtr& root() const { return root_; }
    /// nullptr: the client does not know of it.
    InodePtr find(fuse::NodeId id);
    /// An O_PATH descriptor of the inode, for as long as both live. 0 or an errno: ESTALE if the inode is gone.
    int path(Inode& inode, PathFd& to);
    /// `file` has the inode open as `fd`: while it lives, path() finds the inode, whatever happens to its names.
    void opened(Inode& inode, std::shared_ptr<const void> file, int fd);

    /// Resolves a name in `directory`, of which `directory_fd` is a descriptor; the client gets one lookup of it. 0 or
    /// an errno.
    int look_up(const InodePtr& directory, int directory_fd, const char* name, InodePtr& inode, struct statx& stat);
    /// The inode behind an O_PATH descriptor, with one lookup more.
    int enter(Fd fd, const InodePtr& directory, const char* name, InodePtr& inode, struct statx& stat);
    /// The same, with its attributes.
    void enter_known(Fd fd, const InodePtr& directory, const char* name, InodePtr& inode, const struct statx& stat);
    void add_lookup(Inode& inode);
    void forget(fuse::NodeId id, std::uint64_t count);
    /// The client is gone: forgets all but the root.
    void clear();
    /// The inode that was found at `name` is there now; only of interest for inodes kept by place.
    void moved(const InodePtr& directory, int directory_fd, const char* name);
    /// `name` is about to be removed or replaced. An inode that goes with it, but that the client may still have open
    /// in a way that it tells nobody of (a working directory, O_PATH, a FIFO), gets a descriptor: there is no other way
    /// back to it.
    void losing(int directory_fd, const char* name);

    std::uint64_t shown(std::uint64_t dev, std::uint64_t ino) { return numbers_.shown(dev, ino); }
    std::size_t pinned() const { return pinned_.load(std::memory_order_relaxed); }
    std::size_t known();

 private:
    friend class Inode;
    static constexpr std::size_t kShards = 64;
    struct alignas(64) Shard {
        std::mutex mutex;
        std::unordered_map<InodeKey, InodePtr, InodeKeyHash> by_key;
        std::unordered_map<fuse::NodeId, InodePtr> by_id;
        std::uint64_t next = 1;
    };
    static std::size_t shard_of(const InodeKey& key) { return InodeKeyHash()(key) % kShards; }

    bool is_same(Inode& known, const std::string& handle, const struct statx& stat) const;
    bool by_place(const Inode& inode) const {
        return inode.fd_.load(std::memory_order_acquire) < 0 && inode.handle_.empty();
    }
    std::shared_ptr<Mount> mount_of(std::uint64_t id, int fd, std::uint32_t type);
    int open_by_handle(const Inode& inode, Fd& to) const;
    int open_by_place(Inode& inode, Fd& to);
    void set_place(Inode& inode, const InodePtr& directory, const char* name);

    const Options options_;
    InodePtr root_;
    InodeNumbers numbers_;
    std::atomic<std::size_t> pinned_{0};
    std::atomic<bool> some_unpinned_{false};  // was there ever an inode without a descriptor?
    std::mutex mounts_mutex_;
    std::unordered_map<std::uint64_t, std::weak_ptr<Mount>> mounts_;
    std::array<Shard, kShards> shards_;
};

inline InodeKey key_of(const struct statx& stat) {
    const std::uint64_t dev = std::uint64_t{stat.stx_dev_major} << 32 | stat.stx_dev_minor;
    return {dev, stat.stx_ino, (stat.stx_mask & STATX_MNT_ID) != 0 ? stat.stx_mnt_id : 0};
}

inline constexpr unsigned kStatMask = STATX_BASIC_STATS | STATX_BTIME | STATX_MNT_ID;
/// statx(2) of what a descriptor stands for. 0 or an errno.
int stat_fd(int fd, struct statx& stat);
/// O_PATH of one name, itself if it is a symlink; never leaves `directory`. -1 and errno.
int open_path_beneath(int directory, const char* name);

}  // namespace farhaul::backend::mirror
