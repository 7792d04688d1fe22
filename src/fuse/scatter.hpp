// Cursors over scatter lists. Memory behind a list may belong to somebody hostile and change at any time, so a value is
// read once, into memory of our own, and judged there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

#include <sys/uio.h>

namespace farhaul::fuse {

inline std::size_t total_size(std::span<const iovec> list) {
    std::size_t size = 0;
    for (const iovec& piece : list) size += piece.iov_len;
    return size;
}

/// Drops the first `bytes` of a list, in place, and returns what is left. `bytes` is at most the list's size.
inline std::span<iovec> drop_front(std::span<iovec> list, std::size_t bytes) {
    while (!list.empty() && bytes >= list.front().iov_len) {
        bytes -= list.front().iov_len;
        list = list.subspan(1);
    }
    if (bytes != 0) {
        list.front().iov_base = static_cast<std::byte*>(list.front().iov_base) + bytes;
        list.front().iov_len -= bytes;
    }
    return list;
}

/// Keeps the first `bytes` of a list, in place. `bytes` is at most the list's size.
inline std::span<iovec> keep_front(std::span<iovec> list, std::size_t bytes) {
    std::size_t pieces = 0;
    while (bytes != 0 && pieces < list.size()) {
        iovec& piece = list[pieces++];
        piece.iov_len = std::min(piece.iov_len, bytes);
        bytes -= piece.iov_len;
    }
    return list.first(pieces);
}

/// Copies the next min(size, what is left) bytes of the list to `to`; returns how many.
class ScatterReader {
 public:
    explicit ScatterReader(std::span<const iovec> list) : list_(list) {}
    std::size_t read(void* to, std::size_t size) {
        std::size_t done = 0;
        while (done < size && !list_.empty()) {
            const iovec& piece = list_.front();
            const std::size_t step = std::min(size - done, piece.iov_len - offset_);
            if (step != 0)
                std::memcpy(static_cast<std::byte*>(to) + done, static_cast<const std::byte*>(piece.iov_base) + offset_,
                            step);
            done += step;
            offset_ += step;
            if (offset_ == piece.iov_len) {
                list_ = list_.subspan(1);
                offset_ = 0;
            }
        }
        return done;
    }

 private:
    std::span<const iovec> list_;
    std::size_t offset_ = 0;
};

/// Writes to a list from its start on; never past its end.
class ScatterWriter {
 public:
    explicit ScatterWriter(std::span<const iovec> list) : list_(list), room_(total_size(list)) {}

    std::size_t room() const { return room_; }
    std::size_t written() const { return written_; }
    /// All or nothing: false, and nothing written, if there is no room for `size` bytes.
    bool write(const void* from, std::size_t size) {
        if (size > room_) return false;
        room_ -= size;
        written_ += size;
        const auto* bytes = static_cast<const std::byte*>(from);
        while (size != 0) {
            const iovec& piece = list_.front();
            const std::size_t step = std::min(size, piece.iov_len - offset_);
            if (step != 0) std::memcpy(static_cast<std::byte*>(piece.iov_base) + offset_, bytes, step);
            bytes += step;
            size -= step;
            offset_ += step;
            if (offset_ == piece.iov_len) {
                list_ = list_.subspan(1);
                offset_ = 0;
            }
        }
        return true;
    }
    bool write_zeros(std::size_t size) {
        static constexpr std::byte kZeros[512] = {};
        if (size > room_) return false;
        for (; size > sizeof(kZeros); size -= sizeof(kZeros)) write(kZeros, sizeof(kZeros));
        return write(kZeros, size);
    }

 private:
    std::span<const iovec> list_;
    std::size_t offset_ = 0;
    std::size_t room_;
    std::size_t written_ = 0;
};

}  // namespace farhaul::fuse
