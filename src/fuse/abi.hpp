// The FUSE ABI as this house speaks it: the system's <linux/fuse.h> (7.38 on Debian 12) and what newer kernels added,
// up to 7.45. The newer part is named without the FUSE_ prefix, in farhaul::fuse::abi, so that it does not collide with
// a newer system header. Source: the kernel's include/uapi/linux/fuse.h and Documentation/filesystems/fuse/.
#pragma once

#include <cstddef>
#include <cstdint>

#include <linux/fuse.h>
#include <sys/ioctl.h>

namespace farhaul::fuse::abi {

/// The version that we answer INIT with, unless the kernel is older.
inline constexpr std::uint32_t kMajor = 7;
inline constexpr std::uint32_t kMinor = 45;
/// Linux 4.20, the first with everything that this house builds on (max_pages, copy_file_range). virtio-fs came
/// with 7.31.
inline constexpr std::uint32_t kOldestMinor = 28;

enum Opcode : std::uint32_t {
    kTmpfile = 51,          // 7.37
    kStatx = 52,            // 7.39
    kCopyFileRange64 = 53,  // 7.45
    kOpcodes = 54,          ///< one past the highest that a session serves
};

// INIT flags: bits 0..31 in `flags`, bits 32..63 in `flags2`.
inline constexpr std::uint64_t kCreateSuppGroup = 1ULL << 34;
inline constexpr std::uint64_t kDirectIoAllowMmap = 1ULL << 36;
inline constexpr std::uint64_t kPassthrough = 1ULL << 37;
inline constexpr std::uint64_t kOverIoUring = 1ULL << 41;

/// Extension of a request with supplementary groups (7.38).
inline constexpr std::uint32_t kExtGroups = 32;
struct SuppGroups {
    std::uint32_t nr_groups;
    // followed by nr_groups gids
};

// Flags of an open reply.
inline constexpr std::uint32_t kOpenNoFlush = 1 << 5;
inline constexpr std::uint32_t kOpenParallelDirectWrites = 1 << 6;
inline constexpr std::uint32_t kOpenPassthrough = 1 << 7;

/// fuse_open_out since 7.40: what was padding carries the id of a backing file.
struct OpenOut {
    std::uint64_t fh;
    std::uint32_t open_flags;
    std::int32_t backing_id;
};
static_assert(sizeof(OpenOut) == sizeof(fuse_open_out));

/// fuse_init_out since 7.43.
struct InitOut {
    std::uint32_t major;
    std::uint32_t minor;
    std::uint32_t max_readahead;
    std::uint32_t flags;
    std::uint16_t max_background;
    std::uint16_t congestion_threshold;
    std::uint32_t max_write;
    std::uint32_t time_gran;
    std::uint16_t max_pages;
    std::uint16_t map_alignment;
    std::uint32_t flags2;
    std::uint32_t max_stack_depth;
    std::uint16_t request_timeout;
    std::uint16_t unused[11];
};
static_assert(sizeof(InitOut) == 64);

struct StatxIn {
    std::uint32_t getattr_flags;
    std::uint32_t reserved;
    std::uint64_t fh;
    std::uint32_t sx_flags;
    std::uint32_t sx_mask;
};
static_assert(sizeof(StatxIn) == 24);

struct StatxTime {
    std::int64_t tv_sec;
    std::uint32_t tv_nsec;
    std::int32_t reserved;
};

/// Laid out like struct statx of statx(2).
struct Statx {
    std::uint32_t mask;
    std::uint32_t blksize;
    std::uint64_t attributes;
    std::uint32_t nlink;
    std::uint32_t uid;
    std::uint32_t gid;
    std::uint16_t mode;
    std::uint16_t spare0;
    std::uint64_t ino;
    std::uint64_t size;
    std::uint64_t blocks;
    std::uint64_t attributes_mask;
    StatxTime atime;
    StatxTime btime;
    StatxTime ctime;
    StatxTime mtime;
    std::uint32_t rdev_major;
    std::uint32_t rdev_minor;
    std::uint32_t dev_major;
    std::uint32_t dev_minor;
    std::uint64_t spare2[14];
};
static_assert(sizeof(Statx) == 256);

struct StatxOut {
    std::uint64_t attr_valid;
    std::uint32_t attr_valid_nsec;
    std::uint32_t flags;
    std::uint64_t spare[2];
    Statx stat;
};
static_assert(sizeof(StatxOut) == 288);

struct CopyFileRangeOut {
    std::uint64_t bytes_copied;
};

// ioctls of /dev/fuse.
inline constexpr unsigned long kDevIocClone = _IOR(229, 0, std::uint32_t);
struct BackingMap {
    std::int32_t fd;
    std::uint32_t flags;
    std::uint64_t padding;
};
inline constexpr unsigned long kDevIocBackingOpen = _IOW(229, 1, BackingMap);
inline constexpr unsigned long kDevIocBackingClose = _IOW(229, 2, std::uint32_t);

// FUSE over io_uring (Linux 6.14): per entry one of these and a payload buffer, both registered as an array of two
// iovecs.
inline constexpr std::size_t kUringInOutSize = 128;
struct UringEntryInOut {
    std::uint64_t flags;
    std::uint64_t commit_id;     ///< names the request in the commit
    std::uint32_t payload_size;  ///< bytes in the payload buffer, either way
    std::uint32_t padding;
    std::uint64_t reserved;
};
struct UringRequestHeader {
    std::byte in_out[kUringInOutSize];  ///< fuse_in_header, then fuse_out_header
    std::byte op_in[kUringInOutSize];   ///< the operation's own struct, if its first argument is one
    UringEntryInOut entry;
};
static_assert(sizeof(UringRequestHeader) == 288);
enum UringCommand : std::uint32_t { kUringRegister = 1, kUringCommitAndFetch = 2 };
/// In the 80-byte command area of a 128-byte submission entry.
struct UringCommandRequest {
    std::uint64_t flags;
    std::uint64_t commit_id;
    std::uint16_t qid;  ///< one queue for every possible CPU
    std::uint8_t padding[6];
};
static_assert(sizeof(UringCommandRequest) == 24);

}  // namespace farhaul::fuse::abi
