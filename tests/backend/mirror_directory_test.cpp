#include <set>

#include "mirror_fixture.hpp"

namespace farhaul::mirror_test {
namespace {

TEST(MirrorDirectory, EveryEntryOnceInAnySize) {
    Scratch scratch(place_for_many_files());
    constexpr int kFiles = 3000;
    std::set<std::string> expected = {".", ".."};
    for (int i = 0; i < kFiles; ++i) {
        const std::string name = "file" + std::to_string(i) + std::string(static_cast<std::size_t>(i % 200), 'x');
        put(scratch.path(name), "");
        expected.insert(name);
    }
    Mounted mount(scratch);
    for (const std::uint32_t size : {512u, 4096u, 1u << 20}) {
        for (const bool plus : {false, true}) {
            std::set<std::string> seen;
            for (const auto& entry : mount->list(kRoot, size, plus)) {
                EXPECT_TRUE(seen.insert(entry.name).second) << entry.name << " twice";
                EXPECT_EQ(entry.node != 0, plus && entry.name[0] != '.') << entry.name;
                if (entry.name == "file0") {
                    EXPECT_EQ(entry.type, static_cast<std::uint32_t>(S_IFREG >> 12));
                }
            }
            EXPECT_EQ(seen, expected) << size << " bytes at a time";
        }
    }
}

TEST(MirrorDirectory, DeletionsMeanwhileMoveNothing) {
    Scratch scratch(place_for_many_files());
    constexpr int kFiles = 5000;
    for (int i = 0; i < kFiles; ++i) put(scratch.path("f" + std::to_string(i)), "");
    Mounted mount(scratch);
    for (const bool from_cookies : {false, true}) {
        std::set<std::string> before;
        for (const auto& entry : fs::directory_iterator(scratch.path())) before.insert(entry.path().filename());
        auto handle = mount->opendir(kRoot).handle();
        std::set<std::string> seen;
        std::set<std::string> deleted;
        int step = 0;
        for (std::uint64_t offset = 0;;) {
            // With a new stream each time, only the cookies carry on.
            if (from_cookies && offset != 0) {
                mount->releasedir(kRoot, handle);
                handle = mount->opendir(kRoot).handle();
            }
            const auto entries = Client::entries_of(mount->readdir(kRoot, handle, offset, 2048), false);
            if (entries.empty()) break;
            for (const auto& entry : entries) EXPECT_TRUE(seen.insert(entry.name).second) << entry.name << " twice";
            offset = entries.back().next;
            // What was just seen goes, the entry where reading goes on among it.
            for (const auto& entry : entries) {
                if (entry.name[0] == '.' || ++step % 2 == 0) continue;
                EXPECT_EQ(mount->unlink(kRoot, entry.name).error, 0);
                deleted.insert(entry.name);
            }
        }
        mount->releasedir(kRoot, handle);
        EXPECT_GT(deleted.size(), 100u);
        for (const auto& name : before) EXPECT_TRUE(seen.contains(name)) << name << " was skipped";
    }
}

TEST(MirrorDirectory, RewindsSeeksAndRemovedDirectories) {
    Scratch scratch;
    Mounted mount(scratch);
    const auto d = mount->mkdir(kRoot, "d").node();
    const auto handle = mount->opendir(d).handle();
    EXPECT_EQ(Client::entries_of(mount->readdir(d, handle, 0, 4096), false).size(), 2u);
    mount->create(d, "f", O_RDWR);
    EXPECT_EQ(Client::entries_of(mount->readdir(d, handle, 0, 4096), false).size(), 3u) << "rewound";
    EXPECT_EQ(mount->readdir(d, handle, 0, 20).error, EINVAL) << "no room for an entry";
    mount->unlink(d, "f");
    EXPECT_EQ(mount->rmdir(kRoot, "d").error, 0);
    EXPECT_EQ(mount->readdir(d, handle, 0, 4096).error, 0);
    EXPECT_TRUE(Client::entries_of(mount->readdir(d, handle, 0, 4096), false).empty());
    EXPECT_EQ(mount->create(d, "f", O_RDWR).error, ENOENT);
    EXPECT_EQ(mount->read(d, handle, 0, 10).error, EBADF) << "a directory's handle is no file's";
    EXPECT_EQ(mount->releasedir(d, handle).error, 0);
}

TEST(MirrorDirectory, EntriesMissingAtLookupAreNotLost) {
    Scratch scratch;
    for (int i = 0; i < 100; ++i) put(scratch.path("f" + std::to_string(i)), "");
    Mounted mount(scratch);
    const auto handle = mount->opendir(kRoot).handle();
    auto first = Client::entries_of(mount->readdir(kRoot, handle, 0, 1024, true), true);
    ASSERT_FALSE(first.empty());
    // In the buffer already: renamed on the host, so that the lookup fails with ENOENT and nothing else breaks.
    for (int i = 0; i < 100; ++i) fs::remove(scratch.path("f" + std::to_string(i)));
    std::uint64_t offset = first.back().next;
    for (int rounds = 0; rounds < 100; ++rounds) {
        const auto reply = mount->readdir(kRoot, handle, offset, 1024, true);
        ASSERT_EQ(reply.error, 0);
        const auto entries = Client::entries_of(reply, true);
        if (entries.empty()) return;
        offset = entries.back().next;
    }
    FAIL() << "the listing does not end";
}

}  // namespace
}  // namespace farhaul::mirror_test
