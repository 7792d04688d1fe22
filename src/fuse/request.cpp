#include "fuse/request.hpp"

#include <cerrno>
#include <cstring>

#include <sys/sysmacros.h>

#include "fuse/session.hpp"

namespace farhaul::fuse {

namespace {

void fill(fuse_attr& out, const Attributes& in) {
    out = {};
    out.ino = in.ino;
    out.size = in.size;
    out.blocks = in.blocks;
    out.atime = static_cast<std::uint64_t>(in.atime.tv_sec);
    out.mtime = static_cast<std::uint64_t>(in.mtime.tv_sec);
    out.ctime = static_cast<std::uint64_t>(in.ctime.tv_sec);
    out.atimensec = static_cast<std::uint32_t>(in.atime.tv_nsec);
    out.mtimensec = static_cast<std::uint32_t>(in.mtime.tv_nsec);
    out.ctimensec = static_cast<std::uint32_t>(in.ctime.tv_nsec);
    out.mode = in.mode;
    out.nlink = in.nlink;
    out.uid = in.uid;
    out.gid = in.gid;
    out.rdev = in.rdev;
    out.blksize = in.blksize;
    out.flags = in.submount ? FUSE_ATTR_SUBMOUNT : 0;
}

abi::StatxTime statx_time(const timespec& time) {
    return {.tv_sec = time.tv_sec, .tv_nsec = static_cast<std::uint32_t>(time.tv_nsec), .reserved = 0};
}

abi::StatxOut statx_reply(const Attributes& in) {
    abi::StatxOut out{};
    abi::Statx& stat = out.stat;
    stat.mask = STATX_BASIC_STATS | (in.has_btime ? STATX_BTIME : 0u);
    stat.blksize = in.blksize;
    stat.nlink = in.nlink;
    stat.uid = in.uid;
    stat.gid = in.gid;
    stat.mode = static_cast<std::uint16_t>(in.mode);
    stat.ino = in.ino;
    stat.size = in.size;
    stat.blocks = in.blocks;
    stat.atime = statx_time(in.atime);
    stat.mtime = statx_time(in.mtime);
    stat.ctime = statx_time(in.ctime);
    stat.btime = statx_time(in.btime);
    const dev_t device = decode_device(in.rdev);
    stat.rdev_major = major(device);
    stat.rdev_minor = minor(device);
    return out;
}

struct SplitTimeout {
    std::uint64_t seconds;
    std::uint32_t nanoseconds;
};

SplitTimeout split(Duration timeout) {
    if (timeout < Duration{}) return {0, 0};
    const auto nanoseconds = static_cast<std::uint64_t>(timeout.nanoseconds());
    return {nanoseconds / 1'000'000'000, static_cast<std::uint32_t>(nanoseconds % 1'000'000'000)};
}

fuse_entry_out entry_out(const Entry& entry) {
    fuse_entry_out out{};
    const auto entry_timeout = split(entry.entry_timeout);
    const auto attribute_timeout = split(entry.attribute_timeout);
    out.nodeid = entry.node;
    out.generation = entry.generation;
    out.entry_valid = entry_timeout.seconds;
    out.entry_valid_nsec = entry_timeout.nanoseconds;
    out.attr_valid = attribute_timeout.seconds;
    out.attr_valid_nsec = attribute_timeout.nanoseconds;
    if (entry.node != 0) fill(out.attr, entry.attributes);
    return out;
}

abi::OpenOut open_out(const OpenFile& file) {
    abi::OpenOut out{};
    out.fh = file.handle;
    if (file.direct_io) out.open_flags |= FOPEN_DIRECT_IO;
    if (file.keep_cache) out.open_flags |= FOPEN_KEEP_CACHE;
    if (file.cache_directory) out.open_flags |= FOPEN_CACHE_DIR;
    if (file.nonseekable) out.open_flags |= FOPEN_NONSEEKABLE;
    if (file.no_flush) out.open_flags |= abi::kOpenNoFlush;
    if (file.parallel_direct_writes) out.open_flags |= abi::kOpenParallelDirectWrites;
    if (file.backing_id > 0) {
        out.open_flags |= abi::kOpenPassthrough;
        out.backing_id = file.backing_id;
    }
    return out;
}

}  // namespace

// ---- Conversions of types.hpp.

std::uint32_t encode_device(dev_t device) {
    const std::uint32_t high = major(device);
    const std::uint32_t low = minor(device);
    return (low & 0xff) | (high << 8) | ((low & ~0xffu) << 12);
}

dev_t decode_device(std::uint32_t encoded) {
    return makedev((encoded & 0xfff00) >> 8, (encoded & 0xff) | ((encoded >> 12) & 0xfff00));
}

