#include <fcntl.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include "mirror_fixture.hpp"

namespace farhaul::mirror_test {
namespace {

TEST(MirrorNames, ErrorsSayWhatToDo) {
    Scratch scratch;
    put(scratch.path("f"), "");
    const auto message = [](MirrorOptions options) {
        auto made = backend::make_mirror(std::move(options));
        return made ? std::string("no error") : made.error().message;
    };
    EXPECT_NE(message({}).find("mirror:/path"), std::string::npos);
    EXPECT_NE(message({.directory = scratch.path("none")}).find("create it"), std::string::npos);
    EXPECT_NE(message({.directory = scratch.path("f")}).find("not a directory"), std::string::npos);
    EXPECT_NE(message({.directory = scratch.path(), .xattr_prefix = "guest."}).find("begin it with"),
              std::string::npos);
    EXPECT_NE(message({.directory = scratch.path(), .entry_timeout = Duration::from_seconds(-1)}).find("negative"),
              std::string::npos);
}

TEST(MirrorNames, NothingClimbsOut) {
    Scratch outer;
    fs::create_directories(outer.path("in/a/b"));
    put(outer.path("secret"), "secret");
    fs::create_symlink("../secret", outer.path("in/link"));
    fs::create_symlink("/", outer.path("in/slash"));
    fs::create_symlink("/proc/self/root", outer.path("in/magic"));
    Mounted mount(MirrorOptions{.directory = outer.path("in")});
    for (const char* name : {"..", ".", "../secret", "/etc", "a/b", ""}) {
        EXPECT_EQ(mount->lookup(kRoot, name).error, EINVAL) << name;
        EXPECT_EQ(mount->create(kRoot, name, O_RDWR).error, EINVAL) << name;
        EXPECT_EQ(mount->mkdir(kRoot, name).error, EINVAL) << name;
        EXPECT_EQ(mount->unlink(kRoot, name).error, EINVAL) << name;
        EXPECT_EQ(mount->rename(kRoot, "a", kRoot, name).error, EINVAL) << name;
        EXPECT_EQ(mount->link(mount->lookup(kRoot, "link").node(), kRoot, name).error, EINVAL) << name;
    }
    // Symlinks are looked at, never through.
    for (const char* name : {"link", "slash", "magic"}) {
        const auto link = mount->lookup(kRoot, name);
        ASSERT_EQ(link.error, 0);
        EXPECT_TRUE(S_ISLNK(link.entry().attr.mode)) << name;
        EXPECT_EQ(mount->readlink(link.node()).text(), fs::read_symlink(outer.path("in/" + std::string(name))));
        EXPECT_EQ(mount->lookup(link.node(), "etc").error, ENOTDIR);
        EXPECT_EQ(mount->open(link.node(), O_RDONLY).error, ELOOP);
        EXPECT_EQ(mount->opendir(link.node()).error, ENOTDIR);
        EXPECT_NE(mount->create(kRoot, name, O_RDWR).error, 0) << name;
        EXPECT_EQ(mount->create(kRoot, name, O_RDWR | O_EXCL).error, EEXIST) << name;
        // Attributes are the link's own.
        fuse_setattr_in change{};
        change.valid = FATTR_SIZE;
        EXPECT_NE(mount->setattr(link.node(), change).error, 0);
        change.valid = FATTR_MTIME;
        change.mtime = 77;
        EXPECT_EQ(mount->setattr(link.node(), change).attr().mtime, 77u);
        EXPECT_NE(mount->setxattr(link.node(), "user.x", "v").error, 0);
    }
    EXPECT_EQ(get(outer.path("secret")), "secret");

    // A parent that was put elsewhere leads to where it is, not to what is above it.
    const auto a = mount->lookup(kRoot, "a").node();
    const auto b = mount->lookup(a, "b").node();
    fs::rename(outer.path("in/a/b"), outer.path("moved"));
    EXPECT_EQ(mount->lookup(b, "..").error, EINVAL);
    EXPECT_EQ(mount->lookup(b, "secret").error, ENOENT);
    EXPECT_EQ(mount->lookup(a, "b").error, ENOENT);

    // The root's ".." in a listing is itself.
    for (const auto& entry : mount->list(kRoot)) {
        if (entry.name == "..") {
            EXPECT_EQ(entry.ino, mount->getattr(kRoot).attr().ino);
        }
    }
    // Ids and handles that were never given out.
    EXPECT_EQ(mount->getattr(12345).error, ESTALE);
    EXPECT_EQ(mount->lookup(~0ull, "a").error, ESTALE);
    EXPECT_EQ(mount->read(kRoot, 99, 0, 10).error, EBADF);
    EXPECT_EQ(mount->readdir(kRoot, ~0ull, 0, 4096).error, EBADF);
    EXPECT_EQ(mount->release(kRoot, 1ull << 40).error, EBADF);
}

TEST(MirrorNames, SpecialFilesOfTheHostAreNeverOpened) {
    Scratch scratch;
    ASSERT_EQ(::mkfifo(scratch.path("fifo").c_str(), 0666), 0);
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", scratch.path("socket").c_str());
    ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    std::vector<std::string> names = {"fifo", "socket"};
    if (::geteuid() == 0 && ::mknod(scratch.path("null").c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0)
        names.push_back("null");
    Mounted mount(scratch);
    for (const std::string& name : names) {
        const auto entry = mount->lookup(kRoot, name);
        ASSERT_EQ(entry.error, 0) << name;
        // A FIFO without a writer would block for ever.
        for (const std::uint32_t flags : {O_RDONLY, O_WRONLY, O_RDWR, O_RDWR | O_TRUNC, O_RDONLY | O_NONBLOCK})
            EXPECT_EQ(mount->open(entry.node(), flags).error, ENXIO) << name;
        EXPECT_EQ(mount->opendir(entry.node()).error, ENOTDIR) << name;
        EXPECT_EQ(mount->create(kRoot, name, O_RDWR).error, ESTALE) << name;
        EXPECT_EQ(mount->getattr(entry.node()).attr().mode, stat_of(scratch.path(name)).st_mode);
    }
    if (names.size() == 3) {
        EXPECT_EQ(mount->lookup(kRoot, "null").entry().attr.rdev, fuse::encode_device(makedev(1, 3)));
    }
    ::close(socket);
}

TEST(MirrorNames, LongestNamesAndManyKindsOfNodes) {
    Scratch scratch;
    Mounted mount(scratch);
    const std::string longest(255, 'n');
    EXPECT_EQ(mount->mkdir(kRoot, longest).error, 0);
    EXPECT_EQ(mount->lookup(kRoot, std::string(256, 'n')).error, ENAMETOOLONG);
    EXPECT_EQ(mount->mknod(kRoot, "fifo", S_IFIFO | 0640).error, 0);
    EXPECT_EQ(stat_of(scratch.path("fifo")).st_mode, S_IFIFO | 0640u);
    EXPECT_EQ(mount->mknod(kRoot, "file", S_IFREG | 0622).error, 0) << "whatever the process' umask is";
    EXPECT_EQ(stat_of(scratch.path("file")).st_mode, S_IFREG | 0622u);
    const auto link = mount->symlink(kRoot, "link", "to/where");
    EXPECT_EQ(mount->readlink(link.node()).text(), "to/where");
    EXPECT_EQ(mount->link(link.node(), kRoot, "link2").error, 0);
    EXPECT_EQ(stat_of(scratch.path("link2")).st_ino, stat_of(scratch.path("link")).st_ino);
    const auto file = mount->lookup(kRoot, "file").node();
    EXPECT_EQ(mount->link(file, kRoot, "file2").node(), file);
    EXPECT_EQ(mount->lookup(kRoot, "file2").node(), file);
    EXPECT_EQ(mount->mkdir(kRoot, "file").error, EEXIST);
    EXPECT_EQ(mount->rmdir(kRoot, "file").error, ENOTDIR);
    EXPECT_EQ(mount->unlink(kRoot, longest).error, EISDIR);
    EXPECT_EQ(mount->rmdir(kRoot, longest).error, 0);
    EXPECT_EQ(mount->lookup(file, "x").error, ENOTDIR);
}

TEST(MirrorNames, RenamesWithAllFlags) {
    Scratch scratch;
    Mounted mount(scratch);
    put(scratch.path("a"), "a");
    put(scratch.path("b"), "b");
    EXPECT_EQ(mount->rename(kRoot, "a", kRoot, "b", RENAME_NOREPLACE).error, EEXIST);
    EXPECT_EQ(mount->rename(kRoot, "a", kRoot, "b", RENAME_EXCHANGE).error, 0);
    EXPECT_EQ(get(scratch.path("a")), "b");
    EXPECT_EQ(mount->rename(kRoot, "a", kRoot, "b").error, 0);
    EXPECT_EQ(get(scratch.path("b")), "b");
    EXPECT_EQ(mount->rename(kRoot, "a", kRoot, "b").error, ENOENT);
    fs::create_directories(scratch.path("d/e"));
    const auto d = mount->lookup(kRoot, "d").node();
    const auto e = mount->lookup(d, "e").node();
    EXPECT_EQ(mount->rename(kRoot, "d", e, "x").error, EINVAL) << "a directory into itself";
    EXPECT_EQ(mount->rename(kRoot, "b", kRoot, "c", RENAME_WHITEOUT).error, ::geteuid() == 0 ? 0 : EPERM);
    if (::geteuid() == 0) {
        EXPECT_TRUE(S_ISCHR(stat_of(scratch.path("b")).st_mode));
    }
}

TEST(MirrorNames, UnnamedFilesGetNames) {
    Scratch scratch;
    Mounted mount(scratch);
    const auto made = mount->tmpfile(kRoot, O_RDWR, 0640);
    if (made.error == EOPNOTSUPP) GTEST_SKIP() << "no O_TMPFILE on " << scratch.path();
    ASSERT_EQ(made.error, 0);
    EXPECT_EQ(made.entry().attr.nlink, 0u);
    EXPECT_EQ(mount->write(made.node(), Client::created_handle(made), 0, "text").error, 0);
    EXPECT_TRUE(fs::is_empty(scratch.path()));
    EXPECT_EQ(mount->link(made.node(), kRoot, "named").error, 0);
    EXPECT_EQ(get(scratch.path("named")), "text");
    EXPECT_EQ(stat_of(scratch.path("named")).st_mode & 0777, 0640u);
}

TEST(MirrorNames, CreationsBelongToTheCaller) {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    Scratch scratch;
    ::chmod(scratch.path().c_str(), 0777);
    Mounted mount(scratch);
    mount->uid = 1234;
    mount->gid = 2345;
    EXPECT_EQ(mount->create(kRoot, "f", O_RDWR).error, 0);
    EXPECT_EQ(mount->mkdir(kRoot, "d").error, 0);
    EXPECT_EQ(mount->symlink(kRoot, "l", "x").error, 0);
    EXPECT_EQ(mount->mknod(kRoot, "p", S_IFIFO | 0600).error, 0);
    for (const char* name : {"f", "d", "l", "p"}) {
        EXPECT_EQ(stat_of(scratch.path(name)).st_uid, 1234u) << name;
        EXPECT_EQ(stat_of(scratch.path(name)).st_gid, 2345u) << name;
    }
    // A directory that hands its group down; and one that only a group of the caller's may write to: the client's
    // kernel has checked that.
    fs::create_directory(scratch.path("s"));
    ASSERT_EQ(::chown(scratch.path("s").c_str(), 0, 555), 0);
    ASSERT_EQ(::chmod(scratch.path("s").c_str(), 02770), 0);
    const auto s = mount->lookup(kRoot, "s").node();
    EXPECT_EQ(mount->create(s, "f", O_RDWR).error, 0);
    EXPECT_EQ(mount->mkdir(s, "d").error, 0);
    EXPECT_EQ(stat_of(scratch.path("s/f")).st_uid, 1234u);
    EXPECT_EQ(stat_of(scratch.path("s/f")).st_gid, 555u);
    EXPECT_EQ(stat_of(scratch.path("s/d")).st_mode & 07777, 02755u);
    // This thread is itself again.
    put(scratch.path("own"), "");
    EXPECT_EQ(stat_of(scratch.path("own")).st_uid, 0u);
    EXPECT_EQ(stat_of(scratch.path("own")).st_gid, 0u);

    Mounted squashed(MirrorOptions{.directory = scratch.path(), .squash_uid = 77, .squash_gid = 88});
    EXPECT_EQ(squashed->create(kRoot, "q", O_RDWR).error, 0);
    EXPECT_EQ(stat_of(scratch.path("q")).st_uid, 77u);
    EXPECT_EQ(stat_of(scratch.path("q")).st_gid, 88u);
    EXPECT_EQ(squashed->lookup(kRoot, "f").entry().attr.uid, 1234u) << "shown as it is";
}

TEST(MirrorNames, TheHostAppliesTheUmaskUnderDefaultAcls) {
    Scratch scratch;
    Mounted mount(scratch);
    if (!mount.session().connection().has(FUSE_DONT_MASK)) GTEST_SKIP() << "no ACLs on " << scratch.path();
    const auto create = [&](std::uint64_t parent, const char* name) {
        return mount->call_with(FUSE_CREATE, parent,
                                fuse_create_in{.flags = O_RDWR, .mode = 0666, .umask = 027, .open_flags = 0}, name);
    };
    EXPECT_EQ(create(kRoot, "plain").error, 0);
    EXPECT_EQ(stat_of(scratch.path("plain")).st_mode & 0777, 0640u);
    const auto d = mount->mkdir(kRoot, "d").node();
    // user::rwx user:1234:rwx group::r-x mask::rwx other::r--
    struct Item {
        std::uint16_t tag, perm;
        std::uint32_t id;
    };
    std::string acl(4 + 5 * sizeof(Item), '\0');
    const std::uint32_t version = 2;
    const Item items[5] = {{1, 7, ~0u}, {2, 7, 1234}, {4, 5, ~0u}, {16, 7, ~0u}, {32, 4, ~0u}};
    std::memcpy(acl.data(), &version, 4);
    std::memcpy(acl.data() + 4, items, sizeof(items));
    ASSERT_EQ(mount->setxattr(d, "system.posix_acl_default", acl).error, 0);
    EXPECT_EQ(create(d, "f").error, 0);
    EXPECT_EQ(stat_of(scratch.path("d/f")).st_mode & 0777, 0664u) << "the default ACL takes the umask's place";
}

}  // namespace
}  // namespace farhaul::mirror_test
