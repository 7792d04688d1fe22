#include <set>

#include <fcntl.h>

#include "mirror_fixture.hpp"

namespace farhaul::mirror_test {
namespace {

/// A client that reads and writes by itself.
class Files final : public fuse::BackingFiles {
 public:
    std::int32_t open(int fd) override {
        struct stat stat{};
        EXPECT_EQ(::fstat(fd, &stat), 0);
        EXPECT_NE(::fcntl(fd, F_GETFL) & O_PATH, 0) << "an open file would keep its locks and ETXTBSY alive";
        if (refuse) return -EPERM;
        ids.insert(++last);
        return last;
    }
    void close(std::int32_t id) override { EXPECT_EQ(ids.erase(id), 1u) << id; }
    std::set<std::int32_t> ids;
    std::int32_t last = 0;
    bool refuse = false;
};

constexpr std::uint32_t kDirect = FOPEN_DIRECT_IO, kPassed = fuse::abi::kOpenPassthrough;

struct Opened {
    std::uint64_t handle;
    std::uint32_t flags;
    std::int32_t id;
};
Opened open(Mounted& mount, std::uint64_t node, int flags) {
    const auto reply = mount->open(node, flags);
    EXPECT_EQ(reply.error, 0);
    const auto out = reply.as<fuse::abi::OpenOut>();
    return {out.fh, out.open_flags & (kDirect | kPassed), out.backing_id};
}

TEST(MirrorPassthrough, OpensOfOneInodeShareAnIdUntilTheLastIsClosed) {
    Scratch scratch;
    put(scratch.path("f"), "text");
    Files files;
    Mounted mount({.directory = scratch.path()}, {}, 0, &files);
    const auto node = mount->lookup(kRoot, "f").node();
    for (int round = 1; round <= 2; ++round) {
        const Opened first = open(mount, node, O_RDONLY), second = open(mount, node, O_RDWR);
        EXPECT_EQ(first.flags, kPassed);
        EXPECT_EQ(second.flags, kPassed);
        EXPECT_EQ(first.id, round);
        EXPECT_EQ(second.id, round);
        EXPECT_EQ(mount->release(node, first.handle).error, 0);
        EXPECT_EQ(files.ids.size(), 1u);
        EXPECT_EQ(mount->read(node, second.handle, 0, 10).text(), "text") << "still served, should it come";
        EXPECT_EQ(mount->release(node, second.handle).error, 0);
        EXPECT_TRUE(files.ids.empty());
    }
}

TEST(MirrorPassthrough, NeverWhileTheClientHasPagesOfItsOwn) {
    Scratch scratch;
    put(scratch.path("f"), "text");
    Files files;
    Mounted mount({.directory = scratch.path()}, {}, 0, &files);
    const auto node = mount->lookup(kRoot, "f").node();
    files.refuse = true;
    const Opened cached = open(mount, node, O_RDONLY);
    EXPECT_EQ(cached.flags, 0u);
    files.refuse = false;
    const Opened second = open(mount, node, O_RDONLY);
    EXPECT_EQ(second.flags, 0u);
    mount->release(node, cached.handle);
    EXPECT_EQ(open(mount, node, O_RDONLY).flags, 0u) << "one is open still";
    mount->release(node, second.handle);
}

TEST(MirrorPassthrough, WritesThatOnlyTheServerDoesRightComeToIt) {
    Scratch scratch;
    put(scratch.path("f"), "text");
    Files files;
    Mounted mount({.directory = scratch.path()}, {}, 0, &files);
    const auto node = mount->lookup(kRoot, "f").node();
    EXPECT_EQ(open(mount, node, O_WRONLY | O_APPEND).flags, kDirect | kPassed);
    ASSERT_EQ(::chmod(scratch.path("f").c_str(), 04755), 0);
    EXPECT_EQ(open(mount, node, O_WRONLY).flags, kDirect | kPassed);
    EXPECT_EQ(open(mount, node, O_RDONLY).flags, kPassed);
}

TEST(MirrorPassthrough, NotWithOptionsThatArePromisesOfEachWrite) {
    Scratch scratch;
    for (const MirrorOptions& options :
         {MirrorOptions{.directory = scratch.path(), .direct_io = true},
          MirrorOptions{.directory = scratch.path(), .sync = MirrorOptions::Sync::kAlways},
          MirrorOptions{.directory = scratch.path(), .sync = MirrorOptions::Sync::kNever}}) {
        Files files;
        Mounted mount(options, {}, 0, &files);
        const auto made = mount->create(kRoot, "f", O_RDWR);
        EXPECT_EQ(made.error, 0);
        EXPECT_EQ(files.last, 0);
        ::unlink(scratch.path("f").c_str());
    }
    Files files;
    Mounted mount({.directory = scratch.path()}, {}, 0, &files);
    EXPECT_EQ(mount->create(kRoot, "f", O_RDWR).error, 0);
    EXPECT_EQ(files.last, 1);
}

}  // namespace
}  // namespace farhaul::mirror_test
