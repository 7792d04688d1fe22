// Data: straight between files and the request's pages.
//
// What is in the page cache costs one system call: preadv2(RWF_NOWAIT), and pwritev2() likewise. What is not goes to
// the thread's io_uring, so that no thread waits for a disk. Where a local file system has no RWF_NOWAIT (ext4's
// buffered writes, tmpfs), it is done at once: io_uring would hand it to a worker thread, which costs twice as much as
// the copy. Short transfers are continued; a reply is short at the end of the file only.
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/uio.h>
#include <unistd.h>

#include "backend/mirror/mirror_file_system.hpp"
#include "io/ring.hpp"

namespace farhaul::backend::mirror {

namespace {

constexpr std::size_t kMostPieces = 1024;  // UIO_MAXIOV
constexpr std::uint64_t kDirectUnit = 4096;

/// One READ, WRITE or FSYNC under way; in the request's scratch.
struct Transfer : io::Operation {
    enum class Kind : std::uint8_t { kRead, kWrite, kSync, kDataSync };
    fuse::Request* request;
    const iovec* pieces;
    std::size_t count;
    std::uint64_t offset;
    std::size_t moved;
    std::size_t inside;  // of the first piece, moved already
    iovec rest;
    int fd;
    int plain_fd;
    int flags;
    Kind kind;
    bool tried;  // the ring said EAGAIN
    alignas(FilePtr) std::byte file_memory[sizeof(FilePtr)];

