// A client of a fuse::Session in the same process: builds requests byte by byte as a kernel does, hands them over and
// takes the replies apart. Synchronous: a call returns when the reply is there, whichever thread gave it.
#pragma once

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>

#include "fuse/session.hpp"

namespace farhaul::fuse_test {

using Bytes = std::vector<std::byte>;

/// One request with memory of its own, cut into as many pieces as a test likes.
class RawRequest final : public fuse::Request {
 public:
    /// `in`: the whole request. `out_size`: room for the reply. `piece`: the lists are cut after so many bytes (0: one
    /// piece).
    RawRequest(Bytes in, std::size_t out_size, std::size_t piece = 0) : in_bytes_(std::move(in)), out_bytes_(out_size) {
        cut(in_bytes_, in_list_, piece);
        cut(out_bytes_, out_list_, piece);
        prepare(in_list_, out_list_);
    }
    /// Waits for the end; false after `seconds`.
    bool wait(int seconds = 30) {
        std::unique_lock lock(mutex_);
        return ended_signal_.wait_for(lock, std::chrono::seconds(seconds), [&] { return ended_ != 0; });
    }
    /// How often complete() was called: anything but 1 in the end is a fault.
    int ended() {
        const std::scoped_lock lock(mutex_);
        return ended_;
    }
    std::size_t reply_size() const { return reply_size_; }
    /// The reply's bytes, header included.
    std::span<const std::byte> reply() const { return std::span(out_bytes_).first(reply_size_); }
    fuse_out_header header() const {
        fuse_out_header header{};
        if (reply_size_ >= sizeof(header)) std::memcpy(&header, out_bytes_.data(), sizeof(header));
        return header;
    }

 private:
    void complete(std::size_t reply_size) override {
        const std::scoped_lock lock(mutex_);
        reply_size_ = reply_size;
        ++ended_;
        ended_signal_.notify_all();
    }
    static void cut(Bytes& bytes, std::vector<iovec>& list, std::size_t piece) {
        if (piece == 0) piece = std::max<std::size_t>(bytes.size(), 1);
        for (std::size_t at = 0; at < bytes.size(); at += piece)
            list.push_back({bytes.data() + at, std::min(piece, bytes.size() - at)});
    }
    Bytes in_bytes_;
    Bytes out_bytes_;
    std::vector<iovec> in_list_;
    std::vector<iovec> out_list_;
    std::mutex mutex_;
    std::condition_variable ended_signal_;
    int ended_ = 0;
    std::size_t reply_size_ = 0;
};

template <typename T>
void append(Bytes& bytes, const T& value) {
    const std::size_t at = bytes.size();
    bytes.resize(at + sizeof(T));
    std::memcpy(bytes.data() + at, &value, sizeof(T));
}
inline void append_string(Bytes& bytes, std::string_view text) {  // with its NUL
    const std::size_t at = bytes.size();
    bytes.resize(at + text.size() + 1);
    std::memcpy(bytes.data() + at, text.data(), text.size());
}
inline Bytes bytes_of(std::string_view text) {
    Bytes bytes(text.size());
    if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
    return bytes;
}

/// What came back: error is 0 or a positive errno; data is what follows the header.
struct Reply {
    int error = 0;
    Bytes data;
    explicit operator bool() const { return error == 0; }
    template <typename T>
    T as() const {
        T value{};
        std::memcpy(&value, data.data(), std::min(sizeof(T), data.size()));
        return value;
    }
    fuse_entry_out entry() const { return as<fuse_entry_out>(); }
    std::uint64_t node() const { return entry().nodeid; }
    fuse_attr attr() const { return as<fuse_attr_out>().attr; }
    std::uint64_t handle() const { return as<fuse_open_out>().fh; }
    std::string text() const { return {reinterpret_cast<const char*>(data.data()), data.size()}; }
};

struct DirectoryEntry {
    std::string name;
    std::uint64_t ino = 0;
    std::uint64_t next = 0;
    std::uint32_t type = 0;
    std::uint64_t node = 0;  // readdirplus
};

class Client {
 public:
    explicit Client(fuse::Session& session) : session_(session) {}

    std::uint32_t uid = 0, gid = 0, pid = 1;
    std::size_t piece = 0;  ///< as of RawRequest
    std::uint64_t last_unique = 0;