Attributes attributes_from(const struct stat& stat) {
    Attributes out;
    out.ino = stat.st_ino;
    out.size = static_cast<std::uint64_t>(stat.st_size);
    out.blocks = static_cast<std::uint64_t>(stat.st_blocks);
    out.atime = stat.st_atim;
    out.mtime = stat.st_mtim;
    out.ctime = stat.st_ctim;
    out.mode = stat.st_mode;
    out.nlink = static_cast<std::uint32_t>(stat.st_nlink);
    out.uid = stat.st_uid;
    out.gid = stat.st_gid;
    out.rdev = encode_device(stat.st_rdev);
    out.blksize = static_cast<std::uint32_t>(stat.st_blksize);
    return out;
}

Attributes attributes_from(const struct statx& stat) {
    const auto time = [](const statx_timestamp& from) { return timespec{from.tv_sec, from.tv_nsec}; };
    Attributes out;
    out.ino = stat.stx_ino;
    out.size = stat.stx_size;
    out.blocks = stat.stx_blocks;
    out.atime = time(stat.stx_atime);
    out.mtime = time(stat.stx_mtime);
    out.ctime = time(stat.stx_ctime);
    out.btime = time(stat.stx_btime);
    out.has_btime = (stat.stx_mask & STATX_BTIME) != 0;
    out.mode = stat.stx_mode;
    out.nlink = stat.stx_nlink;
    out.uid = stat.stx_uid;
    out.gid = stat.stx_gid;
    out.rdev = encode_device(makedev(stat.stx_rdev_major, stat.stx_rdev_minor));
    out.blksize = stat.stx_blksize;
    return out;
}

// ---- Replies.

bool Request::take_reply_header() {
    const std::size_t size = total_size(out_);
    if (size < sizeof(fuse_out_header)) {
        reply_header_ = nullptr;
        out_ = {};
        out_size_ = 0;
        return false;
    }
    while (out_.front().iov_len == 0) out_ = out_.subspan(1);
    if (out_.front().iov_len >= sizeof(fuse_out_header)) {
        reply_header_ = static_cast<std::byte*>(out_.front().iov_base);
        scattered_header_.clear();
    } else {
        reply_header_ = nullptr;
        scattered_header_.assign(out_.begin(), out_.end());
    }
    out_ = drop_front(out_, sizeof(fuse_out_header));
    out_size_ = size - sizeof(fuse_out_header);
    return true;
}

void Request::finish(int error_number, std::size_t payload) {
    const fuse_out_header header{
        .len = static_cast<std::uint32_t>(sizeof(fuse_out_header) + payload),
        .error = -error_number,
        .unique = header_.unique,
    };
    if (reply_header_ != nullptr) {
        std::memcpy(reply_header_, &header, sizeof(header));
    } else {
        ScatterWriter(scattered_header_).write(&header, sizeof(header));
    }
    if (counters_ != nullptr) {
        counters_->requests.fetch_add(1, std::memory_order_relaxed);
        if (error_number != 0) counters_->errors.fetch_add(1, std::memory_order_relaxed);
        if (header_.opcode == FUSE_READ && payload != 0)
            counters_->bytes_out.fetch_add(payload, std::memory_order_relaxed);
        if (session_->clock_ != nullptr) counters_->latency.record(session_->clock_() - started_ns_);
    }
    complete(header.len);
}

void Request::finish_with(const void* payload, std::size_t size) {
    // The session saw to the room before it called the file system.
    if (!ScatterWriter(out_).write(payload, size)) return reply_error(EINVAL);
    finish(0, size);
}

void Request::reply_error(int error_number) {
    // The kernel takes -511 to -1 (ERESTARTSYS and up are its own).
    if (error_number < 1 || error_number > 511) error_number = EIO;
    finish(error_number, 0);
}

void Request::reply_ok() { finish(0, 0); }

void Request::reply_entry(const Entry& entry) {
    const fuse_entry_out out = entry_out(entry);
    finish_with(&out, sizeof(out));
}

void Request::reply_attributes(const Attributes& attributes, Duration timeout) {
    const auto valid = split(timeout);
    if (header_.opcode == abi::kStatx) {
        abi::StatxOut out = statx_reply(attributes);
        out.attr_valid = valid.seconds;
        out.attr_valid_nsec = valid.nanoseconds;
        return finish_with(&out, sizeof(out));
    }
    fuse_attr_out out{};
    out.attr_valid = valid.seconds;
    out.attr_valid_nsec = valid.nanoseconds;
    fill(out.attr, attributes);
    finish_with(&out, sizeof(out));
}

void Request::reply_open(const OpenFile& file) {
    const abi::OpenOut out = open_out(file);
    finish_with(&out, sizeof(out));
}

