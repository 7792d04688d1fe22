// Extended attributes and access control lists.
#include <sys/stat.h>
#include <sys/xattr.h>

#include "memory_support.hpp"

namespace farhaul::backend {
namespace {

constexpr const char* kAccess = "system.posix_acl_access";
constexpr const char* kDefault = "system.posix_acl_default";

struct Entry {
    std::uint16_t tag, perm;
    std::uint32_t id = UINT32_MAX;
    bool operator==(const Entry&) const = default;
};
constexpr std::uint16_t kUserObject = 1, kUser = 2, kGroupObject = 4, kGroup = 8, kMask = 16, kOther = 32;
using Acl = std::vector<Entry>;

std::string value_of(const Acl& acl, std::uint32_t version = 2) {
    std::string value(4 + acl.size() * sizeof(Entry), '\0');
    std::memcpy(value.data(), &version, 4);
    if (!acl.empty()) std::memcpy(value.data() + 4, acl.data(), acl.size() * sizeof(Entry));
    return value;
}

class MemoryXattrTest : public MemoryTest {
 protected:
    Acl acl_of(std::uint64_t node, const char* name) {
        const Reply reply = client->getxattr(node, name, 4096);
        if (!reply) return {};
        Acl acl((reply.data.size() - 4) / sizeof(Entry));
        std::memcpy(acl.data(), reply.data.data() + 4, acl.size() * sizeof(Entry));
        return acl;
    }
    std::uint32_t permissions(std::uint64_t node) { return attr(node).mode & 07777; }
    Reply create_with(std::uint64_t parent, std::string_view name, std::uint32_t mode, std::uint32_t umask) {
        return client->call_with(
            FUSE_CREATE, parent,
            fuse_create_in{.flags = O_RDWR | O_CREAT, .mode = mode, .umask = umask, .open_flags = 0}, name);
    }
};

TEST_F(MemoryXattrTest, SetsGetsListsRemoves) {
    const std::uint64_t node = create("f").node;
    EXPECT_EQ(client->getxattr(node, "user.a", 10).error, ENODATA);
    EXPECT_EQ(client->setxattr(node, "user.b", "value").error, 0);
    EXPECT_EQ(client->setxattr(node, "user.a", "").error, 0);
    EXPECT_EQ(client->setxattr(node, "trusted.t", "1").error, 0);
    EXPECT_EQ(client->setxattr(node, "security.s", "2").error, 0);
    EXPECT_EQ(client->getxattr(node, "user.b", 0).as<fuse_getxattr_out>().size, 5u);
    EXPECT_EQ(client->getxattr(node, "user.b", 100).text(), "value");
    EXPECT_EQ(client->getxattr(node, "user.b", 4).error, ERANGE);
    EXPECT_EQ(client->getxattr(node, "user.a", 4).text(), "");
    const std::string all("security.s\0trusted.t\0user.a\0user.b\0", 35);
    EXPECT_EQ(client->listxattr(node, 1000).text(), all);
    EXPECT_EQ(client->listxattr(node, 0).as<fuse_getxattr_out>().size, 35u);
    EXPECT_EQ(client->listxattr(node, 34).error, ERANGE);
    client->uid = 7;
    EXPECT_EQ(client->listxattr(node, 1000).text(), std::string("security.s\0user.a\0user.b\0", 25));
    client->uid = 0;
    EXPECT_EQ(client->setxattr(node, "user.b", "x", XATTR_CREATE).error, EEXIST);
    EXPECT_EQ(client->setxattr(node, "user.c", "x", XATTR_REPLACE).error, ENODATA);
    EXPECT_EQ(client->setxattr(node, "user.b", "new", XATTR_REPLACE).error, 0);
    EXPECT_EQ(client->getxattr(node, "user.b", 100).text(), "new");
    EXPECT_EQ(client->setxattr(node, "user.b", "x", 8).error, EINVAL);
    EXPECT_EQ(client->removexattr(node, "user.b").error, 0);
    EXPECT_EQ(client->removexattr(node, "user.b").error, ENODATA);
    EXPECT_EQ(client->setxattr(node, "other.x", "1").error, EOPNOTSUPP);
    EXPECT_EQ(client->setxattr(node, "system.x", "1").error, EOPNOTSUPP);
    EXPECT_EQ(client->setxattr(node, "user.", "1").error, EINVAL);
}

TEST_F(MemoryXattrTest, Limits) {
    start({.max_inodes = 200});
    const std::uint64_t node = create("f").node;
    const std::string longest = "user." + std::string(250, 'n');
    EXPECT_EQ(client->setxattr(node, longest, "x").error, 0);
    EXPECT_NE(client->setxattr(node, longest + "n", "x").error, 0);
    EXPECT_EQ(client->setxattr(node, "user.big", std::string(65536, 'v')).error, 0);
    EXPECT_EQ(client->getxattr(node, "user.big", 65536).text(), std::string(65536, 'v'));
    EXPECT_EQ(client->setxattr(node, "user.big", std::string(65537, 'v')).error, E2BIG);
    // Attributes take room of the same budget as inodes, and give it back.
    int taken = 0;
    while (client->setxattr(node, "user.n" + std::to_string(taken), std::string(10'000, 'v')).error == 0) ++taken;
    EXPECT_GT(taken, 5);
    EXPECT_LT(taken, 20);
    EXPECT_EQ(client->setxattr(node, "user.more", std::string(10'000, 'v')).error, ENOSPC);
    EXPECT_EQ(client->removexattr(node, "user.n0").error, 0);
    EXPECT_EQ(client->setxattr(node, "user.more", std::string(10'000, 'v')).error, 0);
    client->unlink(kRootNode, "f");
    client->release(node, 1);
    client->forget(node, 1);
    EXPECT_EQ(statfs().ffree, 199u);
}

TEST_F(MemoryXattrTest, WritingEndsCapabilities) {
    const File file = create("f");
    ASSERT_EQ(client->setxattr(file.node, "security.capability", "caps").error, 0);
    client->write(file.node, file.handle, 0, "x");
    EXPECT_EQ(client->getxattr(file.node, "security.capability", 100).error, ENODATA);
    ASSERT_EQ(client->setxattr(file.node, "security.capability", "caps").error, 0);
    truncate(file.node, 0);
    EXPECT_EQ(client->getxattr(file.node, "security.capability", 100).error, ENODATA);
}

TEST_F(MemoryXattrTest, AccessListsAreTheMode) {
    const std::uint64_t node = create("f", 0640).node;
    EXPECT_EQ(client->getxattr(node, kAccess, 100).error, ENODATA);
    EXPECT_EQ(client->removexattr(node, kAccess).error, 0);
    const Acl simple = {{kUserObject, 7}, {kGroupObject, 5}, {kOther, 1}};
    EXPECT_EQ(client->setxattr(node, kAccess, value_of(simple)).error, 0);
    EXPECT_EQ(permissions(node), 0751u);
    EXPECT_EQ(client->getxattr(node, kAccess, 100).error, ENODATA) << "the mode says it all";
    const Acl named = {{kUserObject, 6}, {kUser, 7, 12}, {kGroupObject, 4}, {kMask, 6}, {kOther, 0}};
    EXPECT_EQ(client->setxattr(node, kAccess, value_of(named)).error, 0);
    EXPECT_EQ(permissions(node), 0660u) << "the mask stands for the group";
    EXPECT_EQ(acl_of(node, kAccess), named);
    EXPECT_EQ(client->listxattr(node, 100).text(), std::string("system.posix_acl_access\0", 24));
    chmod(node, 0707);
    EXPECT_EQ(acl_of(node, kAccess),
              (Acl{{kUserObject, 7}, {kUser, 7, 12}, {kGroupObject, 4}, {kMask, 0}, {kOther, 7}}));
    EXPECT_EQ(permissions(node), 0707u);
    EXPECT_EQ(client->removexattr(node, kAccess).error, 0);
    EXPECT_EQ(permissions(node), 0707u);
    EXPECT_EQ(client->setxattr(node, kDefault, value_of(simple)).error, EACCES);
}

TEST_F(MemoryXattrTest, BadListsAreRefused) {
    const std::uint64_t node = create("f").node;
    const auto error = [&](const std::string& value) { return client->setxattr(node, kAccess, value).error; };
    const Acl good = {{kUserObject, 7}, {kGroupObject, 5}, {kOther, 1}};
    EXPECT_EQ(error(""), EINVAL);
    EXPECT_EQ(error("abc"), EINVAL);
    EXPECT_EQ(error(value_of(good, 3)), EOPNOTSUPP);
    EXPECT_EQ(error(value_of(good).substr(0, 20)), EINVAL);
    EXPECT_EQ(error(value_of({{kUserObject, 7}, {kOther, 1}})), EINVAL);
    EXPECT_EQ(error(value_of({{kGroupObject, 5}, {kUserObject, 7}, {kOther, 1}})), EINVAL);
    EXPECT_EQ(error(value_of({{kUserObject, 7}, {kUser, 7, 3}, {kGroupObject, 5}, {kOther, 1}})), EINVAL) << "no mask";
    EXPECT_EQ(error(value_of({{kUserObject, 8}, {kGroupObject, 5}, {kOther, 1}})), EINVAL);
    EXPECT_EQ(error(value_of({{kUserObject, 7}, {kUserObject, 7}, {kGroupObject, 5}, {kOther, 1}})), EINVAL);
    EXPECT_EQ(error(value_of({{3, 7}, {kGroupObject, 5}, {kOther, 1}})), EINVAL);
    EXPECT_EQ(error(value_of({{kUserObject, 7}, {kGroupObject, 5}, {kMask, 7}, {kOther, 1}, {0, 0}})), EINVAL);
}

TEST_F(MemoryXattrTest, DefaultListsAreInherited) {
    const std::uint64_t directory = client->mkdir(kRootNode, "d").node();
    EXPECT_EQ(create_with(directory, "plain", 0666, 027).entry().attr.mode, S_IFREG | 0640u);
    const Acl list = {{kUserObject, 7}, {kUser, 6, 12}, {kGroupObject, 5}, {kGroup, 7, 3}, {kMask, 7}, {kOther, 4}};
    ASSERT_EQ(client->setxattr(directory, kDefault, value_of(list)).error, 0);
    EXPECT_EQ(permissions(directory), 0755u);
    EXPECT_EQ(acl_of(directory, kDefault), list);
    const Reply file = create_with(directory, "f", 0640, 077);
    EXPECT_EQ(file.entry().attr.mode, S_IFREG | 0640u) << "the list stands in for the umask";
    EXPECT_EQ(acl_of(file.node(), kAccess),
              (Acl{{kUserObject, 6}, {kUser, 6, 12}, {kGroupObject, 5}, {kGroup, 7, 3}, {kMask, 4}, {kOther, 0}}));
    EXPECT_EQ(client->getxattr(file.node(), kDefault, 100).error, ENODATA);
    const std::uint64_t inner = client->mkdir(directory, "inner", 0777).node();
    EXPECT_EQ(acl_of(inner, kDefault), list);
    EXPECT_EQ(acl_of(inner, kAccess), list);
    EXPECT_EQ(permissions(inner), 0774u);
    EXPECT_EQ(client->symlink(directory, "l", "t").entry().attr.mode, S_IFLNK | 0777u);
    // A list that the mode can express.
    ASSERT_EQ(client->setxattr(directory, kDefault, value_of({{kUserObject, 7}, {kGroupObject, 1}, {kOther, 0}})).error,
              0);
    const Reply simple = create_with(directory, "s", 0666, 0);
    EXPECT_EQ(simple.entry().attr.mode, S_IFREG | 0600u);
    EXPECT_EQ(client->getxattr(simple.node(), kAccess, 100).error, ENODATA);
    EXPECT_EQ(client->removexattr(directory, kDefault).error, 0);
    EXPECT_EQ(create_with(directory, "after", 0666, 027).entry().attr.mode, S_IFREG | 0640u);
}

}  // namespace
}  // namespace farhaul::backend