    Bytes build(std::uint32_t opcode, std::uint64_t node, std::span<const std::byte> arguments) {
        fuse_in_header header{};
        header.len = static_cast<std::uint32_t>(sizeof(header) + arguments.size());
        header.opcode = opcode;
        header.unique = last_unique = next_unique_ += 2;
        header.nodeid = node;
        header.uid = uid;
        header.gid = gid;
        header.pid = pid;
        Bytes bytes;
        bytes.reserve(header.len);
        append(bytes, header);
        bytes.insert(bytes.end(), arguments.begin(), arguments.end());
        return bytes;
    }
    /// Starts a request and does not wait for it.
    std::unique_ptr<RawRequest> start(std::uint32_t opcode, std::uint64_t node, std::span<const std::byte> arguments,
                                      std::size_t room = 4096) {
        auto request =
            std::make_unique<RawRequest>(build(opcode, node, arguments), sizeof(fuse_out_header) + room, piece);
        session_.handle(*request);
        return request;
    }
    static Reply reply_of(RawRequest& request) {
        if (!request.wait()) return {.error = ETIMEDOUT, .data = {}};
        if (request.reply_size() < sizeof(fuse_out_header)) return {.error = ENODATA, .data = {}};
        const auto header = request.header();
        if (header.len != request.reply_size()) return {.error = EBADMSG, .data = {}};
        const auto data = request.reply().subspan(sizeof(header));
        return {.error = -header.error, .data = Bytes(data.begin(), data.end())};
    }
    Reply call(std::uint32_t opcode, std::uint64_t node, std::span<const std::byte> arguments,
               std::size_t room = 4096) {
        const auto request = start(opcode, node, arguments, room);
        return reply_of(*request);
    }
    template <typename In>
    Reply call_with(std::uint32_t opcode, std::uint64_t node, const In& in, std::string_view name = {},
                    std::size_t room = 4096) {
        Bytes arguments;
        append(arguments, in);
        if (name.data() != nullptr) append_string(arguments, name);
        return call(opcode, node, arguments, room);
    }
    Reply call_name(std::uint32_t opcode, std::uint64_t node, std::string_view name, std::size_t room = 4096) {
        Bytes arguments;
        append_string(arguments, name);
        return call(opcode, node, arguments, room);
    }

    /// Offers every feature but those in `without`.
    Reply init(std::uint64_t without = 0, std::uint32_t minor = 41) {
        fuse_init_in in{};
        in.major = 7;
        in.minor = minor;
        in.max_readahead = 1 << 20;
        const std::uint64_t flags = ~without;
        in.flags = static_cast<std::uint32_t>(flags);
        in.flags2 = static_cast<std::uint32_t>(flags >> 32);
        return call_with(FUSE_INIT, 0, in);
    }

