// Names, nodes, attributes: listings under change, renames, links, forged numbers.
#include <algorithm>

#include <linux/fs.h>
#include <sys/stat.h>

#include "memory_support.hpp"

namespace farhaul::backend {
namespace {

using Names = std::vector<std::string>;

class MemoryNamespaceTest : public MemoryTest {};

TEST_F(MemoryNamespaceTest, KindsOfFiles) {
    const Reply device = client->mknod(kRootNode, "dev", S_IFCHR | 0600, 0x103);
    EXPECT_EQ(device.entry().attr.mode, S_IFCHR | 0600u);
    EXPECT_EQ(device.entry().attr.rdev, 0x103u);
    EXPECT_EQ(client->mknod(kRootNode, "pipe", S_IFIFO | 0644).entry().attr.mode, S_IFIFO | 0644u);
    EXPECT_EQ(client->mknod(kRootNode, "socket", S_IFSOCK | 0644).entry().attr.mode, S_IFSOCK | 0644u);
    EXPECT_EQ(client->mknod(kRootNode, "file", S_IFREG | 0644).entry().attr.nlink, 1u);
    EXPECT_EQ(client->mknod(kRootNode, "d", S_IFDIR | 0644).error, EINVAL);
    EXPECT_EQ(client->mknod(kRootNode, "file", S_IFREG | 0644).error, EEXIST);
    const Reply link = client->symlink(kRootNode, "link", "where/it/goes");
    EXPECT_EQ(link.entry().attr.mode, S_IFLNK | 0777u);
    EXPECT_EQ(link.entry().attr.size, 13u);
    EXPECT_EQ(client->readlink(link.node()).text(), "where/it/goes");
    EXPECT_EQ(client->readlink(device.node()).error, EINVAL);
    const Reply directory = client->mkdir(kRootNode, "dir");
    EXPECT_EQ(directory.entry().attr.nlink, 2u);
    EXPECT_EQ(attr(kRootNode).nlink, 3u);
    EXPECT_EQ(client->open(directory.node(), O_RDONLY).error, EISDIR);
    EXPECT_EQ(client->open(link.node(), O_RDONLY).error, ELOOP);
    EXPECT_EQ(client->opendir(link.node()).error, ENOTDIR);
    EXPECT_EQ(client->lookup(link.node(), "x").error, ENOTDIR);
    EXPECT_EQ(client->unlink(kRootNode, "dir").error, EISDIR);
    EXPECT_EQ(client->rmdir(kRootNode, "pipe").error, ENOTDIR);
    EXPECT_EQ(client->unlink(kRootNode, "none").error, ENOENT);
    EXPECT_EQ(client->create(kRootNode, "dir", O_RDWR).error, EISDIR);
    EXPECT_EQ(client->create(kRootNode, "file", O_RDWR | O_EXCL).error, EEXIST);
    EXPECT_EQ(client->mkdir(kRootNode, std::string(255, 'n')).error, 0);
    EXPECT_EQ(client->mkdir(kRootNode, std::string(256, 'n')).error, ENAMETOOLONG);
}

TEST_F(MemoryNamespaceTest, DirectoriesComeAndGo) {
    const std::uint64_t outer = client->mkdir(kRootNode, "outer").node();
    const std::uint64_t inner = client->mkdir(outer, "inner").node();
    EXPECT_EQ(client->rmdir(kRootNode, "outer").error, ENOTEMPTY);
    EXPECT_EQ(client->lookup(inner, "..").node(), outer);
    EXPECT_EQ(client->rmdir(outer, "inner").error, 0);
    EXPECT_EQ(attr(outer).nlink, 2u);
    EXPECT_EQ(attr(inner).nlink, 0u);
    EXPECT_EQ(client->create(inner, "x", O_RDWR).error, ENOENT);
    EXPECT_EQ(client->rename(kRootNode, "outer", inner, "x").error, ENOENT);
    const std::uint64_t handle = client->opendir(inner).handle();
    EXPECT_EQ(client->readdir(inner, handle, 0, 4096).error, ENOENT);
}

TEST_F(MemoryNamespaceTest, OpenFilesOutliveTheirNames) {
    const File file = create("f");
    client->write(file.node, file.handle, 0, "data");
    create("g");
    EXPECT_EQ(client->rename(kRootNode, "g", kRootNode, "f").error, 0);
    EXPECT_EQ(attr(file.node).nlink, 0u);
    EXPECT_EQ(content(file), "data");
    EXPECT_EQ(client->write(file.node, file.handle, 4, "more").error, 0);
    fuse_setattr_in in{};
    in.valid = FATTR_MODE | FATTR_FH | FATTR_MTIME;
    in.fh = file.handle;
    in.mode = 0600;
    in.mtime = 77;
    EXPECT_EQ(client->setattr(file.node, in).error, 0);
    EXPECT_EQ(attr(file.node).mode, S_IFREG | 0600u);
    EXPECT_EQ(attr(file.node).mtime, 77u);
    EXPECT_EQ(content(file), "datamore");
    EXPECT_EQ(client->link(file.node, kRootNode, "back").error, ENOENT);
    client->forget(file.node, UINT64_MAX);
    EXPECT_EQ(content(file), "datamore") << "an open file keeps its node";
    client->release(file.node, file.handle);
    EXPECT_EQ(client->getattr(file.node).error, ESTALE);
}

TEST_F(MemoryNamespaceTest, LinksAndNamelessFiles) {
    const File file = create("a");
    seconds = 1500;
    EXPECT_EQ(client->link(file.node, kRootNode, "b").entry().attr.nlink, 2u);
    EXPECT_EQ(attr(file.node).ctime, 1500u);
    EXPECT_EQ(attr(file.node).mtime, 1000u);
    EXPECT_EQ(client->link(file.node, kRootNode, "b").error, EEXIST);
    EXPECT_EQ(client->link(client->mkdir(kRootNode, "d").node(), kRootNode, "e").error, EPERM);
    EXPECT_EQ(client->unlink(kRootNode, "a").error, 0);
    EXPECT_EQ(attr(file.node).nlink, 1u);
    const Reply nameless = client->tmpfile(kRootNode, O_RDWR);
    EXPECT_EQ(nameless.entry().attr.nlink, 0u);
    EXPECT_EQ(client->link(nameless.node(), kRootNode, "named").entry().attr.nlink, 1u);
    EXPECT_EQ(client->link(client->tmpfile(kRootNode, O_RDWR | O_EXCL).node(), kRootNode, "no").error, ENOENT);
}

TEST_F(MemoryNamespaceTest, RenameMatrix) {
    const auto directory = [&](std::string_view name) { return client->mkdir(kRootNode, name).node(); };
    const std::uint64_t d = directory("d");
    const std::uint64_t full = directory("full");
    client->mkdir(full, "x");
    directory("empty");
    create("f");
    create("g");
    const auto rename = [&](std::string_view from, std::string_view to, std::uint32_t flags = 0) {
        return client->rename(kRootNode, from, kRootNode, to, flags).error;
    };
    EXPECT_EQ(rename("none", "f"), ENOENT);
    EXPECT_EQ(rename("f", "d"), EISDIR);
    EXPECT_EQ(rename("d", "f"), ENOTDIR);
    EXPECT_EQ(rename("d", "full"), ENOTEMPTY);
    EXPECT_EQ(rename("f", "g", RENAME_NOREPLACE), EEXIST);
    EXPECT_EQ(rename("f", "none", RENAME_EXCHANGE), ENOENT);
    EXPECT_EQ(rename("f", "g", RENAME_EXCHANGE | RENAME_NOREPLACE), EINVAL);
    EXPECT_EQ(rename("f", "g", RENAME_EXCHANGE | RENAME_WHITEOUT), EINVAL);
    EXPECT_EQ(rename("f", "g", 0x80), EINVAL);
    EXPECT_EQ(rename("f", std::string(256, 'n')), ENAMETOOLONG);
    const std::uint64_t x = client->lookup(full, "x").node();
    EXPECT_EQ(client->rename(kRootNode, "full", x, "y").error, EINVAL);
    EXPECT_EQ(client->rename(kRootNode, "full", full, "y").error, EINVAL);
    EXPECT_EQ(client->rename(full, "x", kRootNode, "full").error, ENOTEMPTY);
    EXPECT_EQ(client->rename(full, "x", kRootNode, "full", RENAME_EXCHANGE).error, EINVAL);

    EXPECT_EQ(rename("d", "empty"), 0);
    EXPECT_EQ(client->lookup(kRootNode, "empty").node(), d);
    EXPECT_EQ(attr(kRootNode).nlink, 4u);
    // A directory moves: link counts and ".." follow.
    EXPECT_EQ(client->rename(full, "x", d, "x").error, 0);
    EXPECT_EQ(attr(full).nlink, 2u);
    EXPECT_EQ(attr(d).nlink, 3u);
    EXPECT_EQ(client->lookup(x, "..").node(), d);
    // A file and a directory of different parents change places.
    const std::uint64_t f = client->lookup(kRootNode, "f").node();
    EXPECT_EQ(client->rename(kRootNode, "f", d, "x", RENAME_EXCHANGE).error, 0);
    EXPECT_EQ(client->lookup(d, "x").node(), f);
    EXPECT_EQ(client->lookup(kRootNode, "f").node(), x);
    EXPECT_EQ(attr(d).nlink, 2u);
    EXPECT_EQ(attr(kRootNode).nlink, 5u);
    EXPECT_EQ(client->lookup(x, "..").node(), kRootNode);

    seconds = 3000;
    const std::uint64_t g = client->lookup(kRootNode, "g").node();
    EXPECT_EQ(rename("g", "h", RENAME_WHITEOUT), 0);
    EXPECT_EQ(client->lookup(kRootNode, "h").node(), g);
    const fuse_attr whiteout = client->lookup(kRootNode, "g").entry().attr;
    EXPECT_EQ(whiteout.mode, static_cast<std::uint32_t>(S_IFCHR));
    EXPECT_EQ(whiteout.rdev, 0u);
    EXPECT_EQ(attr(g).ctime, 3000u);
    EXPECT_EQ(attr(kRootNode).mtime, 3000u);
    // Two names of one inode: nothing happens.
    client->link(g, kRootNode, "again");
    EXPECT_EQ(rename("h", "again"), 0);
    EXPECT_EQ(client->lookup(kRootNode, "h").node(), g);
}

TEST_F(MemoryNamespaceTest, ListingsWhileEntriesGo) {
    for (int i = 0; i < 1000; ++i) create("file" + std::to_string(i));
    for (const bool plus : {false, true}) {
        const std::uint64_t handle = client->opendir(kRootNode).handle();
        std::set<std::string> seen;
        std::uint64_t offset = 0;
        int round = 0;
        while (true) {
            const auto entries = Client::entries_of(client->readdir(kRootNode, handle, offset, 1024, plus), plus);
            if (entries.empty()) break;
            for (const auto& entry : entries) EXPECT_TRUE(seen.insert(entry.name).second) << entry.name;
            offset = entries.back().next;
            // What was read goes, as rm -r does, and others come.
            if (entries.back().name != "..") client->unlink(kRootNode, entries.back().name);
            create("new" + std::to_string(++round) + (plus ? "p" : ""));
            client->rename(kRootNode, "file0", kRootNode, "moved");
            client->rename(kRootNode, "moved", kRootNode, "file0");
        }
        for (const std::string& name : names(kRootNode))
            EXPECT_TRUE(seen.contains(name) || name.starts_with("new")) << name;
        client->releasedir(kRootNode, handle);
    }
}

TEST_F(MemoryNamespaceTest, HundredThousandEntries) {
    constexpr int kCount = 100'000;
    start({.max_inodes = kCount + 10});
    for (int i = 0; i < kCount; ++i)
        ASSERT_EQ(client->mknod(kRootNode, "entry" + std::to_string(i), S_IFREG | 0644).error, 0);
    const auto entries = client->list(kRootNode, 1 << 16);
    std::set<std::string> seen;
    for (const auto& entry : entries) seen.insert(entry.name);
    EXPECT_EQ(entries.size(), kCount + 2u);
    EXPECT_EQ(seen.size(), kCount + 2u);
    EXPECT_NE(client->lookup(kRootNode, "entry77777").node(), 0u);
    // Listing and deleting in turn.
    const std::uint64_t handle = client->opendir(kRootNode).handle();
    std::size_t removed = 0;
    for (std::uint64_t offset = 2;;) {
        const auto some = Client::entries_of(client->readdir(kRootNode, handle, offset, 1 << 14), false);
        if (some.empty()) break;
        offset = some.back().next;
        for (const auto& entry : some) removed += client->unlink(kRootNode, entry.name) ? 1 : 0;
    }
    EXPECT_EQ(removed, static_cast<std::size_t>(kCount));
    EXPECT_EQ(names(kRootNode), (Names{".", ".."}));
}

TEST_F(MemoryNamespaceTest, TinyListingsAreNoEnd) {
    create(std::string(255, 'n'));
    const std::uint64_t handle = client->opendir(kRootNode).handle();
    EXPECT_EQ(client->readdir(kRootNode, handle, 2, 64).error, EINVAL);
    EXPECT_EQ(client->readdir(kRootNode, handle, UINT64_MAX, 4096).error, 0);
}

TEST_F(MemoryNamespaceTest, ForgedNumbers) {
    const File file = create("f");
    const std::uint64_t directory = client->opendir(kRootNode).handle();
    for (const std::uint64_t node : {std::uint64_t{999}, UINT64_MAX}) {
        EXPECT_EQ(client->getattr(node).error, ESTALE);
        EXPECT_EQ(client->lookup(node, "x").error, ESTALE);
        EXPECT_EQ(client->open(node, O_RDONLY).error, ESTALE);
        EXPECT_EQ(client->opendir(node).error, ESTALE);
        EXPECT_EQ(client->mkdir(node, "x").error, ESTALE);
        EXPECT_EQ(client->unlink(node, "x").error, ESTALE);
        EXPECT_EQ(client->link(node, kRootNode, "x").error, ESTALE);
        EXPECT_EQ(client->rename(kRootNode, "f", node, "x").error, ESTALE);
        EXPECT_EQ(client->getxattr(node, "user.x", 10).error, ESTALE);
        EXPECT_EQ(client->readlink(node).error, ESTALE);
        client->forget(node, 5);
    }
    for (const std::uint64_t handle : {std::uint64_t{0}, std::uint64_t{999}, UINT64_MAX}) {
        EXPECT_EQ(client->read(file.node, handle, 0, 10).error, EBADF);
        EXPECT_EQ(client->write(file.node, handle, 0, "x").error, EBADF);
        EXPECT_EQ(client->release(file.node, handle).error, EBADF);
        EXPECT_EQ(client->fsync(file.node, handle).error, EBADF);
        EXPECT_EQ(client->flush(file.node, handle).error, EBADF);
        EXPECT_EQ(client->readdir(kRootNode, handle, 0, 4096).error, EBADF);
        EXPECT_EQ(client->setlk(file.node, handle, 1, 0, 1, F_RDLCK).error, EBADF);
        EXPECT_EQ(fallocate({.node = file.node, .handle = handle}, 0, 0, 1).error, EBADF);
    }
    EXPECT_EQ(client->read(kRootNode, file.handle, 0, 10).error, EBADF) << "the handle of another node";
    EXPECT_EQ(client->read(kRootNode, directory, 0, 10).error, EISDIR);
    EXPECT_EQ(client->readdir(file.node, file.handle, 0, 4096).error, ENOTDIR);
    // Counts that the client does not hold.
    client->forget(kRootNode, UINT64_MAX);
    client->forget(file.node, UINT64_MAX);
    EXPECT_EQ(client->lookup(kRootNode, "f").node(), file.node);
    EXPECT_EQ(client->release(file.node, file.handle).error, 0);
    EXPECT_EQ(client->release(file.node, file.handle).error, EBADF);
    EXPECT_EQ(client->unlink(kRootNode, "f").error, 0);
    EXPECT_EQ(client->getattr(file.node).error, 0);
    client->forget(file.node, UINT64_MAX);
    EXPECT_EQ(client->getattr(file.node).error, ESTALE);
    EXPECT_NE(create("f").node, file.node);
}

TEST_F(MemoryNamespaceTest, FilesOutliveTheClient) {
    const File file = create("f");
    client->write(file.node, file.handle, 0, "kept");
    const File gone = create("gone");
    client->unlink(kRootNode, "gone");
    const auto free_before = statfs().ffree;
    EXPECT_EQ(client->call(FUSE_DESTROY, 0, {}).error, 0);
    ASSERT_EQ(client->init().error, 0);
    EXPECT_EQ(client->getattr(gone.node).error, ESTALE);
    EXPECT_EQ(statfs().ffree, free_before + 1);
    EXPECT_EQ(client->read(file.node, file.handle, 0, 10).error, EBADF);
    const std::uint64_t node = client->lookup(kRootNode, "f").node();
    EXPECT_EQ(client->read(node, client->open(node, O_RDONLY).handle(), 0, 10).text(), "kept");
}

TEST_F(MemoryNamespaceTest, Times) {
    const File file = create("f");
    seconds = 2000;
    client->write(file.node, file.handle, 0, "x");
    fuse_attr now = attr(file.node);
    EXPECT_EQ(now.atime, 1000u);
    EXPECT_EQ(now.mtime, 2000u);
    EXPECT_EQ(now.ctime, 2000u);
    seconds = 3000;
    content(file);
    EXPECT_EQ(attr(file.node).atime, 3000u) << "older than mtime";
    seconds = 3001;
    content(file);
    EXPECT_EQ(attr(file.node).atime, 3000u) << "recent enough";
    seconds = 3000 + 86'400;
    content(file);
    EXPECT_EQ(attr(file.node).atime, 89'400u) << "a day old";
    seconds = 100'000;
    chmod(file.node, 0600);
    now = attr(file.node);
    EXPECT_EQ(now.ctime, 100'000u);
    EXPECT_EQ(now.mtime, 2000u);
    seconds = 100'001;
    truncate(file.node, 1);
    EXPECT_EQ(attr(file.node).mtime, 100'001u) << "even to the same size";
    EXPECT_EQ(attr(file.node).ctime, 100'001u);
    const Reply statx = client->call_with(fuse::abi::kStatx, file.node, fuse::abi::StatxIn{});
    EXPECT_EQ(statx.as<fuse::abi::StatxOut>().stat.btime.tv_sec, 1000);
    seconds = 100'002;
    client->unlink(kRootNode, "f");
    EXPECT_EQ(attr(file.node).ctime, 100'002u);
    EXPECT_EQ(attr(kRootNode).mtime, 100'002u);
}

TEST_F(MemoryNamespaceTest, OwnersAndPrivileges) {
    fuse_setattr_in in{};
    const File file = create("f", 06755);
    in.valid = FATTR_UID | FATTR_GID;
    in.uid = 5;
    in.gid = 6;
    EXPECT_EQ(client->setattr(file.node, in).attr().mode, S_IFREG | 0755u);
    chmod(file.node, 06755);
    // chown(2) of nothing: the owner loses the privileges. The client also sends it before a stranger's write: no
    // error.
    in.valid = 0;
    client->uid = 77;
    EXPECT_EQ(client->setattr(file.node, in).attr().mode, S_IFREG | 06755u);
    client->uid = 5;
    EXPECT_EQ(client->setattr(file.node, in).attr().mode, S_IFREG | 0755u);
    client->uid = 0;
    in.valid = FATTR_UID | FATTR_GID;
    chmod(file.node, 06755);
    EXPECT_EQ(client->write(file.node, file.handle, 0, "x").error, 0);
    EXPECT_EQ(attr(file.node).mode, S_IFREG | 06755u);
    client->write(file.node, file.handle, 0, fuse_test::bytes_of("x"), FUSE_WRITE_KILL_SUIDGID);
    EXPECT_EQ(attr(file.node).mode, S_IFREG | 0755u);
    // Directories with S_ISGID hand on their group.
    const std::uint64_t directory = client->mkdir(kRootNode, "d", 0777).node();
    in.gid = 50;
    client->setattr(directory, in);
    chmod(directory, 02777);
    client->uid = 9;
    client->gid = 9;
    const Reply made = client->create(directory, "f", O_RDWR, 02755);
    EXPECT_EQ(made.entry().attr.gid, 50u);
    EXPECT_EQ(made.entry().attr.uid, 9u);
    EXPECT_EQ(made.entry().attr.mode, S_IFREG | 0755u) << "not a member of the group";
    EXPECT_EQ(client->mkdir(directory, "d", 0755).entry().attr.mode, S_IFDIR | 02755u);
    client->gid = 50;
    EXPECT_EQ(client->create(directory, "g", O_RDWR, 02755).entry().attr.mode, S_IFREG | 02755u);
}

}  // namespace
}  // namespace farhaul::backend