    FilePtr& file() { return *std::launder(reinterpret_cast<FilePtr*>(file_memory)); }
    std::span<const iovec> next() {
        while (count != 0 && pieces->iov_len == inside) {
            ++pieces;
            --count;
            inside = 0;
        }
        if (inside == 0) return {pieces, std::min(count, kMostPieces)};
        rest = {static_cast<std::byte*>(pieces->iov_base) + inside, pieces->iov_len - inside};
        return {&rest, 1};
    }
    void advance(std::size_t bytes) {
        moved += bytes;
        offset += bytes;
        while (bytes != 0) {
            const std::size_t left = pieces->iov_len - inside;
            if (bytes < left) {
                inside += bytes;
                return;
            }
            bytes -= left;
            ++pieces;
            --count;
            inside = 0;
        }
    }
    /// Replies. Nothing of the transfer may be touched afterwards.
    void end(int error) {
        fuse::Request& to = *request;
        const Kind what = kind;
        const std::size_t size = moved;
        file().~FilePtr();
        // A short read would mean the end of the file, a short write is what it is.
        if (error != 0 && (what != Kind::kWrite || size == 0)) return to.reply_error(error);
        switch (what) {
            case Kind::kRead:
                return to.reply_data(size);
            case Kind::kWrite:
                return to.reply_written(size);
            case Kind::kSync:
            case Kind::kDataSync:
                return to.reply_ok();
        }
    }
};
static_assert(sizeof(Transfer) <= fuse::Request::kScratchSize);

Transfer& start(fuse::Request& request, Transfer::Kind kind, FilePtr file, std::span<const iovec> list,
                std::uint64_t offset, int flags) {
    Transfer& transfer = request.make_scratch<Transfer>();
    transfer.request = &request;
    transfer.pieces = list.data();
    transfer.count = list.size();
    transfer.offset = offset;
    transfer.moved = transfer.inside = 0;
    transfer.fd = transfer.plain_fd = file->fd.get();
    transfer.flags = flags;
    transfer.kind = kind;
    transfer.tried = false;
    new (transfer.file_memory) FilePtr(std::move(file));
    return transfer;
}

bool aligned_for_direct(std::span<const iovec> list, std::uint64_t offset) {
    if (list.empty() || offset % kDirectUnit != 0) return false;
    return std::ranges::all_of(list, [](const iovec& piece) {
        return (reinterpret_cast<std::uintptr_t>(piece.iov_base) | piece.iov_len) % kDirectUnit == 0;
    });
}

/// At once, with `extra` of RWF_*. Until all is moved or the file ends: 0; or an errno.
int move_now(Transfer& transfer, int extra) {
    for (;;) {
        const auto list = transfer.next();
        if (list.empty()) return 0;
        const int count = static_cast<int>(list.size());
        const auto offset = static_cast<off_t>(transfer.offset);
        const int flags = transfer.flags | extra;
        const ssize_t moved = transfer.kind == Transfer::Kind::kRead
                                  ? ::preadv2(transfer.fd, list.data(), count, offset, flags)
                                  : ::pwritev2(transfer.fd, list.data(), count, offset, flags);
        if (moved < 0) {
            if (errno == EINTR) continue;
            // The tail of a file, past an aligned part.
            if (errno == EINVAL && transfer.fd != transfer.plain_fd) {
                transfer.fd = transfer.plain_fd;
                continue;
            }
            return errno;
        }
        if (moved == 0) return 0;
        transfer.advance(static_cast<std::size_t>(moved));
    }
}

void queue(Transfer& transfer);

void on_done(io::Operation* operation, std::int32_t result) {
    Transfer& transfer = *static_cast<Transfer*>(operation);
    const bool data = transfer.kind == Transfer::Kind::kRead || transfer.kind == Transfer::Kind::kWrite;
    if (result == -EINTR) return queue(transfer);
    if (result == -EINVAL && transfer.fd != transfer.plain_fd) {
        transfer.fd = transfer.plain_fd;
        return queue(transfer);
    }
    if (result == -EAGAIN) {
        if (data && transfer.tried) return transfer.end(move_now(transfer, 0));
        transfer.tried = true;
        return queue(transfer);
    }
    if (result < 0) return transfer.end(-result);
    if (!data || result == 0) return transfer.end(0);
    transfer.advance(static_cast<std::size_t>(result));
    if (transfer.next().empty()) return transfer.end(0);
    queue(transfer);
}

void queue(Transfer& transfer) {
    io::Ring& ring = *transfer.request->ring();
    transfer.done = on_done;
    switch (transfer.kind) {
        case Transfer::Kind::kRead:
            return ring.read(transfer.fd, transfer.next(), transfer.offset, transfer);
        case Transfer::Kind::kWrite:
            return ring.write(transfer.fd, transfer.next(), transfer.offset, transfer.flags, transfer);
        case Transfer::Kind::kSync:
        case Transfer::Kind::kDataSync:
            return ring.fsync(transfer.fd, transfer.kind == Transfer::Kind::kDataSync, transfer);
    }
}

/// `nowait`: does the host's file system know RWF_NOWAIT here? `at_once_without`: if not, do not bother the ring.
void run(Transfer& transfer, std::atomic<bool>& nowait, bool at_once_without) {
    if (transfer.request->ring() == nullptr) return transfer.end(move_now(transfer, 0));
    const bool direct = transfer.fd != transfer.plain_fd;
    const bool waits_for_disk = direct || (transfer.flags & (RWF_SYNC | RWF_DSYNC)) != 0;
    if (!waits_for_disk) {
        if (nowait.load(std::memory_order_relaxed)) {
            const int error = move_now(transfer, RWF_NOWAIT);
            if (error != EAGAIN && error != EOPNOTSUPP) return transfer.end(error);
            if (error == EOPNOTSUPP) nowait.store(false, std::memory_order_relaxed);
        }
        if (at_once_without && !nowait.load(std::memory_order_relaxed)) return transfer.end(move_now(transfer, 0));
    }
    if (transfer.next().empty()) return transfer.end(0);
    queue(transfer);
}

}  // namespace

void MirrorFileSystem::read(Request& request, const fuse::ReadRequest& read) {
    FilePtr file = files_.find(read.handle, false);
    if (file == nullptr) return request.reply_error(EBADF);
    OpenedFile& opened = *file;
    Transfer& transfer = start(request, Transfer::Kind::kRead, std::move(file), request.data_out(), read.offset, 0);
    if (opened.direct && aligned_for_direct(request.data_out(), read.offset)) transfer.fd = opened.direct.get();
    run(transfer, opened.read_ahead_of_ring, !abilities_.remote);
}

void MirrorFileSystem::write(Request& request, const fuse::WriteRequest& write) {
    FilePtr file = files_.find(write.handle, false);
    if (file == nullptr) return request.reply_error(EBADF);
    OpenedFile& opened = *file;
    if (const int error = may_change(); error != 0) return request.reply_error(error);
    if (write.kill_suid_sgid) {
        if (const int error = kill_suid_sgid(opened.fd.get(), request.caller()); error != 0)
            return request.reply_error(error);
    }
    int flags = 0;
    // What the client's page cache writes back has its place; an append finds its place here, whatever the client
    // thinks.
    if ((write.flags & O_APPEND) != 0 && !write.from_cache && !writeback_) flags |= RWF_APPEND;
    using Sync = MirrorOptions::Sync;
    if (options_.sync == Sync::kAlways) {
        flags |= RWF_SYNC;
    } else if (options_.sync == Sync::kAsAsked && (write.flags & O_DSYNC) != 0) {
        flags |= (write.flags & O_SYNC) == O_SYNC ? RWF_SYNC : RWF_DSYNC;
    }
    Transfer& transfer =
        start(request, Transfer::Kind::kWrite, std::move(file), request.data_in(), write.offset, flags);
    if (opened.direct && aligned_for_direct(request.data_in(), write.offset)) transfer.fd = opened.direct.get();
    run(transfer, opened.write_ahead_of_ring, !abilities_.remote);
}

void MirrorFileSystem::sync(Request& request, FilePtr file, bool data_only) {
    if (file == nullptr) return request.reply_error(EBADF);
    if (options_.sync == MirrorOptions::Sync::kNever) return request.reply_ok();
    if (request.ring() == nullptr) {
        const int fd = file->fd.get();
        if ((data_only ? ::fdatasync(fd) : ::fsync(fd)) != 0) return request.reply_error(errno);
        return request.reply_ok();
    }
    queue(start(request, data_only ? Transfer::Kind::kDataSync : Transfer::Kind::kSync, std::move(file), {}, 0, 0));
}

void MirrorFileSystem::fsync(Request& request, NodeId, Handle handle, bool data_only) {
    sync(request, files_.find(handle, false), data_only);
}

void MirrorFileSystem::fsyncdir(Request& request, NodeId, Handle handle, bool data_only) {
    sync(request, files_.find(handle, true), data_only);
}

}  // namespace farhaul::backend::mirror