    Reply lookup(std::uint64_t parent, std::string_view name) { return call_name(FUSE_LOOKUP, parent, name); }
    void forget(std::uint64_t node, std::uint64_t count) {
        Bytes arguments;
        append(arguments, fuse_forget_in{.nlookup = count});
        start(FUSE_FORGET, node, arguments, 0);
    }
    Reply getattr(std::uint64_t node) { return call_with(FUSE_GETATTR, node, fuse_getattr_in{}); }
    Reply setattr(std::uint64_t node, const fuse_setattr_in& in) { return call_with(FUSE_SETATTR, node, in); }
    Reply mkdir(std::uint64_t parent, std::string_view name, std::uint32_t mode = 0755) {
        return call_with(FUSE_MKDIR, parent, fuse_mkdir_in{.mode = mode, .umask = 0}, name);
    }
    Reply mknod(std::uint64_t parent, std::string_view name, std::uint32_t mode, std::uint32_t rdev = 0) {
        return call_with(FUSE_MKNOD, parent, fuse_mknod_in{.mode = mode, .rdev = rdev, .umask = 0, .padding = 0}, name);
    }
    Reply symlink(std::uint64_t parent, std::string_view name, std::string_view target) {
        Bytes arguments;
        append_string(arguments, name);
        append_string(arguments, target);
        return call(FUSE_SYMLINK, parent, arguments);
    }
    Reply readlink(std::uint64_t node) { return call(FUSE_READLINK, node, {}); }
    Reply unlink(std::uint64_t parent, std::string_view name) { return call_name(FUSE_UNLINK, parent, name); }
    Reply rmdir(std::uint64_t parent, std::string_view name) { return call_name(FUSE_RMDIR, parent, name); }
    Reply rename(std::uint64_t parent, std::string_view name, std::uint64_t new_parent, std::string_view new_name,
                 std::uint32_t flags = 0) {
        Bytes arguments;
        append(arguments, fuse_rename2_in{.newdir = new_parent, .flags = flags, .padding = 0});
        append_string(arguments, name);
        append_string(arguments, new_name);
        return call(FUSE_RENAME2, parent, arguments);
    }
    Reply link(std::uint64_t node, std::uint64_t new_parent, std::string_view name) {
        return call_with(FUSE_LINK, new_parent, fuse_link_in{.oldnodeid = node}, name);
    }
    Reply open(std::uint64_t node, std::uint32_t flags) {
        return call_with(FUSE_OPEN, node, fuse_open_in{.flags = flags, .open_flags = 0});
    }
    Reply opendir(std::uint64_t node) {
        return call_with(FUSE_OPENDIR, node, fuse_open_in{.flags = O_DIRECTORY, .open_flags = 0});
    }
    /// Reply: entry, then open. See created_handle().
    Reply create(std::uint64_t parent, std::string_view name, std::uint32_t flags, std::uint32_t mode = 0644) {
        return call_with(FUSE_CREATE, parent, fuse_create_in{.flags = flags, .mode = mode, .umask = 0, .open_flags = 0},
                         name);
    }
    Reply tmpfile(std::uint64_t parent, std::uint32_t flags, std::uint32_t mode = 0644) {
        return call_with(fuse::abi::kTmpfile, parent,
                         fuse_create_in{.flags = flags, .mode = mode, .umask = 0, .open_flags = 0}, "/");
    }
    static std::uint64_t created_handle(const Reply& reply) {
        fuse_open_out open{};
        if (reply.data.size() >= sizeof(fuse_entry_out) + sizeof(open))
            std::memcpy(&open, reply.data.data() + sizeof(fuse_entry_out), sizeof(open));
        return open.fh;
    }
    Reply read(std::uint64_t node, std::uint64_t handle, std::uint64_t offset, std::uint32_t size) {
        fuse_read_in in{};
        in.fh = handle;
        in.offset = offset;
        in.size = size;
        return call_with(FUSE_READ, node, in, {}, size);
    }
    Reply write(std::uint64_t node, std::uint64_t handle, std::uint64_t offset, std::span<const std::byte> data,
                std::uint32_t write_flags = 0) {
        fuse_write_in in{};
        in.fh = handle;
        in.offset = offset;
        in.size = static_cast<std::uint32_t>(data.size());
        in.write_flags = write_flags;
        Bytes arguments;
        append(arguments, in);
        arguments.insert(arguments.end(), data.begin(), data.end());
        return call(FUSE_WRITE, node, arguments);
    }
    Reply write(std::uint64_t node, std::uint64_t handle, std::uint64_t offset, std::string_view text) {
        return write(node, handle, offset, bytes_of(text));
    }
    static std::uint32_t written(const Reply& reply) { return reply.as<fuse_write_out>().size; }
    Reply release(std::uint64_t node, std::uint64_t handle, std::uint32_t flags = 0) {
        fuse_release_in in{};
        in.fh = handle;
        in.flags = flags;
        return call_with(FUSE_RELEASE, node, in);
    }
    Reply releasedir(std::uint64_t node, std::uint64_t handle) {
        fuse_release_in in{};
        in.fh = handle;
        return call_with(FUSE_RELEASEDIR, node, in);
    }
    Reply flush(std::uint64_t node, std::uint64_t handle, std::uint64_t lock_owner = 0) {
        fuse_flush_in in{};
        in.fh = handle;
        in.lock_owner = lock_owner;
        return call_with(FUSE_FLUSH, node, in);
    }
    Reply fsync(std::uint64_t node, std::uint64_t handle) {
        fuse_fsync_in in{};
        in.fh = handle;
        return call_with(FUSE_FSYNC, node, in);
    }
    Reply setxattr(std::uint64_t node, std::string_view name, std::string_view value, std::uint32_t flags = 0) {
        fuse_setxattr_in in{};
        in.size = static_cast<std::uint32_t>(value.size());
        in.flags = flags;
        Bytes arguments;
        append(arguments, in);
        append_string(arguments, name);
        const Bytes data = bytes_of(value);
        arguments.insert(arguments.end(), data.begin(), data.end());
        return call(FUSE_SETXATTR, node, arguments);
    }
    Reply getxattr(std::uint64_t node, std::string_view name, std::uint32_t size) {
        return call_with(FUSE_GETXATTR, node, fuse_getxattr_in{.size = size, .padding = 0}, name,
                         std::max<std::size_t>(size, 8));
    }
    Reply listxattr(std::uint64_t node, std::uint32_t size) {
        return call_with(FUSE_LISTXATTR, node, fuse_getxattr_in{.size = size, .padding = 0}, {},
                         std::max<std::size_t>(size, 8));
    }
    Reply removexattr(std::uint64_t node, std::string_view name) { return call_name(FUSE_REMOVEXATTR, node, name); }

