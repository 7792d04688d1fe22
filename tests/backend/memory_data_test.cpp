// What is in files: bytes, holes, space, appends.
#include <thread>

#include <linux/falloc.h>
#include <unistd.h>

#include "memory_support.hpp"

namespace farhaul::backend {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kTebibyte = std::uint64_t{1} << 40;

class MemoryDataTest : public MemoryTest {};

TEST_F(MemoryDataTest, ReadsBackWhatWasWritten) {
    const File file = create("f");
    for (const std::size_t piece : {0, 1, 7, 4096}) {
        client->piece = piece;
        std::string text(10'000, 'x');
        for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + (i * 7 + piece) % 26);
        ASSERT_EQ(Client::written(client->write(file.node, file.handle, 123, text)), text.size());
        EXPECT_EQ(content(file, 123, 10'000), text);
        EXPECT_EQ(content(file, 100, 33), std::string(23, '\0') + text.substr(0, 10));
        EXPECT_EQ(content(file, 10'120, 4096), text.substr(9997));
    }
    client->piece = 0;
    EXPECT_EQ(content(file, 20'000, 10), "");
    EXPECT_EQ(attr(file.node).size, 10'123u);
    EXPECT_EQ(attr(file.node).blocks, 3u * 8);
}

TEST_F(MemoryDataTest, HolesAreZerosAndCostNothing) {
    const File file = create("f");
    client->write(file.node, file.handle, 10 * kPage + 5, "tail");
    EXPECT_EQ(attr(file.node).blocks, 8u);
    EXPECT_EQ(content(file, 10 * kPage, 9), std::string(5, '\0') + "tail");
    EXPECT_EQ(content(file, 0, 100), std::string(100, '\0'));
    EXPECT_EQ(seek(file, 0, SEEK_DATA), static_cast<std::int64_t>(10 * kPage));
    EXPECT_EQ(seek(file, 10 * kPage + 2, SEEK_DATA), static_cast<std::int64_t>(10 * kPage + 2));
    EXPECT_EQ(seek(file, 0, SEEK_HOLE), 0);
    EXPECT_EQ(seek(file, 10 * kPage, SEEK_HOLE), static_cast<std::int64_t>(10 * kPage + 9));
    EXPECT_EQ(seek(file, 10 * kPage + 9, SEEK_DATA), -ENXIO);
    EXPECT_EQ(seek(file, 10 * kPage + 9, SEEK_HOLE), -ENXIO);
}

TEST_F(MemoryDataTest, SparseFilesOfEightTebibytes) {
    const File file = create("f");
    ASSERT_EQ(truncate(file.node, 8 * kTebibyte).error, 0);
    ASSERT_EQ(Client::written(client->write(file.node, file.handle, 8 * kTebibyte - 3, "end")), 3u);
    ASSERT_EQ(Client::written(client->write(file.node, file.handle, 5 * kTebibyte, "mid")), 3u);
    EXPECT_EQ(attr(file.node).size, 8 * kTebibyte);
    EXPECT_EQ(attr(file.node).blocks, 16u);
    EXPECT_EQ(seek(file, 0, SEEK_DATA), static_cast<std::int64_t>(5 * kTebibyte));
    EXPECT_EQ(seek(file, 5 * kTebibyte + kPage, SEEK_DATA), static_cast<std::int64_t>(8 * kTebibyte - kPage));
    EXPECT_EQ(content(file, 8 * kTebibyte - 5, 10), std::string(2, '\0') + "end");
    // To the very end of what an offset can say.
    ASSERT_EQ(truncate(file.node, INT64_MAX).error, 0);
    EXPECT_EQ(attr(file.node).size, static_cast<std::uint64_t>(INT64_MAX));
    EXPECT_EQ(fallocate(file, 0, INT64_MAX - 10, 11).error, EFBIG);
    ASSERT_EQ(truncate(file.node, 0).error, 0);
    EXPECT_EQ(attr(file.node).blocks, 0u);
    EXPECT_EQ(statfs().bfree, statfs().blocks);
}

TEST_F(MemoryDataTest, TruncationForgetsTheTail) {
    const File file = create("f");
    client->write(file.node, file.handle, 0, std::string(3 * kPage, 'x'));
    truncate(file.node, kPage + 10);
    EXPECT_EQ(attr(file.node).blocks, 16u);
    truncate(file.node, 3 * kPage);
    EXPECT_EQ(content(file, kPage, 20), std::string(10, 'x') + std::string(10, '\0'));
    EXPECT_EQ(attr(file.node).blocks, 16u);
    EXPECT_EQ(truncate(kRootNode, 0).error, EISDIR);
    EXPECT_EQ(truncate(client->symlink(kRootNode, "l", "t").node(), 0).error, EINVAL);
}

TEST_F(MemoryDataTest, AllocatesAndPunches) {
    const File file = create("f");
    ASSERT_EQ(fallocate(file, 0, 100, 2 * kPage).error, 0);
    EXPECT_EQ(attr(file.node).size, 100 + 2 * kPage);
    EXPECT_EQ(attr(file.node).blocks, 24u);
    EXPECT_EQ(seek(file, 0, SEEK_DATA), -ENXIO) << "reserved, but not data";
    client->write(file.node, file.handle, 0, std::string(3 * kPage, 'x'));
    EXPECT_EQ(attr(file.node).blocks, 24u);
    ASSERT_EQ(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 10, kPage).error, 0);
    EXPECT_EQ(attr(file.node).blocks, 24u) << "no whole page";
    EXPECT_EQ(content(file, 0, 11), std::string(10, 'x') + '\0');
    EXPECT_EQ(content(file, kPage + 9, 2), std::string("\0x", 2));
    ASSERT_EQ(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 10, 2 * kPage).error, 0);
    EXPECT_EQ(attr(file.node).blocks, 16u);
    EXPECT_EQ(seek(file, 0, SEEK_HOLE), static_cast<std::int64_t>(kPage));
    EXPECT_EQ(seek(file, kPage, SEEK_DATA), static_cast<std::int64_t>(2 * kPage));
    ASSERT_EQ(fallocate(file, FALLOC_FL_KEEP_SIZE, 10 * kPage, kPage).error, 0);
    EXPECT_EQ(attr(file.node).size, 3 * kPage);
    EXPECT_EQ(attr(file.node).blocks, 24u);
    truncate(file.node, 3 * kPage);
    EXPECT_EQ(attr(file.node).blocks, 16u) << "as on tmpfs, what was reserved behind the end goes";
    EXPECT_EQ(fallocate(file, FALLOC_FL_PUNCH_HOLE, 0, kPage).error, EOPNOTSUPP);
    EXPECT_EQ(fallocate(file, FALLOC_FL_ZERO_RANGE, 0, kPage).error, EOPNOTSUPP);
    EXPECT_EQ(fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, kPage).error, EOPNOTSUPP);
    EXPECT_EQ(fallocate(file, FALLOC_FL_INSERT_RANGE, 0, kPage).error, EOPNOTSUPP);
    EXPECT_EQ(fallocate(file, 0, 0, 0).error, EINVAL);
}

TEST_F(MemoryDataTest, HolesAcrossChunksAreFound) {
    const File file = create("f");
    const std::string megabyte(1 << 20, 'x');
    client->write(file.node, file.handle, 0, megabyte);
    client->write(file.node, file.handle, 3 << 20, megabyte);
    EXPECT_EQ(seek(file, 5, SEEK_HOLE), 1 << 20);
    EXPECT_EQ(seek(file, 1 << 20, SEEK_DATA), 3 << 20);
    EXPECT_EQ(seek(file, 3 << 20, SEEK_HOLE), 4 << 20);
    ASSERT_EQ(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kPage, (4 << 20) - 2 * kPage).error, 0);
    EXPECT_EQ(attr(file.node).blocks, 16u);
    EXPECT_EQ(seek(file, kPage, SEEK_DATA), static_cast<std::int64_t>((4 << 20) - kPage));
}

TEST_F(MemoryDataTest, SpaceEndsAndWhatWasAcceptedStays) {
    start({.size = 16 * kPage});
    const File file = create("f");
    std::string text(20 * kPage, 'x');
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 23);
    EXPECT_EQ(Client::written(client->write(file.node, file.handle, 0, text)), 16 * kPage) << "as much as fits";
    EXPECT_EQ(client->write(file.node, file.handle, 16 * kPage, "x").error, ENOSPC);
    EXPECT_EQ(attr(file.node).size, 16 * kPage);
    EXPECT_EQ(content(file, 0, 20 * kPage), text.substr(0, 16 * kPage));
    EXPECT_EQ(Client::written(client->write(file.node, file.handle, 5, "y")), 1u) << "a page that is there";
    const File other = create("g");
    EXPECT_EQ(fallocate(other, 0, 0, 1).error, ENOSPC);
    EXPECT_EQ(client->symlink(kRootNode, "long", std::string(200, 't')).error, ENOSPC);
    EXPECT_EQ(statfs().bfree, 0u);
    // An open file without a name keeps its space until it is closed and forgotten.
    client->unlink(kRootNode, "f");
    EXPECT_EQ(client->write(other.node, other.handle, 0, "x").error, ENOSPC);
    client->release(file.node, file.handle);
    client->forget(file.node, 1);
    EXPECT_EQ(statfs().bfree, 16u);
    EXPECT_EQ(fallocate(other, 0, 0, 17 * kPage).error, ENOSPC);
    EXPECT_EQ(attr(other.node).blocks, 0u) << "all or nothing";
    EXPECT_EQ(fallocate(other, 0, 0, 16 * kPage).error, 0);
    EXPECT_EQ(Client::written(client->write(other.node, other.handle, 0, text)), 16 * kPage) << "reserved";
}

TEST_F(MemoryDataTest, InodesEnd) {
    start({.max_inodes = 3});
    create("a");
    create("b");
    EXPECT_EQ(client->create(kRootNode, "c", O_RDWR).error, ENOSPC);
    EXPECT_EQ(client->mkdir(kRootNode, "c").error, ENOSPC);
    EXPECT_EQ(client->link(client->lookup(kRootNode, "a").node(), kRootNode, "c").error, ENOSPC);
    EXPECT_EQ(statfs().ffree, 0u);
    EXPECT_EQ(names(kRootNode), (std::vector<std::string>{".", "..", "b", "a"}));
}

TEST_F(MemoryDataTest, CopiesRanges) {
    const File from = create("from");
    const File to = create("to");
    client->write(from.node, from.handle, 2 * kPage, "hello world");
    const auto copy = [&](const File& in, std::uint64_t in_at, const File& out, std::uint64_t out_at,
                          std::uint64_t size) {
        fuse_copy_file_range_in request{};
        request.fh_in = in.handle;
        request.off_in = in_at;
        request.nodeid_out = out.node;
        request.fh_out = out.handle;
        request.off_out = out_at;
        request.len = size;
        return client->call_with(FUSE_COPY_FILE_RANGE, in.node, request);
    };
    EXPECT_EQ(Client::written(copy(from, kPage, to, 3, 1 << 20)), kPage + 11);
    EXPECT_EQ(attr(to.node).size, kPage + 14);
    EXPECT_EQ(content(to, kPage + 2, 100), '\0' + std::string("hello world"));
    EXPECT_EQ(Client::written(copy(from, 3 * kPage, to, 0, 10)), 0u);
    EXPECT_EQ(copy(to, 0, to, 5, 10).error, EINVAL);
    EXPECT_EQ(Client::written(copy(to, kPage + 3, to, 0, 5)), 5u);
    EXPECT_EQ(content(to, 0, 5), "hello");
}

TEST_F(MemoryDataTest, ReadOnlyModeDoesNotStopTheCreator) {
    const File file = create("f", 0444);
    EXPECT_EQ(Client::written(client->write(file.node, file.handle, 0, "mine")), 4u);
    EXPECT_EQ(content(file), "mine");
}

TEST_F(MemoryDataTest, DescriptorsSayWhatMayBeWritten) {
    const File file = create("f");
    const std::uint64_t reader = client->open(file.node, O_RDONLY).handle();
    EXPECT_EQ(client->write(file.node, reader, 0, "x").error, EBADF);
    // A kernel with a writeback cache reads through descriptors for writing, and writes back through any.
    const std::uint64_t writer = client->open(file.node, O_WRONLY).handle();
    EXPECT_EQ(client->read(file.node, writer, 0, 10).error, 0);
    EXPECT_EQ(client->write(file.node, reader, 0, fuse_test::bytes_of("x"), FUSE_WRITE_CACHE).error, 0);
}

TEST_F(MemoryDataTest, OpenTruncates) {
    const File file = create("f", 06755);
    client->write(file.node, file.handle, 0, "old");
    seconds = 2000;
    EXPECT_EQ(client->open(file.node, O_RDWR | O_TRUNC).error, 0);
    EXPECT_EQ(attr(file.node).size, 0u);
    EXPECT_EQ(attr(file.node).mtime, 2000u);
    EXPECT_EQ(attr(file.node).mode & 07777, 06755u);
    client->call_with(FUSE_OPEN, file.node,
                      fuse_open_in{.flags = O_RDWR | O_TRUNC, .open_flags = FUSE_OPEN_KILL_SUIDGID});
    EXPECT_EQ(attr(file.node).mode & 07777, 0755u);
}

TEST_F(MemoryDataTest, AppendsFromTwoThreadsLoseNothing) {
    const File file = create("f");
    constexpr int kEach = 2000;
    const auto append = [&](char letter) {
        Client own(*session);
        const std::uint64_t handle = own.open(file.node, O_WRONLY | O_APPEND).handle();
        for (int i = 0; i < kEach; ++i) {
            fuse_write_in in{};
            in.fh = handle;
            in.offset = 0;  // an old idea of the end
            in.size = 10;
            in.flags = O_WRONLY | O_APPEND;
            Bytes arguments;
            fuse_test::append(arguments, in);
            const Bytes data = fuse_test::bytes_of(std::string(10, letter));
            arguments.insert(arguments.end(), data.begin(), data.end());
            ASSERT_EQ(Client::written(own.call(FUSE_WRITE, file.node, arguments)), 10u);
        }
    };
    std::thread a(append, 'a');
    std::thread b(append, 'b');
    a.join();
    b.join();
    const std::string all = content(file, 0, 20 * kEach + 1);
    ASSERT_EQ(all.size(), 20u * kEach);
    int seen_a = 0;
    for (std::size_t at = 0; at < all.size(); at += 10) {
        ASSERT_EQ(all.substr(at, 10), std::string(10, all[at]));
        seen_a += all[at] == 'a' ? 1 : 0;
    }
    EXPECT_EQ(seen_a, kEach);
}

TEST_F(MemoryDataTest, ThreadsOnManyFilesAgree) {
    const auto work = [&](int number) {
        Client own(*session);
        for (int i = 0; i < 300; ++i) {
            const std::string name = std::to_string(number) + "." + std::to_string(i % 10);
            const Reply made = own.create(kRootNode, name, O_RDWR);
            ASSERT_EQ(made.error, 0);
            const std::uint64_t handle = Client::created_handle(made);
            ASSERT_EQ(Client::written(own.write(made.node(), handle, 0, name)), name.size());
            own.list(kRootNode, 4096, true);
            own.rename(kRootNode, name, kRootNode, "shared");
            ASSERT_EQ(own.read(made.node(), handle, 0, 100).text(), name);
            own.release(made.node(), handle);
            own.forget(made.node(), 1);
        }
    };
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number) threads.emplace_back(work, number);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(names(kRootNode), (std::vector<std::string>{".", "..", "shared"}));
}

}  // namespace
}  // namespace farhaul::backend
