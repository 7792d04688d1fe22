#include "fuse/counters.hpp"

#include <cmath>

namespace farhaul::fuse {

std::uint64_t LatencyHistogram::count() const {
    std::uint64_t total = 0;
    for (const auto& each : classes_) total += each.load(std::memory_order_relaxed);
    return total;
}

std::uint64_t LatencyHistogram::upper_bound_of(std::size_t index) {
    if (index < kSteps) return index;
    const std::size_t power = index / kSteps + 2;
    const std::uint64_t step = std::uint64_t{1} << (power - 3);
    return (kSteps + index % kSteps + 1) * step - 1;
}

std::uint64_t LatencyHistogram::quantile(double fraction) const {
    const std::uint64_t total = count();
    if (total == 0) return 0;
    const auto rank = static_cast<std::uint64_t>(std::ceil(fraction * static_cast<double>(total)));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < kClasses; ++i) {
        seen += classes_[i].load(std::memory_order_relaxed);
        if (seen >= rank && seen != 0) return upper_bound_of(i);
    }
    return upper_bound_of(kClasses - 1);
}

const char* operation_name(std::uint32_t opcode) {
    switch (opcode) {
        case FUSE_LOOKUP:
            return "lookup";
        case FUSE_FORGET:
            return "forget";
        case FUSE_GETATTR:
            return "getattr";
        case FUSE_SETATTR:
            return "setattr";
        case FUSE_READLINK:
            return "readlink";
        case FUSE_SYMLINK:
            return "symlink";
        case FUSE_MKNOD:
            return "mknod";
        case FUSE_MKDIR:
            return "mkdir";
        case FUSE_UNLINK:
            return "unlink";
        case FUSE_RMDIR:
            return "rmdir";
        case FUSE_RENAME:
            return "rename";
        case FUSE_LINK:
            return "link";
        case FUSE_OPEN:
            return "open";
        case FUSE_READ:
            return "read";
        case FUSE_WRITE:
            return "write";
        case FUSE_STATFS:
            return "statfs";
        case FUSE_RELEASE:
            return "release";
        case FUSE_FSYNC:
            return "fsync";
        case FUSE_SETXATTR:
            return "setxattr";
        case FUSE_GETXATTR:
            return "getxattr";
        case FUSE_LISTXATTR:
            return "listxattr";
        case FUSE_REMOVEXATTR:
            return "removexattr";
        case FUSE_FLUSH:
            return "flush";
        case FUSE_INIT:
            return "init";
        case FUSE_OPENDIR:
            return "opendir";
        case FUSE_READDIR:
            return "readdir";
        case FUSE_RELEASEDIR:
            return "releasedir";
        case FUSE_FSYNCDIR:
            return "fsyncdir";
        case FUSE_GETLK:
            return "getlk";
        case FUSE_SETLK:
            return "setlk";
        case FUSE_SETLKW:
            return "setlkw";
        case FUSE_ACCESS:
            return "access";
        case FUSE_CREATE:
            return "create";
        case FUSE_INTERRUPT:
            return "interrupt";
        case FUSE_BMAP:
            return "bmap";
        case FUSE_DESTROY:
            return "destroy";
        case FUSE_IOCTL:
            return "ioctl";
        case FUSE_POLL:
            return "poll";
        case FUSE_BATCH_FORGET:
            return "batch_forget";
        case FUSE_FALLOCATE:
            return "fallocate";
        case FUSE_READDIRPLUS:
            return "readdirplus";
        case FUSE_RENAME2:
            return "rename2";
        case FUSE_LSEEK:
            return "lseek";
        case FUSE_COPY_FILE_RANGE:
            return "copy_file_range";
        case FUSE_SYNCFS:
            return "syncfs";
        case abi::kTmpfile:
            return "tmpfile";
        case abi::kStatx:
            return "statx";
        case abi::kCopyFileRange64:
            return "copy_file_range_64";
        default:
            return nullptr;
    }
}

}  // namespace farhaul::fuse