    /// One READDIR (or READDIRPLUS) reply, taken apart.
    static std::vector<DirectoryEntry> entries_of(const Reply& reply, bool plus) {
        std::vector<DirectoryEntry> entries;
        std::size_t at = 0;
        const std::size_t head = plus ? sizeof(fuse_entry_out) : 0;
        while (at + head + FUSE_NAME_OFFSET <= reply.data.size()) {
            DirectoryEntry entry;
            if (plus) {
                fuse_entry_out out{};
                std::memcpy(&out, reply.data.data() + at, sizeof(out));
                entry.node = out.nodeid;
            }
            fuse_dirent dirent{};
            std::memcpy(&dirent, reply.data.data() + at + head, FUSE_NAME_OFFSET);
            entry.name.assign(reinterpret_cast<const char*>(reply.data.data()) + at + head + FUSE_NAME_OFFSET,
                              dirent.namelen);
            entry.ino = dirent.ino;
            entry.next = dirent.off;
            entry.type = dirent.type;
            entries.push_back(entry);
            at += FUSE_DIRENT_ALIGN(head + FUSE_NAME_OFFSET + dirent.namelen);
        }
        return entries;
    }
    Reply readdir(std::uint64_t node, std::uint64_t handle, std::uint64_t offset, std::uint32_t size,
                  bool plus = false) {
        fuse_read_in in{};
        in.fh = handle;
        in.offset = offset;
        in.size = size;
        return call_with(plus ? FUSE_READDIRPLUS : FUSE_READDIR, node, in, {}, size);
    }
    /// The whole listing, read `size` bytes at a time.
    std::vector<DirectoryEntry> list(std::uint64_t node, std::uint32_t size = 4096, bool plus = false) {
        const auto handle = opendir(node).handle();
        std::vector<DirectoryEntry> all;
        for (std::uint64_t offset = 0;;) {
            const auto entries = entries_of(readdir(node, handle, offset, size, plus), plus);
            if (entries.empty()) break;
            offset = entries.back().next;
            all.insert(all.end(), entries.begin(), entries.end());
        }
        releasedir(node, handle);
        return all;
    }
    Reply setlk(std::uint64_t node, std::uint64_t handle, std::uint64_t owner, std::uint64_t start, std::uint64_t end,
                std::uint32_t type, bool flock = false) {
        return call_with(FUSE_SETLK, node, lock(handle, owner, start, end, type, flock));
    }
    static fuse_lk_in lock(std::uint64_t handle, std::uint64_t owner, std::uint64_t start, std::uint64_t end,
                           std::uint32_t type, bool flock = false) {
        fuse_lk_in in{};
        in.fh = handle;
        in.owner = owner;
        in.lk.start = start;
        in.lk.end = end;
        in.lk.type = type;
        in.lk.pid = 1;
        in.lk_flags = flock ? FUSE_LK_FLOCK : 0;
        return in;
    }
    void interrupt(std::uint64_t unique) {
        Bytes arguments;
        append(arguments, fuse_interrupt_in{.unique = unique});
        start(FUSE_INTERRUPT, 0, arguments, 0);
    }

 private:
    fuse::Session& session_;
    std::uint64_t next_unique_ = 0;
};

}  // namespace farhaul::fuse_test