void Request::reply_create(const Entry& entry, const OpenFile& file) {
    struct {
        fuse_entry_out entry;
        abi::OpenOut open;
    } out{entry_out(entry), open_out(file)};
    static_assert(sizeof(out) == sizeof(fuse_entry_out) + sizeof(abi::OpenOut));
    finish_with(&out, sizeof(out));
}

void Request::reply_data(std::size_t size) {
    if (size > out_size_) return reply_error(EIO);
    finish(0, size);
}

void Request::reply_bytes(std::span<const std::byte> bytes) {
    if (bytes.size() > out_size_) {
        if (header_.opcode == FUSE_GETXATTR || header_.opcode == FUSE_LISTXATTR) return reply_error(ERANGE);
        bytes = bytes.first(out_size_);
    }
    finish_with(bytes.data(), bytes.size());
}

void Request::reply_xattr_size(std::size_t size) {
    const fuse_getxattr_out out{.size = static_cast<std::uint32_t>(size), .padding = 0};
    finish_with(&out, sizeof(out));
}

void Request::reply_written(std::size_t size) {
    if (header_.opcode == FUSE_WRITE && counters_ != nullptr)
        counters_->bytes_in.fetch_add(size, std::memory_order_relaxed);
    if (header_.opcode == abi::kCopyFileRange64) {
        const abi::CopyFileRangeOut out{.bytes_copied = size};
        return finish_with(&out, sizeof(out));
    }
    const fuse_write_out out{.size = static_cast<std::uint32_t>(size), .padding = 0};
    finish_with(&out, sizeof(out));
}

void Request::reply_statfs(const FileSystemStatistics& statistics) {
    fuse_statfs_out out{};
    out.st.blocks = statistics.blocks;
    out.st.bfree = statistics.blocks_free;
    out.st.bavail = statistics.blocks_available;
    out.st.files = statistics.files;
    out.st.ffree = statistics.files_free;
    out.st.bsize = statistics.block_size;
    out.st.frsize = statistics.fragment_size;
    out.st.namelen = statistics.name_length;
    finish_with(&out, sizeof(out));
}

void Request::reply_lock(const FileLock& lock) {
    fuse_lk_out out{};
    out.lk = {.start = lock.start, .end = lock.end, .type = lock.type, .pid = lock.pid};
    finish_with(&out, sizeof(out));
}

void Request::reply_seek(std::uint64_t offset) {
    const fuse_lseek_out out{.offset = offset};
    finish_with(&out, sizeof(out));
}

void Request::reply_block(std::uint64_t block) {
    const fuse_bmap_out out{.block = block};
    finish_with(&out, sizeof(out));
}

void Request::reply_directory(const DirectoryWriter& directory) { finish(0, directory.size()); }

void Request::reply_none() {
    if (counters_ != nullptr) counters_->requests.fetch_add(1, std::memory_order_relaxed);
    complete(0);
}

// ---- Directories.

bool DirectoryWriter::fits(std::size_t name_length) const {
    const std::size_t head = plus_ ? FUSE_NAME_OFFSET_DIRENTPLUS : FUSE_NAME_OFFSET;
    return FUSE_DIRENT_ALIGN(head + name_length) <= writer_.room();
}

bool DirectoryWriter::write_dirent(std::string_view name, std::uint64_t ino, std::uint32_t type,
                                   std::uint64_t next_offset) {
    fuse_dirent head{};
    head.ino = ino;
    head.off = next_offset;
    head.namelen = static_cast<std::uint32_t>(name.size());
    head.type = type;
    return writer_.write(&head, FUSE_NAME_OFFSET) && writer_.write(name.data(), name.size());
}

bool DirectoryWriter::add(std::string_view name, std::uint64_t ino, std::uint32_t type, std::uint64_t next_offset) {
    if (!fits(name.size())) return false;
    // A node id of 0: the client takes the entry and holds no lookup.
    std::size_t used = FUSE_NAME_OFFSET + name.size();
    if (plus_) {
        writer_.write_zeros(sizeof(fuse_entry_out));
        used += sizeof(fuse_entry_out);
    }
    write_dirent(name, ino, type, next_offset);
    return writer_.write_zeros(FUSE_DIRENT_ALIGN(used) - used);
}

bool DirectoryWriter::add_plus(std::string_view name, const Entry& entry, std::uint64_t next_offset) {
    if (!plus_ || !fits(name.size())) return false;
    const fuse_entry_out out = entry_out(entry);
    writer_.write(&out, sizeof(out));
    write_dirent(name, entry.attributes.ino, (entry.attributes.mode & S_IFMT) >> 12, next_offset);
    const std::size_t used = FUSE_NAME_OFFSET_DIRENTPLUS + name.size();
    return writer_.write_zeros(FUSE_DIRENT_ALIGN(used) - used);
}

}  // namespace farhaul::fuse
