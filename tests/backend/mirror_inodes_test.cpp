#include <map>
#include <set>

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "mirror_fixture.hpp"

namespace farhaul::mirror_test {
namespace {

/// Runs `body` in a process of its own, which may spoil limits and namespaces. It returns the failures that it saw.
template <typename Body>
void in_child(Body&& body) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        body();
        ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

void walk_with_few_descriptors(const Scratch& scratch, MirrorOptions::FileHandles handles, int directories, int files) {
    rlimit limit{256, 256};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    Mounted mount(MirrorOptions{.directory = scratch.path(), .file_handles = handles});
    std::map<std::uint64_t, std::string> nodes;
    for (int d = 0; d < directories; ++d) {
        const auto directory = mount->lookup(kRoot, "d" + std::to_string(d)).node();
        ASSERT_NE(directory, 0u);
        std::set<std::string> seen;
        for (const auto& entry : mount->list(directory, 16384, true)) {
            if (entry.name == "." || entry.name == "..") continue;
            EXPECT_TRUE(seen.insert(entry.name).second) << entry.name;
            EXPECT_NE(entry.node, 0u) << entry.name << " was not looked up";
            nodes[entry.node] = "d" + std::to_string(d) + "/" + entry.name;
        }
        EXPECT_EQ(seen.size(), static_cast<std::size_t>(files));
    }
    EXPECT_EQ(nodes.size(), static_cast<std::size_t>(directories * files));
    EXPECT_LT(open_descriptors(), 200u);
    // All of them can be used, in whatever order.
    int step = 0;
    for (const auto& [node, name] : nodes) {
        ASSERT_EQ(mount->getattr(node).error, 0) << name;
        if (++step % 7 != 0) continue;
        const auto handle = mount->open(node, O_RDONLY);
        ASSERT_EQ(handle.error, 0) << name;
        EXPECT_EQ(mount->read(node, handle.handle(), 0, 100).text(), name);
        mount->release(node, handle.handle());
    }
    // Renamed, they are still themselves.
    const auto [last, name] = *nodes.rbegin();
    const auto d0 = mount->lookup(kRoot, "d0").node();
    const auto from = mount->lookup(kRoot, name.substr(0, name.find('/'))).node();
    ASSERT_EQ(mount->rename(from, name.substr(name.find('/') + 1), d0, "renamed").error, 0);
    EXPECT_EQ(mount->getattr(last).error, 0);
    EXPECT_EQ(mount->lookup(d0, "renamed").node(), last);
    EXPECT_EQ(mount->rename(kRoot, "d1", d0, "below").error, 0);
    for (const auto& [node, path] : nodes) {
        if (path.starts_with("d1/")) {
            ASSERT_EQ(mount->getattr(node).error, 0) << path;
        }
    }
}

TEST(MirrorInodes, TenThousandFilesWithALimitOf256) {
    for (const auto handles : {MirrorOptions::FileHandles::kAutomatic, MirrorOptions::FileHandles::kNever}) {
        Scratch scratch(place_for_many_files());
        constexpr int kDirectories = 20, kFiles = 500;
        for (int d = 0; d < kDirectories; ++d) {
            const std::string directory = "d" + std::to_string(d);
            fs::create_directory(scratch.path(directory));
            for (int f = 0; f < kFiles; ++f) {
                const std::string name = directory + "/file" + std::to_string(f);
                put(scratch.path(name), name);
            }
        }
        in_child([&] { walk_with_few_descriptors(scratch, handles, kDirectories, kFiles); });
    }
}

TEST(MirrorInodes, ANumberThatIsUsedAgainIsAnotherInode) {
    Scratch scratch;
    for (const auto handles : {MirrorOptions::FileHandles::kAutomatic, MirrorOptions::FileHandles::kAlways,
                               MirrorOptions::FileHandles::kNever}) {
        auto possible = backend::make_mirror({.directory = scratch.path(), .file_handles = handles});
        if (!possible) continue;
        Mounted mount(MirrorOptions{.directory = scratch.path(), .file_handles = handles});
        std::set<std::uint64_t> nodes;
        std::set<std::uint64_t> numbers;
        for (int i = 0; i < 50; ++i) {
            put(scratch.path("f"), std::to_string(i));
            const auto entry = mount->lookup(kRoot, "f");
            ASSERT_EQ(entry.error, 0);
            EXPECT_TRUE(nodes.insert(entry.node()).second) << "node " << entry.node() << " was another file";
            numbers.insert(entry.entry().attr.ino);
            fs::remove(scratch.path("f"));
        }
        // What is pinned keeps its number; what is not shows the case that is meant here, on most file systems.
        if (handles != MirrorOptions::FileHandles::kAlways) {
            EXPECT_EQ(numbers.size(), 50u);
        }
        for (const auto node : nodes) {
            const auto attr = mount->getattr(node);
            if (attr.error == 0) {
                EXPECT_EQ(attr.attr().nlink, 0u);
            } else {
                EXPECT_EQ(attr.error, ESTALE);
            }
        }
    }
}

TEST(MirrorInodes, WhatIsMovedIsFoundThoughThereIsRoomAgain) {
    Scratch scratch(place_for_many_files());
    constexpr int kFiles = 300;
    for (int i = 0; i < kFiles; ++i) put(scratch.path("f" + std::to_string(i)), std::to_string(i));
    in_child([&] {
        rlimit limit{256, 256};
        ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
        Mounted mount(MirrorOptions{.directory = scratch.path(), .file_handles = MirrorOptions::FileHandles::kNever});
        std::vector<std::uint64_t> nodes;
        for (int i = 0; i < kFiles; ++i) nodes.push_back(mount->lookup(kRoot, "f" + std::to_string(i)).node());
        ASSERT_LT(open_descriptors(), 200u) << "no test unless the last ones have no descriptor";
        // The first ones have; forgotten, they make room, and the last are still known by their places alone.
        for (int i = 0; i < kFiles - 10; ++i) mount->forget(nodes[static_cast<std::size_t>(i)], 1);
        for (int i = kFiles - 10; i < kFiles; ++i) {
            const std::string name = "f" + std::to_string(i);
            ASSERT_EQ(mount->rename(kRoot, name, kRoot, "moved" + name).error, 0);
        }
        for (int i = kFiles - 10; i < kFiles; ++i) {
            const auto node = nodes[static_cast<std::size_t>(i)];
            EXPECT_EQ(mount->getattr(node).error, 0) << i;
            const auto handle = mount->open(node, O_RDONLY);
            ASSERT_EQ(handle.error, 0) << i;
            EXPECT_EQ(mount->read(node, handle.handle(), 0, 100).text(), std::to_string(i));
            mount->release(node, handle.handle());
        }
    });
}

TEST(MirrorInodes, ForgettingGivesBackDescriptors) {
    Scratch scratch;
    for (int i = 0; i < 100; ++i) put(scratch.path("f" + std::to_string(i)), "");
    Mounted mount(scratch);
    const auto before = open_descriptors();
    std::vector<std::uint64_t> nodes;
    for (int i = 0; i < 100; ++i) {
        nodes.push_back(mount->lookup(kRoot, "f" + std::to_string(i)).node());
        EXPECT_EQ(mount->lookup(kRoot, "f" + std::to_string(i)).node(), nodes.back());
    }
    EXPECT_EQ(open_descriptors(), before + 100);
    for (const auto node : nodes) mount->forget(node, 1);
    EXPECT_EQ(mount->getattr(nodes[0]).error, 0) << "two lookups, one forgotten";
    for (const auto node : nodes) mount->forget(node, 99);
    EXPECT_EQ(mount->getattr(nodes[0]).error, ESTALE);
    EXPECT_EQ(open_descriptors(), before);
    mount->forget(kRoot, 5);
    EXPECT_EQ(mount->getattr(kRoot).error, 0);
    // Errors leave nothing open; a client that goes away neither.
    const auto f0 = mount->lookup(kRoot, "f0").node();
    for (int i = 0; i < 50; ++i) {
        mount->lookup(kRoot, "none");
        mount->create(kRoot, "f1", O_RDWR | O_EXCL);
        mount->open(f0, O_RDWR);
        mount->opendir(f0);
        mount->opendir(kRoot);
        mount->mkdir(kRoot, "f1");
    }
    EXPECT_EQ(open_descriptors(), before + 1 + 100);
    mount.session().disconnect();
    EXPECT_EQ(open_descriptors(), before);
}

TEST(MirrorInodes, TwoMountsWithTheSameNumbers) {
    Scratch scratch;
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount";
    in_child([&] {
        if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
            std::printf("no mount namespace here: not tested\n");
            return;
        }
        for (const char* name : {"a", "b"}) {
            fs::create_directory(scratch.path(name));
            ASSERT_EQ(::mount("tmpfs", scratch.path(name).c_str(), "tmpfs", 0, "size=1m"), 0);
            for (int i = 0; i < 20; ++i) put(scratch.path(std::string(name) + "/f" + std::to_string(i)), name);
        }
        ASSERT_EQ(stat_of(scratch.path("a/f0")).st_ino, stat_of(scratch.path("b/f0")).st_ino) << "no test without that";
        for (const auto handles : {MirrorOptions::FileHandles::kAutomatic, MirrorOptions::FileHandles::kAlways}) {
            Mounted mount(
                MirrorOptions{.directory = scratch.path(), .file_handles = handles, .announce_submounts = true});
            std::set<std::uint64_t> numbers{mount->getattr(kRoot).attr().ino};
            std::set<std::uint64_t> nodes;
            for (const char* name : {"a", "b"}) {
                const auto directory = mount->lookup(kRoot, name);
                ASSERT_EQ(directory.error, 0);
                EXPECT_NE(directory.entry().attr.flags & FUSE_ATTR_SUBMOUNT, 0u);
                EXPECT_TRUE(numbers.insert(directory.entry().attr.ino).second);
                for (const auto& entry : mount->list(directory.node())) {
                    if (entry.name[0] == '.') continue;
                    const auto file = mount->lookup(directory.node(), entry.name);
                    EXPECT_EQ(file.entry().attr.ino, entry.ino);
                    EXPECT_EQ(file.entry().attr.flags & FUSE_ATTR_SUBMOUNT, 0u);
                    EXPECT_TRUE(numbers.insert(entry.ino).second) << name << "/" << entry.name;
                    EXPECT_TRUE(nodes.insert(file.node()).second);
                    const auto handle = mount->open(file.node(), O_RDONLY).handle();
                    EXPECT_EQ(mount->read(file.node(), handle, 0, 10).text(), name);
                    mount->release(file.node(), handle);
                }
            }
            EXPECT_EQ(numbers.size(), 43u);
            const auto a = mount->lookup(kRoot, "a").node();
            const auto b = mount->lookup(kRoot, "b").node();
            EXPECT_EQ(mount->rename(a, "f0", b, "f0").error, EXDEV);
        }
        for (const char* name : {"a", "b"}) EXPECT_EQ(::umount2(scratch.path(name).c_str(), MNT_DETACH), 0);
    });
}

}  // namespace
}  // namespace farhaul::mirror_test
