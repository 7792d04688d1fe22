// A file system that notes each call in words and answers it with the smallest success; and one valid request of every
// operation.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/stat.h>

#include "client.hpp"
#include "fuse/file_system.hpp"

namespace farhaul::fuse_test {

class RecordingFileSystem : public fuse::FileSystem {
 public:
    using Request = fuse::Request;
    using NodeId = fuse::NodeId;
    using Handle = fuse::Handle;
    using Name = fuse::Name;

    std::vector<std::string> calls;
    std::vector<fuse::Caller> callers;
    fuse::Wishes wish{.posix_locks = true,
                      .flock = true,
                      .posix_acl = true,
                      .handle_kill_priv = true,
                      .atomic_o_trunc = true,
                      .export_support = false,
                      .submounts = true};
    bool interrupt_finds = false;

    std::string last() const { return calls.empty() ? "" : calls.back(); }
    template <typename... Args>
    void note(Request& request, fmt::format_string<Args...> format, Args&&... args) {
        callers.push_back(request.caller());
        calls.push_back(fmt::format(format, std::forward<Args>(args)...));
    }
    static std::string text_of(std::span<const std::byte> bytes) {
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }

    fuse::Wishes wishes() const override { return wish; }
    void init(const fuse::Connection& connection) override {
        calls.push_back(fmt::format("init 7.{}", connection.minor));
    }
    void destroy() override { calls.push_back("destroy"); }
    void lookup(Request& r, NodeId parent, Name name) override {
        note(r, "lookup {} {}", parent, std::string_view(name));
        r.reply_entry(entry());
    }
    void forget(NodeId node, std::uint64_t count) override {
        calls.push_back(fmt::format("forget {} {}", node, count));
    }
    void getattr(Request& r, NodeId node, const Handle* handle) override {
        note(r, "getattr {} {}", node, handle ? std::to_string(*handle) : "-");
        r.reply_attributes(entry().attributes, {});
    }
    void setattr(Request& r, NodeId node, const fuse::AttributeChange& c) override {
        note(r, "setattr {} mode={}:{:o} size={}:{} mtime={}:{}.{} kill={}", node, c.set_mode, c.mode, c.set_size,
             c.size, c.set_mtime, c.mtime.tv_sec, c.mtime.tv_nsec, c.kill_suid_sgid);
        r.reply_attributes(entry().attributes, {});
    }
    void readlink(Request& r, NodeId node) override {
        note(r, "readlink {}", node);
        r.reply_bytes(std::as_bytes(std::span("target", 6)));
    }
    void mknod(Request& r, const fuse::CreateRequest& c) override {
        note(r, "mknod {} {} {:o} {}", c.parent, std::string_view(c.name), c.mode, c.rdev);
        r.reply_entry(entry());
    }
    void mkdir(Request& r, const fuse::CreateRequest& c) override {
        note(r, "mkdir {} {} {:o}", c.parent, std::string_view(c.name), c.mode);
        r.reply_entry(entry());
    }
    void symlink(Request& r, const fuse::CreateRequest& c, Name target) override {
        note(r, "symlink {} {} {}", c.parent, std::string_view(c.name), std::string_view(target));
        r.reply_entry(entry());
    }
    void unlink(Request& r, NodeId parent, Name name) override {
        ok(r, "unlink {} {}", parent, std::string_view(name));
    }
    void rmdir(Request& r, NodeId parent, Name name) override { ok(r, "rmdir {} {}", parent, std::string_view(name)); }
    void rename(Request& r, const fuse::RenameRequest& c) override {
        ok(r, "rename {} {} {} {} {}", c.parent, std::string_view(c.name), c.new_parent, std::string_view(c.new_name),
           c.flags);
    }
    void link(Request& r, NodeId node, NodeId parent, Name name) override {
        note(r, "link {} {} {}", node, parent, std::string_view(name));
        r.reply_entry(entry());
    }
    void open(Request& r, NodeId node, std::uint32_t flags, bool kill) override {
        note(r, "open {} {:o} {}", node, flags, kill);
        r.reply_open({.handle = 9});
    }
    void create(Request& r, const fuse::CreateRequest& c) override {
        note(r, "create {} {} {:o} {:o}", c.parent, std::string_view(c.name), c.mode, c.flags);
        r.reply_create(entry(), {.handle = 9});
    }
    void tmpfile(Request& r, const fuse::CreateRequest& c) override {
        note(r, "tmpfile {} {:o}", c.parent, c.mode);
        r.reply_create(entry(), {.handle = 9});
    }
    void read(Request& r, const fuse::ReadRequest& c) override {
        note(r, "read {} {} {} {} room {}", c.node, c.handle, c.offset, c.size, r.data_out_size());
        fuse::ScatterWriter(r.data_out()).write_zeros(c.size);
        r.reply_data(c.size);
    }
    void write(Request& r, const fuse::WriteRequest& c) override {
        std::string data(c.size, '?');
        fuse::ScatterReader(r.data_in()).read(data.data(), data.size());
        note(r, "write {} {} {} {} {}", c.node, c.handle, c.offset, fuse::total_size(r.data_in()), data);
        r.reply_written(c.size);
    }
    void flush(Request& r, NodeId node, Handle h, std::uint64_t owner) override {
        ok(r, "flush {} {} {}", node, h, owner);
    }
    void release(Request& r, const fuse::ReleaseRequest& c) override { ok(r, "release {} {}", c.node, c.handle); }
    void fsync(Request& r, NodeId node, Handle h, bool data) override { ok(r, "fsync {} {} {}", node, h, data); }
    void opendir(Request& r, NodeId node, std::uint32_t) override {
        note(r, "opendir {}", node);
        r.reply_open({.handle = 9});
    }
    void readdir(Request& r, NodeId node, Handle h, std::uint64_t offset) override {
        note(r, "readdir {} {} {}", node, h, offset);
        fuse::DirectoryWriter writer(r);
        for (std::uint64_t i = offset; i < 5; ++i) {
            const std::string name = "name" + std::string(i, 'x');
            if (!(writer.plus() ? writer.add_plus(name, entry(), i + 1) : writer.add(name, i + 10, 8, i + 1))) break;
        }
        r.reply_directory(writer);
    }
    void releasedir(Request& r, NodeId node, Handle h) override { ok(r, "releasedir {} {}", node, h); }
    void fsyncdir(Request& r, NodeId node, Handle h, bool data) override { ok(r, "fsyncdir {} {} {}", node, h, data); }
    void statfs(Request& r, NodeId node) override {
        note(r, "statfs {}", node);
        r.reply_statfs({});
    }
    void access(Request& r, NodeId node, std::uint32_t mask) override { ok(r, "access {} {}", node, mask); }
    void setxattr(Request& r, NodeId node, Name name, std::span<const std::byte> value, std::uint32_t flags,
                  bool kill) override {
        ok(r, "setxattr {} {} {} {} {}", node, std::string_view(name), text_of(value), flags, kill);
    }
    void getxattr(Request& r, NodeId node, Name name, std::size_t size) override {
        note(r, "getxattr {} {} {}", node, std::string_view(name), size);
        size == 0 ? r.reply_xattr_size(5) : r.reply_bytes(std::as_bytes(std::span("value", 5)));
    }
    void listxattr(Request& r, NodeId node, std::size_t size) override {
        note(r, "listxattr {} {}", node, size);
        size == 0 ? r.reply_xattr_size(7) : r.reply_bytes(std::as_bytes(std::span("user.a", 7)));
    }
    void removexattr(Request& r, NodeId node, Name name) override {
        ok(r, "removexattr {} {}", node, std::string_view(name));
    }
    void getlk(Request& r, const fuse::LockRequest& c) override {
        note(r, "getlk {} {} {}-{}", c.node, c.owner, c.lock.start, c.lock.end);
        r.reply_lock({.start = 1, .end = 2, .type = F_UNLCK, .pid = 3});
    }
    void setlk(Request& r, const fuse::LockRequest& c) override {
        note(r, "setlk {} {} {}-{} {} {}", c.node, c.owner, c.lock.start, c.lock.end, c.flock, c.wait);
        if (!c.wait) return r.reply_ok();
        waiting = &r;
    }
    bool interrupt(std::uint64_t unique) override {
        calls.push_back(fmt::format("interrupt {}", unique));
        if (waiting == nullptr || waiting->unique() != unique) return false;
        std::exchange(waiting, nullptr)->reply_error(EINTR);
        return true;
    }
    void fallocate(Request& r, NodeId node, Handle h, std::uint32_t mode, std::uint64_t offset,
                   std::uint64_t length) override {
        ok(r, "fallocate {} {} {} {} {}", node, h, mode, offset, length);
    }
    void lseek(Request& r, NodeId node, Handle h, std::uint64_t offset, std::uint32_t whence) override {
        note(r, "lseek {} {} {} {}", node, h, offset, whence);
        r.reply_seek(77);
    }
    void copy_file_range(Request& r, const fuse::CopyRequest& c) override {
        note(r, "copy {} {} {} {} {} {} {}", c.node_in, c.handle_in, c.offset_in, c.node_out, c.handle_out,
             c.offset_out, c.size);
        r.reply_written(c.size);
    }
    void syncfs(Request& r, NodeId node) override { ok(r, "syncfs {}", node); }
    void bmap(Request& r, NodeId node, std::uint64_t block, std::uint32_t size) override {
        note(r, "bmap {} {} {}", node, block, size);
        r.reply_block(8);
    }
    void ioctl(Request& r, NodeId node, Handle h, std::uint32_t command) override {
        note(r, "ioctl {} {} {}", node, h, command);
        r.reply_error(ENOTTY);
    }

