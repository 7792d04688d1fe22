// The memory: backend, a complete POSIX file system in memory that behaves as Linux' tmpfs does, down to its errno
// values and timestamps. Nothing outlives the process.
//
// It does no I/O and asks no clock: the time of day comes from the function it is given, so that it runs in virtual
// time too. Under a deterministic clock and one thread everything it answers (inode numbers, order of listings, times)
// is deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/time.hpp"
#include "fuse/file_system.hpp"

namespace farhaul::backend {

struct MemoryOptions {
    std::uint64_t size = std::uint64_t{1} << 30;  ///< bytes of file data (pages of 4 KiB in use count); then ENOSPC
    /// Inodes, and names beyond the first of each; then ENOSPC. Extended attributes count as well, an inode per KiB. 0:
    /// one per page of `size`, at least 1024.
    std::uint64_t max_inodes = 0;
    std::uint64_t max_locks = 1 << 20;  ///< record locks and flocks held at a time; then ENOLCK
    /// How long the client may answer stat() and resolve names by itself. With one client, as usual, any time is right;
    /// what a second one changes is seen after so long.
    Duration timeout = Duration::from_seconds(1);
    /// What the client has cached of a file survives open(). For file systems with one client.
    bool keep_cache = false;
    std::uint32_t uid = 0;       ///< of the root
    std::uint32_t gid = 0;       ///< of the root
    std::uint32_t mode = 01777;  ///< permissions of the root; the default is that of tmpfs
};

/// The time of day. Called from the threads that call the file system, several at once.
using WallClock = std::function<timespec()>;

std::unique_ptr<fuse::FileSystem> make_memory(const MemoryOptions& options, WallClock clock);

}  // namespace farhaul::backend
