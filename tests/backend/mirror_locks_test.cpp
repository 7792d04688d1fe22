#include <chrono>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>

#include "mirror_fixture.hpp"

namespace farhaul::mirror_test {
namespace {

constexpr std::uint64_t kEnd = INT64_MAX;

struct Opened {
    Mounted mount;
    std::uint64_t node, handle;
    explicit Opened(const Scratch& scratch) : mount(scratch) {
        node = mount->lookup(kRoot, "f").node();
        handle = mount->open(node, O_RDWR).handle();
    }
    int lock(std::uint64_t owner, std::uint64_t start, std::uint64_t end, std::uint32_t type, bool flock = false) {
        return mount->setlk(node, handle, owner, start, end, type, flock).error;
    }
    std::unique_ptr<fuse_test::RawRequest> wait(std::uint64_t owner, std::uint32_t type, bool flock = false) {
        Bytes arguments;
        fuse_test::append(arguments, Client::lock(handle, owner, 0, kEnd, type, flock));
        return mount->start(FUSE_SETLKW, node, arguments);
    }
};

TEST(MirrorLocks, RecordLocksExcludeClientsOwnersAndLocalProcesses) {
    Scratch scratch;
    put(scratch.path("f"), "text");
    Opened a(scratch), b(scratch);
    EXPECT_EQ(a.lock(1, 0, 9, F_WRLCK), 0);
    EXPECT_EQ(a.lock(2, 5, 5, F_RDLCK), EAGAIN) << "another owner of the same client";
    EXPECT_EQ(b.lock(1, 5, 5, F_RDLCK), EAGAIN) << "the same number of another client";
    EXPECT_EQ(b.lock(1, 10, 20, F_WRLCK), 0);
    EXPECT_EQ(a.lock(1, 3, 4, F_UNLCK), 0);
    EXPECT_EQ(b.lock(1, 3, 4, F_RDLCK), 0);
    EXPECT_EQ(a.lock(1, 0, 2, F_RDLCK), 0) << "its own lock becomes a weaker one";
    EXPECT_EQ(b.lock(1, 0, 2, F_RDLCK), 0);

    const int fd = ::open(scratch.path("f").c_str(), O_RDWR | O_CLOEXEC);
    struct flock local{};
    local.l_type = F_WRLCK;
    local.l_whence = SEEK_SET;
    local.l_start = 15;
    local.l_len = 1;
    EXPECT_EQ(::fcntl(fd, F_SETLK, &local), -1);
    local.l_start = 100;
    EXPECT_EQ(::fcntl(fd, F_SETLK, &local), 0);
    EXPECT_EQ(a.lock(1, 50, kEnd, F_RDLCK), EAGAIN);
    const auto who = a.mount->call_with(FUSE_GETLK, a.node, Client::lock(a.handle, 1, 50, kEnd, F_RDLCK, false));
    EXPECT_EQ(who.as<fuse_lk_out>().lk.type, static_cast<std::uint32_t>(F_WRLCK));
    EXPECT_EQ(who.as<fuse_lk_out>().lk.start, 100u);
    EXPECT_EQ(who.as<fuse_lk_out>().lk.end, 100u);
    EXPECT_EQ(who.as<fuse_lk_out>().lk.pid, static_cast<std::uint32_t>(::getpid()));
    ::close(fd);

    // An owner that closes loses all of its locks; the others keep theirs.
    EXPECT_EQ(b.lock(1, 5, 9, F_WRLCK), EAGAIN);
    EXPECT_EQ(a.mount->flush(a.node, a.handle, 2).error, 0);
    EXPECT_EQ(b.lock(1, 5, 9, F_WRLCK), EAGAIN);
    EXPECT_EQ(a.mount->flush(a.node, a.handle, 1).error, 0);
    EXPECT_EQ(b.lock(1, 0, 9, F_WRLCK), 0);
    const auto other = b.mount->call_with(FUSE_GETLK, b.node, Client::lock(b.handle, 9, 0, 5, F_WRLCK, false));
    EXPECT_EQ(other.as<fuse_lk_out>().lk.pid, 1u) << "the pid that set it";
}

TEST(MirrorLocks, FlocksOfTwoClients) {
    Scratch scratch;
    put(scratch.path("f"), "text");
    Opened a(scratch), b(scratch);
    EXPECT_EQ(a.lock(1, 0, kEnd, F_WRLCK, true), 0);
    EXPECT_EQ(b.lock(1, 0, kEnd, F_WRLCK, true), EWOULDBLOCK);
    const int fd = ::open(scratch.path("f").c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_EQ(::flock(fd, LOCK_SH | LOCK_NB), -1);
    EXPECT_EQ(a.lock(1, 0, kEnd, F_UNLCK, true), 0);
    EXPECT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
    EXPECT_EQ(a.lock(1, 0, kEnd, F_RDLCK, true), EWOULDBLOCK);
    ::close(fd);
    EXPECT_EQ(a.lock(1, 0, kEnd, F_WRLCK, true), 0);
    EXPECT_EQ(a.mount->release(a.node, a.handle).error, 0);
    EXPECT_EQ(b.lock(1, 0, kEnd, F_WRLCK, true), 0);
}

TEST(MirrorLocks, WaitersAreServedInterruptedAndDoNotBlock) {
    Scratch scratch;
    put(scratch.path("f"), "text");
    for (const bool flock : {false, true}) {
        Opened a(scratch), b(scratch);
        ASSERT_EQ(a.lock(1, 0, kEnd, F_WRLCK, flock), 0);
        auto waiting = b.wait(1, F_WRLCK, flock);
        EXPECT_EQ(waiting->ended(), 0);
        EXPECT_EQ(b.mount->getattr(b.node).error, 0) << "others are served meanwhile";
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        EXPECT_EQ(waiting->ended(), 0);
        ASSERT_EQ(a.lock(1, 0, kEnd, F_UNLCK, flock), 0);
        EXPECT_EQ(Client::reply_of(*waiting).error, 0);
        EXPECT_EQ(a.lock(1, 0, kEnd, F_RDLCK, flock), EAGAIN) << "it has the lock";

        auto interrupted = a.wait(1, F_WRLCK, flock);
        const auto unique = a.mount->last_unique;
        a.mount->interrupt(unique);
        EXPECT_EQ(Client::reply_of(*interrupted).error, EINTR);
        a.mount->interrupt(unique);
        EXPECT_EQ(interrupted->ended(), 1);
        EXPECT_EQ(waiting->ended(), 1);
    }
}

TEST(MirrorLocks, LocksLeaveNoDescriptors) {
    Scratch scratch;
    put(scratch.path("f"), "text");
    Opened a(scratch);
    const auto before = open_descriptors();
    for (std::uint64_t owner = 1; owner < 50; ++owner) {
        EXPECT_EQ(a.lock(owner, owner, owner, F_WRLCK), 0);
        EXPECT_EQ(a.lock(1000, owner, owner, F_WRLCK), EAGAIN);
    }
    EXPECT_EQ(open_descriptors(), before + 49);
    for (std::uint64_t owner = 1; owner < 50; ++owner) EXPECT_EQ(a.lock(owner, 0, kEnd, F_UNLCK), 0);
    EXPECT_EQ(open_descriptors(), before);
}

TEST(MirrorLocks, NobodyWaitsForAClientThatIsGone) {
    Scratch scratch;
    put(scratch.path("f"), "text");
    for (const bool flock : {false, true}) {
        Opened holder(scratch), gone(scratch);
        ASSERT_EQ(holder.lock(1, 0, kEnd, F_WRLCK, flock), 0);
        const auto waiting = gone.wait(1, F_WRLCK, flock);
        EXPECT_EQ(waiting->ended(), 0);
        EXPECT_EQ(gone.mount->call(FUSE_DESTROY, 0, {}).error, 0);
        EXPECT_EQ(waiting->ended(), 1);
        EXPECT_EQ(Client::reply_of(*waiting).error, EINTR);
    }
}

// A hostile client says DESTROY while another of its threads locks.
TEST(MirrorLocks, WhatIsLockedDuringDestroyDoesNotStay) {
    Scratch scratch;
    put(scratch.path("f"), "text");
    for (const bool flock : {false, true}) {
        Opened holder(scratch);
        Mounted mount(scratch);
        ASSERT_EQ(holder.lock(1, 0, 9, F_WRLCK, flock), 0);
        const auto before = open_descriptors();
        for (int round = 0; round < 500; ++round) {
            const auto node = mount->lookup(kRoot, "f").node();
            const auto handle = mount->open(node, O_RDWR).handle();
            Client other(mount.session());
            std::unique_ptr<fuse_test::RawRequest> waiting;
            std::thread locks([&] {
                other.setlk(node, handle, 2, 50, 59, F_WRLCK);
                Bytes arguments;
                fuse_test::append(arguments, Client::lock(handle, 2, 0, kEnd, F_WRLCK, flock));
                waiting = other.start(FUSE_SETLKW, node, arguments);
            });
            for (int i = 0; i < round % 50; ++i) std::this_thread::yield();
            EXPECT_EQ(mount->call(FUSE_DESTROY, 0, {}).error, 0);
            locks.join();
            ASSERT_EQ(waiting->ended(), 1) << "round " << round;
            ASSERT_EQ(open_descriptors(), before) << "round " << round;
            ASSERT_EQ(mount->init().error, 0);
        }
        EXPECT_EQ(holder.lock(1, 0, kEnd, F_WRLCK, flock), 0);
    }
}

}  // namespace
}  // namespace farhaul::mirror_test