    Request* waiting = nullptr;

 private:
    template <typename... Args>
    void ok(Request& r, fmt::format_string<Args...> format, Args&&... args) {
        note(r, format, std::forward<Args>(args)...);
        r.reply_ok();
    }
    static fuse::Entry entry() {
        fuse::Entry entry;
        entry.node = 42;
        entry.generation = 1;
        entry.attributes.ino = 4242;
        entry.attributes.mode = S_IFREG | 0640;
        entry.attributes.nlink = 1;
        entry.attributes.size = 1234;
        return entry;
    }
};

/// One valid request of an operation and what the file system must see of it.
struct Sample {
    std::string title;
    std::uint32_t opcode;
    Bytes arguments;
    std::string call;
    std::size_t reply = 0;  ///< bytes behind the header
    std::size_t room = 0;   ///< if more than `reply` is needed
    int error = 0;
    bool names = false;  ///< the arguments end with a name
};

inline std::vector<Sample> samples() {
    std::vector<Sample> all;
    const auto pack = [](auto... parts) {
        Bytes bytes;
        const auto add = [&](const auto& part) {
            if constexpr (std::is_convertible_v<decltype(part), std::string_view>) {
                append_string(bytes, part);
            } else {
                append(bytes, part);
            }
        };
        (add(parts), ...);
        return bytes;
    };
    constexpr std::size_t kEntry = sizeof(fuse_entry_out);
    const auto add = [&](Sample sample) { all.push_back(std::move(sample)); };
    add({.title = "lookup",
         .opcode = FUSE_LOOKUP,
         .arguments = pack("file"),
         .call = "lookup 5 file",
         .reply = kEntry,
         .names = true});
    add({.title = "getattr",
         .opcode = FUSE_GETATTR,
         .arguments = pack(fuse_getattr_in{}),
         .call = "getattr 5 -",
         .reply = sizeof(fuse_attr_out)});
    add({.title = "getattr of a handle",
         .opcode = FUSE_GETATTR,
         .arguments = pack(fuse_getattr_in{.getattr_flags = FUSE_GETATTR_FH, .dummy = 0, .fh = 3}),
         .call = "getattr 5 3",
         .reply = sizeof(fuse_attr_out)});
    add({.title = "statx",
         .opcode = fuse::abi::kStatx,
         .arguments = pack(fuse::abi::StatxIn{}),
         .call = "getattr 5 -",
         .reply = sizeof(fuse::abi::StatxOut)});
    fuse_setattr_in setattr{};
    setattr.valid = FATTR_MODE | FATTR_SIZE | FATTR_MTIME | FATTR_KILL_SUIDGID;
    setattr.mode = 0100640;
    setattr.size = 99;
    setattr.mtime = 7;
    setattr.mtimensec = 8;
    add({.title = "setattr",
         .opcode = FUSE_SETATTR,
         .arguments = pack(setattr),
         .call = "setattr 5 mode=true:640 size=true:99 mtime=true:7.8 kill=true",
         .reply = sizeof(fuse_attr_out)});
    add({.title = "readlink", .opcode = FUSE_READLINK, .arguments = {}, .call = "readlink 5", .reply = 6});
    add({.title = "symlink",
         .opcode = FUSE_SYMLINK,
         .arguments = pack("name", "to/there"),
         .call = "symlink 5 name to/there",
         .reply = kEntry});
    add({.title = "mknod",
         .opcode = FUSE_MKNOD,
         .arguments = pack(fuse_mknod_in{.mode = S_IFIFO | 0600, .rdev = 3, .umask = 022, .padding = 0}, "fifo"),
         .call = "mknod 5 fifo 10600 3",
         .reply = kEntry,
         .names = true});
    add({.title = "mkdir",
         .opcode = FUSE_MKDIR,
         .arguments = pack(fuse_mkdir_in{.mode = 0750, .umask = 0}, "dir"),
         .call = "mkdir 5 dir 40750",
         .reply = kEntry,
         .names = true});
    add({.title = "unlink", .opcode = FUSE_UNLINK, .arguments = pack("file"), .call = "unlink 5 file", .names = true});
    add({.title = "rmdir", .opcode = FUSE_RMDIR, .arguments = pack("dir"), .call = "rmdir 5 dir", .names = true});
    add({.title = "rename",
         .opcode = FUSE_RENAME,
         .arguments = pack(fuse_rename_in{.newdir = 6}, "a", "b"),
         .call = "rename 5 a 6 b 0",
         .names = true});
    add({.title = "rename2",
         .opcode = FUSE_RENAME2,
         .arguments = pack(fuse_rename2_in{.newdir = 6, .flags = RENAME_NOREPLACE, .padding = 0}, "a", "b"),
         .call = "rename 5 a 6 b 1",
         .names = true});
    add({.title = "link",
         .opcode = FUSE_LINK,
         .arguments = pack(fuse_link_in{.oldnodeid = 8}, "new"),
         .call = "link 8 5 new",
         .reply = kEntry,
         .names = true});
    add({.title = "open",
         .opcode = FUSE_OPEN,
         .arguments = pack(fuse_open_in{.flags = O_RDWR | O_CREAT | O_TRUNC, .open_flags = FUSE_OPEN_KILL_SUIDGID}),
         .call = "open 5 1002 true",
         .reply = sizeof(fuse_open_out)});
    add({.title = "create",
         .opcode = FUSE_CREATE,
         .arguments = pack(fuse_create_in{.flags = O_RDWR, .mode = 0100444, .umask = 0, .open_flags = 0}, "new"),
         .call = "create 5 new 100444 2",
         .reply = kEntry + sizeof(fuse_open_out),
         .names = true});
    add({.title = "tmpfile",
         .opcode = fuse::abi::kTmpfile,
         .arguments = pack(fuse_create_in{.flags = O_RDWR, .mode = 0600, .umask = 0, .open_flags = 0}, "/"),
         .call = "tmpfile 5 100600",
         .reply = kEntry + sizeof(fuse_open_out)});
    fuse_read_in read{};
    read.fh = 9;
    read.offset = 4096;
    read.size = 100;
    add({.title = "read",
         .opcode = FUSE_READ,
         .arguments = pack(read),
         .call = "read 5 9 4096 100 room 100",
         .reply = 100});
    fuse_write_in write{};
    write.fh = 9;
    write.offset = 10;
    write.size = 5;
    Bytes write_bytes = pack(write);
    for (const char c : std::string_view("hello")) write_bytes.push_back(static_cast<std::byte>(c));
    add({.title = "write",
         .opcode = FUSE_WRITE,
         .arguments = write_bytes,
         .call = "write 5 9 10 5 hello",
         .reply = sizeof(fuse_write_out)});
    add({.title = "statfs",
         .opcode = FUSE_STATFS,
         .arguments = {},
         .call = "statfs 5",
         .reply = sizeof(fuse_statfs_out)});
    fuse_release_in release{};
    release.fh = 9;
    add({.title = "release", .opcode = FUSE_RELEASE, .arguments = pack(release), .call = "release 5 9"});
    add({.title = "releasedir", .opcode = FUSE_RELEASEDIR, .arguments = pack(release), .call = "releasedir 5 9"});
    add({.title = "fsync",
         .opcode = FUSE_FSYNC,
         .arguments = pack(fuse_fsync_in{.fh = 9, .fsync_flags = 1, .padding = 0}),
         .call = "fsync 5 9 true"});
    add({.title = "fsyncdir",
         .opcode = FUSE_FSYNCDIR,
         .arguments = pack(fuse_fsync_in{.fh = 9, .fsync_flags = 0, .padding = 0}),
         .call = "fsyncdir 5 9 false"});
    Bytes setxattr = pack(fuse_setxattr_in{.size = 3, .flags = 1, .setxattr_flags = 1, .padding = 0}, "user.a");
    for (const char c : std::string_view("xyz")) setxattr.push_back(static_cast<std::byte>(c));
    add({.title = "setxattr", .opcode = FUSE_SETXATTR, .arguments = setxattr, .call = "setxattr 5 user.a xyz 1 true"});
    add({.title = "getxattr",
         .opcode = FUSE_GETXATTR,
         .arguments = pack(fuse_getxattr_in{.size = 50, .padding = 0}, "user.a"),
         .call = "getxattr 5 user.a 50",
         .reply = 5,
         .room = 50});
    add({.title = "getxattr size",
         .opcode = FUSE_GETXATTR,
         .arguments = pack(fuse_getxattr_in{.size = 0, .padding = 0}, "user.a"),
         .call = "getxattr 5 user.a 0",
         .reply = 8});
    add({.title = "getxattr too small",
         .opcode = FUSE_GETXATTR,
         .arguments = pack(fuse_getxattr_in{.size = 4, .padding = 0}, "user.a"),
         .call = "getxattr 5 user.a 4",
         .room = 4,
         .error = ERANGE});
    add({.title = "listxattr",
         .opcode = FUSE_LISTXATTR,
         .arguments = pack(fuse_getxattr_in{.size = 50, .padding = 0}),
         .call = "listxattr 5 50",
         .reply = 7,
         .room = 50});
    add({.title = "removexattr",
         .opcode = FUSE_REMOVEXATTR,
         .arguments = pack("user.a"),
         .call = "removexattr 5 user.a"});
    add({.title = "flush",
         .opcode = FUSE_FLUSH,
         .arguments = pack(fuse_flush_in{.fh = 9, .unused = 0, .padding = 0, .lock_owner = 4}),
         .call = "flush 5 9 4"});
    add({.title = "opendir",
         .opcode = FUSE_OPENDIR,
         .arguments = pack(fuse_open_in{}),
         .call = "opendir 5",
         .reply = sizeof(fuse_open_out)});
    read.offset = 2;
    read.size = 4096;
    add({.title = "readdir",
         .opcode = FUSE_READDIR,
         .arguments = pack(read),
         .call = "readdir 5 9 2",
         .reply = 3 * 32,
         .room = 4096});
    add({.title = "readdirplus",
         .opcode = FUSE_READDIRPLUS,
         .arguments = pack(read),
         .call = "readdir 5 9 2",
         .reply = 3 * (32 + kEntry),
         .room = 4096});
    add({.title = "getlk",
         .opcode = FUSE_GETLK,
         .arguments = pack(Client::lock(9, 4, 1, 2, F_WRLCK)),
         .call = "getlk 5 4 1-2",
         .reply = sizeof(fuse_lk_out)});
    add({.title = "setlk",
         .opcode = FUSE_SETLK,
         .arguments = pack(Client::lock(9, 4, 1, 2, F_WRLCK)),
         .call = "setlk 5 4 1-2 false false"});
    add({.title = "flock",
         .opcode = FUSE_SETLK,
         .arguments = pack(Client::lock(9, 4, 0, 5, F_RDLCK, true)),
         .call = "setlk 5 4 0-5 true false"});
    add({.title = "access",
         .opcode = FUSE_ACCESS,
         .arguments = pack(fuse_access_in{.mask = 5, .padding = 0}),
         .call = "access 5 5"});
    add({.title = "bmap",
         .opcode = FUSE_BMAP,
         .arguments = pack(fuse_bmap_in{.block = 3, .blocksize = 512, .padding = 0}),
         .call = "bmap 5 3 512",
         .reply = sizeof(fuse_bmap_out)});
    add({.title = "fallocate",
         .opcode = FUSE_FALLOCATE,
         .arguments = pack(fuse_fallocate_in{.fh = 9, .offset = 1, .length = 2, .mode = 3, .padding = 0}),
         .call = "fallocate 5 9 3 1 2"});
    add({.title = "lseek",
         .opcode = FUSE_LSEEK,
         .arguments = pack(fuse_lseek_in{.fh = 9, .offset = 7, .whence = SEEK_HOLE, .padding = 0}),
         .call = "lseek 5 9 7 4",
         .reply = sizeof(fuse_lseek_out)});
    const fuse_copy_file_range_in copy{
        .fh_in = 1, .off_in = 2, .nodeid_out = 6, .fh_out = 3, .off_out = 4, .len = 5, .flags = 0};
    add({.title = "copy_file_range",
         .opcode = FUSE_COPY_FILE_RANGE,
         .arguments = pack(copy),
         .call = "copy 5 1 2 6 3 4 5",
         .reply = sizeof(fuse_write_out)});
    add({.title = "copy_file_range_64",
         .opcode = fuse::abi::kCopyFileRange64,
         .arguments = pack(copy),
         .call = "copy 5 1 2 6 3 4 5",
         .reply = 8});
    add({.title = "syncfs", .opcode = FUSE_SYNCFS, .arguments = pack(fuse_syncfs_in{}), .call = "syncfs 5"});
    fuse_ioctl_in ioctl{};
    ioctl.fh = 9;
    ioctl.cmd = 0x5401;
    add({.title = "ioctl", .opcode = FUSE_IOCTL, .arguments = pack(ioctl), .call = "ioctl 5 9 21505", .error = ENOTTY});
    return all;
}

}  // namespace farhaul::fuse_test
