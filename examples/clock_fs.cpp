// A file system to start from: one directory, one file, "time", whose content is the time of day when it is read.
//
//   clock_fs MOUNTPOINT          mounts it; umount MOUNTPOINT, or Ctrl-C, ends it
//
// What a backend does is in src/fuse/file_system.hpp: override what your file system can do, and reply once to each
// request, now or later, on any thread. Not overridden: answered ENOSYS or with a harmless default.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <string>

#include <poll.h>
#include <sys/signalfd.h>

#include "fuse/file_system.hpp"
#include "fuse/session.hpp"
#include "hal/dev_fuse/mount.hpp"

namespace {

using namespace farhaul;
using fuse::Handle;
using fuse::NodeId;
using fuse::Request;

constexpr NodeId kTimeNode = 2;  // the root is fuse::kRootNode, 1; other numbers are ours to choose

class ClockFileSystem final : public fuse::FileSystem {
 public:
    void lookup(Request& request, NodeId parent, fuse::Name name) override {
        if (parent != fuse::kRootNode) return request.reply_error(ENOTDIR);
        if (name != "time") return request.reply_error(ENOENT);
        fuse::Entry entry;
        entry.node = kTimeNode;
        entry.attributes = attributes(kTimeNode);
        entry.entry_timeout = Duration::from_seconds(3600);  // the name stays; the attributes are asked for each time
        request.reply_entry(entry);
    }

    void getattr(Request& request, NodeId node, const Handle*) override {
        if (node != fuse::kRootNode && node != kTimeNode) return request.reply_error(ESTALE);
        request.reply_attributes(attributes(node), Duration{});
    }

    void open(Request& request, NodeId node, std::uint32_t flags, bool) override {
        if (node != kTimeNode) return request.reply_error(EISDIR);
        if ((flags & O_ACCMODE) != O_RDONLY) return request.reply_error(EACCES);
        request.reply_open({.direct_io = true});  // the content changes by itself: no caching, no trust in the size
    }

    void read(Request& request, const fuse::ReadRequest& read) override {
        const std::string text = now();
        const auto bytes = std::as_bytes(std::span(text));
        // reply_bytes() cuts what does not fit; data_out() with reply_data() would save the copy.
        request.reply_bytes(read.offset < bytes.size() ? bytes.subspan(read.offset) : std::span<const std::byte>());
    }

    void readdir(Request& request, NodeId node, Handle, std::uint64_t offset) override {
        if (node != fuse::kRootNode) return request.reply_error(ENOTDIR);
        fuse::DirectoryWriter directory(request);
        // The last argument is where a later call goes on: behind this entry.
        if (offset < 1) directory.add(".", fuse::kRootNode, S_IFDIR >> 12, 1);
        if (offset < 2) directory.add("..", fuse::kRootNode, S_IFDIR >> 12, 2);
        if (offset < 3) directory.add("time", kTimeNode, S_IFREG >> 12, 3);
        request.reply_directory(directory);
    }

    // Entries are not looked up while listing (DirectoryWriter::add_plus).
    fuse::Wishes wishes() const override { return {.readdirplus = false}; }

 private:
    static std::string now() {
        char text[64];
        const std::time_t time = std::time(nullptr);
        std::tm parts{};
        return {text, std::strftime(text, sizeof(text), "%F %T %Z\n", ::localtime_r(&time, &parts))};
    }
    static fuse::Attributes attributes(NodeId node) {
        fuse::Attributes attributes;
        attributes.ino = node;
        attributes.mode = node == fuse::kRootNode ? S_IFDIR | 0555 : S_IFREG | 0444;
        attributes.nlink = node == fuse::kRootNode ? 2 : 1;
        attributes.size = node == kTimeNode ? now().size() : 0;
        return attributes;
    }
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: clock_fs MOUNTPOINT\n");
        return 2;
    }
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before there are threads, which inherit it

    ClockFileSystem file_system;
    fuse::Session session(file_system);
    auto mount = hal::Mount::create(session, {.mountpoint = argv[1], .source = "clock"});
    if (!mount) {
        std::fprintf(stderr, "clock_fs: %s\n", mount.error().message.c_str());
        return 1;
    }
    pollfd events[] = {{.fd = signalfd(-1, &signals, SFD_CLOEXEC), .events = POLLIN, .revents = 0},
                       {.fd = (*mount)->ended_fd(), .events = POLLIN, .revents = 0}};
    while (poll(events, 2, -1) < 0 && errno == EINTR) {
    }
    (*mount)->unmount();
}
