#include <sys/xattr.h>

#include "mirror_fixture.hpp"

namespace farhaul::mirror_test {
namespace {

TEST(MirrorXattr, SetGetListRemove) {
    Scratch scratch;
    put(scratch.path("f"), "");
    if (::setxattr(scratch.path("f").c_str(), "user.probe", "", 0, 0) != 0)
        GTEST_SKIP() << "no attributes on " << scratch.path();
    ::removexattr(scratch.path("f").c_str(), "user.probe");
    Mounted mount(scratch);
    const auto node = mount->lookup(kRoot, "f").node();
    EXPECT_EQ(mount->setxattr(node, "user.one", "value").error, 0);
    EXPECT_EQ(mount->setxattr(node, "user.one", "x", XATTR_CREATE).error, EEXIST);
    EXPECT_EQ(mount->setxattr(node, "user.two", "x", XATTR_REPLACE).error, ENODATA);
    EXPECT_EQ(mount->getxattr(node, "user.one", 100).text(), "value");
    EXPECT_EQ(mount->getxattr(node, "user.one", 0).as<fuse_getxattr_out>().size, 5u);
    EXPECT_EQ(mount->getxattr(node, "user.one", 4).error, ERANGE);
    EXPECT_EQ(mount->getxattr(node, "user.none", 100).error, ENODATA);
    EXPECT_EQ(mount->listxattr(node, 100).text(), std::string("user.one\0", 9));
    EXPECT_EQ(mount->listxattr(node, 0).as<fuse_getxattr_out>().size, 9u);
    EXPECT_EQ(mount->listxattr(node, 8).error, ERANGE);
    EXPECT_EQ(mount->removexattr(node, "user.one").error, 0);
    EXPECT_EQ(mount->removexattr(node, "user.one").error, ENODATA);

    Mounted off(MirrorOptions{.directory = scratch.path(), .xattr = false});
    const auto other = off->lookup(kRoot, "f").node();
    EXPECT_EQ(off->setxattr(other, "user.one", "value").error, ENOSYS);
    EXPECT_FALSE(off.session().connection().has(FUSE_POSIX_ACL));
}

TEST(MirrorXattr, PrefixKeepsTheHostsApart) {
    Scratch scratch;
    put(scratch.path("f"), "");
    if (::setxattr(scratch.path("f").c_str(), "user.host", "own", 3, 0) != 0)
        GTEST_SKIP() << "no attributes on " << scratch.path();
    Mounted mount(MirrorOptions{.directory = scratch.path(), .xattr_prefix = "user.guest."});
    EXPECT_FALSE(mount.session().connection().has(FUSE_POSIX_ACL)) << "ACLs have fixed names";
    const auto node = mount->lookup(kRoot, "f").node();
    EXPECT_EQ(mount->getxattr(node, "user.host", 100).error, ENODATA);
    EXPECT_EQ(mount->listxattr(node, 100).data.size(), 0u);
    EXPECT_EQ(mount->setxattr(node, "security.capability", "not the host's").error, 0);
    EXPECT_EQ(mount->listxattr(node, 100).text(), std::string("security.capability\0", 20));
    EXPECT_EQ(mount->getxattr(node, "security.capability", 100).text(), "not the host's");
    char value[32] = {};
    EXPECT_EQ(::getxattr(scratch.path("f").c_str(), "user.guest.security.capability", value, sizeof(value)), 14);
    EXPECT_EQ(::getxattr(scratch.path("f").c_str(), "security.capability", value, sizeof(value)), -1);
    EXPECT_EQ(mount->setxattr(node, std::string(250, 'x'), "v").error, ERANGE);
    EXPECT_EQ(mount->removexattr(node, "security.capability").error, 0);
    EXPECT_EQ(::getxattr(scratch.path("f").c_str(), "user.host", value, sizeof(value)), 3);
}

}  // namespace
}  // namespace farhaul::mirror_test
