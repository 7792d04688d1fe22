#include <atomic>
#include <thread>

#include <fcntl.h>

#include "mirror_fixture.hpp"

namespace farhaul::mirror_test {
namespace {

std::string pattern(std::size_t size, unsigned seed = 1) {
    std::string text(size, '\0');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>((i * 131 + i / 4096 * 7 + seed) & 0xff);
    return text;
}

TEST(MirrorData, ReadsAndWritesInAnyPieces) {
    Scratch scratch;
    const std::string text = pattern(100'003);
    for (const std::size_t piece : {std::size_t{0}, std::size_t{61}, std::size_t{4096}}) {
        Mounted mount(scratch);
        mount->piece = piece;
        const auto made = mount->create(kRoot, "f" + std::to_string(piece), O_RDWR);
        ASSERT_EQ(made.error, 0);
        const auto handle = Client::created_handle(made);
        const auto wrote = mount->write(made.node(), handle, 5, text);
        ASSERT_EQ(wrote.error, 0);
        EXPECT_EQ(Client::written(wrote), text.size());
        EXPECT_EQ(get(scratch.path("f" + std::to_string(piece))), std::string(5, '\0') + text);
        const auto read = mount->read(made.node(), handle, 5, 200'000);
        ASSERT_EQ(read.error, 0);
        EXPECT_EQ(read.text(), text);
        EXPECT_EQ(mount->read(made.node(), handle, 200'000, 4096).data.size(), 0u);
        EXPECT_EQ(mount->fsync(made.node(), handle).error, 0);
        EXPECT_EQ(mount->release(made.node(), handle).error, 0);
        EXPECT_EQ(mount->read(made.node(), handle, 0, 1).error, EBADF) << "a handle that was released";
    }
}

/// The same requests by a ring, by system calls, past the page cache and with every write on disk.
TEST(MirrorData, RingAndDirectAgree) {
    Scratch scratch;
    auto ring = io::Ring::create(64);
    if (!ring) GTEST_SKIP() << "no io_uring here: " << ring.error().message;
    for (const bool direct : {false, true}) {
        for (const auto sync : {MirrorOptions::Sync::kAsAsked, MirrorOptions::Sync::kAlways}) {
            Mounted mount(MirrorOptions{.directory = scratch.path(), .direct_io = direct, .sync = sync});
            const auto made = mount->create(kRoot, "f", O_RDWR);
            ASSERT_EQ(made.error, 0);
            const auto handle = Client::created_handle(made);
            const std::string text = pattern(70'001, direct ? 2 : 3);
            const auto through_ring = [&](std::uint32_t opcode, const Bytes& arguments, std::size_t room) {
                RingRequest request(mount->build(opcode, made.node(), arguments), sizeof(fuse_out_header) + room,
                                    **ring);
                mount.session().handle(request);
                for (int i = 0; i < 1000 && !request.ended(); ++i) (*ring)->submit_and_reap(true);
                EXPECT_TRUE(request.ended());
                return request.reply();
            };
            Bytes arguments;
            fuse_write_in write{};
            write.fh = handle;
            write.size = static_cast<std::uint32_t>(text.size());
            fuse_test::append(arguments, write);
            const auto bytes = fuse_test::bytes_of(text);
            arguments.insert(arguments.end(), bytes.begin(), bytes.end());
            const auto wrote = through_ring(FUSE_WRITE, arguments, 64);
            ASSERT_EQ(wrote.error, 0);
            EXPECT_EQ(Client::written(wrote), text.size());

            arguments.clear();
            fuse_fsync_in flush{};
            flush.fh = handle;
            fuse_test::append(arguments, flush);
            EXPECT_EQ(through_ring(FUSE_FSYNC, arguments, 64).error, 0);

            // Once from memory and once from the disk.
            for (const bool cold : {false, true}) {
                if (cold) {
                    const int fd = ::open(scratch.path("f").c_str(), O_RDONLY | O_CLOEXEC);
                    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
                    ::close(fd);
                }
                arguments.clear();
                fuse_read_in read{};
                read.fh = handle;
                read.size = 128 << 10;
                fuse_test::append(arguments, read);
                const auto got = through_ring(FUSE_READ, arguments, read.size);
                ASSERT_EQ(got.error, 0);
                EXPECT_EQ(got.text(), text) << "direct " << direct << " cold " << cold;
            }
            mount->release(made.node(), handle);
            EXPECT_EQ(mount->unlink(kRoot, "f").error, 0);
        }
    }
}

TEST(MirrorData, TwoClientsAppendAndNoByteIsLost) {
    Scratch scratch;
    put(scratch.path("log"), "");
    constexpr int kThreads = 2, kLines = 2000;
    Mounted mounts[kThreads] = {Mounted(scratch), Mounted(scratch)};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
            Client& client = mounts[i].client();
            const auto node = client.lookup(kRoot, "log").node();
            const auto handle = client.open(node, O_WRONLY | O_APPEND).handle();
            const std::string line(15, static_cast<char>('a' + i));
            for (int k = 0; k < kLines; ++k) {
                fuse_write_in in{};
                in.fh = handle;
                in.size = 16;
                in.flags = O_WRONLY | O_APPEND;  // at an offset that is long out of date
                Bytes arguments;
                fuse_test::append(arguments, in);
                const auto data = fuse_test::bytes_of(line + "\n");
                arguments.insert(arguments.end(), data.begin(), data.end());
                EXPECT_EQ(client.call(FUSE_WRITE, node, arguments).error, 0);
            }
        });
    }
    for (auto& thread : threads) thread.join();
    const std::string text = get(scratch.path("log"));
    EXPECT_EQ(text.size(), 16u * kThreads * kLines);
    int lines[kThreads] = {};
    for (std::size_t at = 0; at + 16 <= text.size(); at += 16) {
        const char c = text[at];
        ASSERT_EQ(text.substr(at, 16), std::string(15, c) + "\n");
        ++lines[c - 'a'];
    }
    EXPECT_EQ(lines[0], kLines);
    EXPECT_EQ(lines[1], kLines);
}

TEST(MirrorData, WritebackReadsWriteOnlyFilesAndKeepsOffsets) {
    Scratch scratch;
    put(scratch.path("f"), "0123456789");
    Mounted mount(MirrorOptions{.directory = scratch.path()}, {.writeback_cache = true});
    const auto node = mount->lookup(kRoot, "f").node();
    const auto handle = mount->open(node, O_WRONLY | O_APPEND).handle();
    EXPECT_EQ(mount->read(node, handle, 0, 100).text(), "0123456789") << "the kernel reads through it";
    fuse_write_in in{};
    in.fh = handle;
    in.offset = 4;
    in.size = 2;
    in.flags = O_WRONLY | O_APPEND;
    Bytes arguments;
    fuse_test::append(arguments, in);
    fuse_test::append(arguments, std::array{'x', 'y'});
    EXPECT_EQ(mount->call(FUSE_WRITE, node, arguments).error, 0);
    EXPECT_EQ(get(scratch.path("f")), "0123xy6789");
}

TEST(MirrorData, TheCreatorOfAReadOnlyFileWrites) {
    Scratch scratch;
    Mounted mount(scratch);
    mount->uid = ::geteuid() == 0 ? 1234 : ::geteuid();
    ::chmod(scratch.path().c_str(), 0777);
    const auto made = mount->create(kRoot, "f", O_RDWR | O_EXCL, 0444);
    ASSERT_EQ(made.error, 0);
    EXPECT_EQ(mount->write(made.node(), Client::created_handle(made), 0, "text").error, 0);
    EXPECT_EQ(get(scratch.path("f")), "text");
}

TEST(MirrorData, OldDescriptorsOutliveTheirNames) {
    Scratch scratch;
    for (const auto handles : {MirrorOptions::FileHandles::kAutomatic, MirrorOptions::FileHandles::kNever,
                               MirrorOptions::FileHandles::kAlways}) {
        if (handles == MirrorOptions::FileHandles::kAlways &&
            !backend::make_mirror({.directory = scratch.path(), .file_handles = handles}))
            continue;  // not allowed to
        for (const bool by_rename : {false, true}) {
            Mounted mount(MirrorOptions{.directory = scratch.path(), .file_handles = handles});
            put(scratch.path("old"), "before");
            put(scratch.path("new"), "other");
            const auto node = mount->lookup(kRoot, "old").node();
            const auto handle = mount->open(node, O_RDWR).handle();
            if (by_rename) {
                ASSERT_EQ(mount->rename(kRoot, "new", kRoot, "old").error, 0);
            } else {
                ASSERT_EQ(mount->unlink(kRoot, "old").error, 0);
            }
            EXPECT_EQ(mount->write(node, handle, 0, "AFTER").error, 0);
            EXPECT_EQ(mount->read(node, handle, 0, 100).text(), "AFTERe");
            for (const bool with_handle : {true, false}) {
                fuse_setattr_in change{};
                change.valid = FATTR_MODE | FATTR_MTIME | FATTR_SIZE | (with_handle ? FATTR_FH : 0u);
                change.fh = handle;
                change.mode = with_handle ? 0640 : 0600;
                change.mtime = 1000;
                change.size = 3;
                const auto changed = mount->setattr(node, change);
                ASSERT_EQ(changed.error, 0) << "handle " << with_handle;
                EXPECT_EQ(changed.attr().mode & 0777, change.mode);
                EXPECT_EQ(changed.attr().mtime, 1000u);
                EXPECT_EQ(changed.attr().size, 3u);
                EXPECT_EQ(changed.attr().nlink, 0u);
            }
            EXPECT_EQ(mount->getattr(node).attr().size, 3u);
            if (by_rename) {
                EXPECT_EQ(get(scratch.path("old")), "other");
            }
            mount->release(node, handle);
            fs::remove(scratch.path("old"));
            fs::remove(scratch.path("new"));
        }
    }
}

TEST(MirrorData, EndsSuidAndSgidWhenTold) {
    Scratch scratch;
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    Mounted mount(scratch);
    struct Case {
        std::uint32_t before, after;
    };
    for (const auto [before, after] : {Case{06755, 0755}, Case{04755, 0755}, Case{02745, 02745}, Case{0644, 0644}}) {
        put(scratch.path("f"), "text");
        const auto node = mount->lookup(kRoot, "f").node();
        const auto handle = mount->open(node, O_RDWR).handle();
        const auto mode = [&] { return stat_of(scratch.path("f")).st_mode & 07777; };
        ::chmod(scratch.path("f").c_str(), before);
        mount->write(node, handle, 0, "kept");
        EXPECT_EQ(mode(), before) << "nobody said so";
        EXPECT_EQ(mount->write(node, handle, 0, fuse_test::bytes_of("gone"), FUSE_WRITE_KILL_SUIDGID).error, 0);
        EXPECT_EQ(mode(), after);
        ::chmod(scratch.path("f").c_str(), before);
        fuse_setattr_in change{};
        change.valid = FATTR_SIZE | FATTR_KILL_SUIDGID;
        change.size = 1;
        EXPECT_EQ(mount->setattr(node, change).error, 0);
        EXPECT_EQ(mode(), after);
        ::chmod(scratch.path("f").c_str(), before);
        EXPECT_EQ(mount
                      ->call_with(FUSE_OPEN, node,
                                  fuse_open_in{.flags = O_RDWR | O_TRUNC, .open_flags = FUSE_OPEN_KILL_SUIDGID})
                      .error,
                  0);
        EXPECT_EQ(mode(), after);
        fs::remove(scratch.path("f"));
    }
}

TEST(MirrorData, SparseFilesOfEightTebibytes) {
    Scratch scratch;
    Mounted mount(scratch);
    const auto made = mount->create(kRoot, "big", O_RDWR);
    const auto node = made.node(), handle = Client::created_handle(made);
    constexpr std::uint64_t kFar = (std::uint64_t{8} << 40) - 8192;
    ASSERT_EQ(mount->write(node, handle, kFar, "end").error, 0);
    EXPECT_EQ(mount->getattr(node).attr().size, kFar + 3);
    EXPECT_LT(mount->getattr(node).attr().blocks, 1000u);
    EXPECT_EQ(mount->read(node, handle, kFar, 10).text(), "end");
    const auto seek = [&](std::uint64_t offset, std::uint32_t whence) {
        return mount->call_with(FUSE_LSEEK, node,
                                fuse_lseek_in{.fh = handle, .offset = offset, .whence = whence, .padding = 0});
    };
    EXPECT_EQ(seek(0, SEEK_DATA).as<fuse_lseek_out>().offset, kFar);
    EXPECT_EQ(seek(0, SEEK_HOLE).as<fuse_lseek_out>().offset, 0u);
    EXPECT_EQ(seek(kFar + 3, SEEK_DATA).error, ENXIO);
    const auto punch = mount->call_with(FUSE_FALLOCATE, node,
                                        fuse_fallocate_in{.fh = handle,
                                                          .offset = kFar,
                                                          .length = 4096,
                                                          .mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                                          .padding = 0});
    EXPECT_EQ(punch.error, 0);
    EXPECT_EQ(mount->read(node, handle, kFar, 3).data, Bytes(3));
}

TEST(MirrorData, CopiesBetweenFiles) {
    Scratch scratch;
    Mounted mount(scratch);
    const std::string text = pattern(10'000);
    put(scratch.path("from"), text);
    const auto from = mount->lookup(kRoot, "from").node();
    const auto from_handle = mount->open(from, O_RDONLY).handle();
    const auto to = mount->create(kRoot, "to", O_RDWR);
    fuse_copy_file_range_in in{};
    in.fh_in = from_handle;
    in.off_in = 100;
    in.nodeid_out = to.node();
    in.fh_out = Client::created_handle(to);
    in.len = 9'000;
    const auto copied = mount->call_with(FUSE_COPY_FILE_RANGE, from, in);
    ASSERT_EQ(copied.error, 0);
    EXPECT_EQ(Client::written(copied), 9'000u);
    EXPECT_EQ(get(scratch.path("to")), text.substr(100, 9'000));
}

TEST(MirrorData, ReadOnlyChangesNothing) {
    Scratch scratch;
    put(scratch.path("f"), "text");
    fs::create_directory(scratch.path("d"));
    Mounted mount(MirrorOptions{.directory = scratch.path(), .read_only = true});
    const auto node = mount->lookup(kRoot, "f").node();
    EXPECT_EQ(mount->open(node, O_RDWR).error, EROFS);
    EXPECT_EQ(mount->open(node, O_RDONLY | O_TRUNC).error, EROFS);
    const auto handle = mount->open(node, O_RDONLY).handle();
    EXPECT_EQ(mount->write(node, handle, 0, "x").error, EROFS);
    EXPECT_EQ(mount->create(kRoot, "n", O_RDWR).error, EROFS);
    EXPECT_EQ(mount->create(kRoot, "f", O_RDWR).error, EROFS);
    EXPECT_EQ(mount->tmpfile(kRoot, O_RDWR).error, EROFS);
    EXPECT_EQ(mount->mkdir(kRoot, "n").error, EROFS);
    EXPECT_EQ(mount->symlink(kRoot, "n", "f").error, EROFS);
    EXPECT_EQ(mount->mknod(kRoot, "n", S_IFIFO | 0600).error, EROFS);
    EXPECT_EQ(mount->unlink(kRoot, "f").error, EROFS);
    EXPECT_EQ(mount->rmdir(kRoot, "d").error, EROFS);
    EXPECT_EQ(mount->rename(kRoot, "f", kRoot, "n").error, EROFS);
    EXPECT_EQ(mount->link(node, kRoot, "n").error, EROFS);
    EXPECT_EQ(mount->setxattr(node, "user.a", "v").error, EROFS);
    EXPECT_EQ(mount->removexattr(node, "user.a").error, EROFS);
    fuse_setattr_in change{};
    change.valid = FATTR_MODE;
    EXPECT_EQ(mount->setattr(node, change).error, EROFS);
    EXPECT_EQ(mount->read(node, handle, 0, 10).text(), "text");
    EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()), 2);
}

TEST(MirrorData, TheClientKeepsItsCacheOfWhatDidNotChange) {
    Scratch scratch;
    put(scratch.path("f"), "text");
    std::this_thread::sleep_for(std::chrono::milliseconds(60));  // a change of just now proves nothing
    Mounted mount(scratch);
    const auto node = mount->lookup(kRoot, "f").node();
    const auto flags = [&] { return mount->open(node, O_RDONLY).as<fuse_open_out>().open_flags; };
    EXPECT_EQ(flags() & FOPEN_KEEP_CACHE, 0u);
    EXPECT_NE(flags() & FOPEN_KEEP_CACHE, 0u);
    put(scratch.path("f"), "TEXT");
    EXPECT_EQ(flags() & FOPEN_KEEP_CACHE, 0u);
    Mounted never(MirrorOptions{.directory = scratch.path(), .cache = MirrorOptions::Cache::kNever});
    const auto entry = never->lookup(kRoot, "f").entry();
    EXPECT_EQ(entry.attr_valid + entry.entry_valid + entry.attr_valid_nsec + entry.entry_valid_nsec, 0u);
    EXPECT_NE(never->open(entry.nodeid, O_RDONLY).as<fuse_open_out>().open_flags & FOPEN_DIRECT_IO, 0u);
}

}  // namespace
}  // namespace farhaul::mirror_test
