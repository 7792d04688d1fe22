// Record locks and flocks: who gets what, who waits, and who is told that waiting is in vain.
#include <thread>

#include "memory_support.hpp"

namespace farhaul::backend {
namespace {

constexpr std::uint64_t kEnd = INT64_MAX;

class MemoryLockTest : public MemoryTest {
 protected:
    int set(const File& file, std::uint64_t owner, std::uint64_t start, std::uint64_t end, std::uint32_t type,
            bool flock = false) {
        return client->setlk(file.node, file.handle, owner, start, end, type, flock).error;
    }
    std::unique_ptr<fuse_test::RawRequest> wait_for(const File& file, std::uint64_t owner, std::uint64_t start,
                                                    std::uint64_t end, std::uint32_t type, bool flock = false) {
        Bytes arguments;
        fuse_test::append(arguments, Client::lock(file.handle, owner, start, end, type, flock));
        return client->start(FUSE_SETLKW, file.node, arguments);
    }
    fuse_file_lock get(const File& file, std::uint64_t owner, std::uint64_t start, std::uint64_t end,
                       std::uint32_t type) {
        const Reply reply =
            client->call_with(FUSE_GETLK, file.node, Client::lock(file.handle, owner, start, end, type));
        EXPECT_EQ(reply.error, 0);
        return reply.as<fuse_lk_out>().lk;
    }
    static int error_of(fuse_test::RawRequest& request) { return Client::reply_of(request).error; }
};

TEST_F(MemoryLockTest, ExclusiveMeansOne) {
    const File file = create("f");
    EXPECT_EQ(set(file, 1, 0, kEnd, F_WRLCK, true), 0);
    EXPECT_EQ(set(file, 2, 0, kEnd, F_WRLCK, true), EAGAIN);
    EXPECT_EQ(set(file, 2, 0, kEnd, F_RDLCK, true), EAGAIN);
    EXPECT_EQ(set(file, 2, 0, kEnd, F_WRLCK), 0) << "flocks and record locks do not see each other";
    EXPECT_EQ(set(file, 1, 0, kEnd, F_UNLCK, true), 0);
    EXPECT_EQ(set(file, 2, 0, kEnd, F_RDLCK, true), 0);
    EXPECT_EQ(set(file, 3, 0, kEnd, F_RDLCK, true), 0);
    EXPECT_EQ(set(file, 2, 0, kEnd, F_WRLCK, true), EAGAIN);
    // As flock(2) says, a conversion that fails has lost the lock.
    EXPECT_EQ(set(file, 3, 0, kEnd, F_WRLCK, true), 0);
}

TEST_F(MemoryLockTest, RangesSplitAndMerge) {
    const File file = create("f");
    EXPECT_EQ(set(file, 1, 0, 99, F_WRLCK), 0);
    EXPECT_EQ(set(file, 1, 40, 59, F_UNLCK), 0);
    EXPECT_EQ(set(file, 2, 40, 59, F_WRLCK), 0);
    EXPECT_EQ(set(file, 2, 39, 59, F_WRLCK), EAGAIN);
    auto found = get(file, 2, 0, kEnd, F_WRLCK);
    EXPECT_EQ(found.type, static_cast<std::uint32_t>(F_WRLCK));
    EXPECT_EQ(found.start, 0u);
    EXPECT_EQ(found.end, 39u);
    EXPECT_EQ(found.pid, 1u);
    EXPECT_EQ(get(file, 2, 60, kEnd, F_RDLCK).start, 60u);
    EXPECT_EQ(get(file, 2, 40, 59, F_WRLCK).type, static_cast<std::uint32_t>(F_UNLCK));
    EXPECT_EQ(set(file, 2, 0, kEnd, F_UNLCK), 0);
    EXPECT_EQ(set(file, 1, 40, 59, F_WRLCK), 0);
    found = get(file, 2, 50, 50, F_RDLCK);
    EXPECT_EQ(found.start, 0u);
    EXPECT_EQ(found.end, 99u) << "touching ranges are one again";
    EXPECT_EQ(set(file, 1, 10, 19, F_RDLCK), 0) << "weaker in the middle";
    EXPECT_EQ(set(file, 2, 10, 19, F_RDLCK), 0);
    EXPECT_EQ(set(file, 2, 9, 19, F_RDLCK), EAGAIN);
    EXPECT_EQ(set(file, 1, 100, kEnd, F_WRLCK), 0);
    EXPECT_EQ(get(file, 2, 500, 500, F_RDLCK).end, kEnd);
}

TEST_F(MemoryLockTest, LocksEndWithFlushAndRelease) {
    const File file = create("f");
    EXPECT_EQ(set(file, 1, 0, 9, F_WRLCK), 0);
    EXPECT_EQ(client->flush(file.node, file.handle, 2).error, 0);
    EXPECT_EQ(set(file, 2, 0, 9, F_WRLCK), EAGAIN);
    EXPECT_EQ(client->flush(file.node, file.handle, 1).error, 0);
    EXPECT_EQ(set(file, 2, 0, 9, F_WRLCK), 0);
    // What nobody flushed ends with the open file at the latest.
    const File second{.node = file.node, .handle = client->open(file.node, O_RDWR).handle()};
    EXPECT_EQ(set(second, 3, 20, 29, F_WRLCK), 0);
    EXPECT_EQ(set(second, 3, 0, kEnd, F_WRLCK, true), 0);
    EXPECT_EQ(set(file, 1, 0, kEnd, F_WRLCK, true), EAGAIN);
    const auto waiter = wait_for(file, 1, 20, 29, F_WRLCK);
    EXPECT_EQ(waiter->ended(), 0);
    client->release(second.node, second.handle);
    EXPECT_EQ(error_of(*waiter), 0);
    EXPECT_EQ(set(file, 1, 0, kEnd, F_WRLCK, true), 0);
    EXPECT_EQ(set(second, 1, 0, 9, F_RDLCK), EBADF);
}

TEST_F(MemoryLockTest, WaitersComeInOrder) {
    const File file = create("f");
    EXPECT_EQ(set(file, 1, 0, 9, F_WRLCK), 0);
    const auto first = wait_for(file, 2, 0, 9, F_WRLCK);
    const auto second = wait_for(file, 3, 0, 9, F_WRLCK);
    const auto apart = wait_for(file, 4, 10, 19, F_WRLCK);
    EXPECT_EQ(error_of(*apart), 0);
    EXPECT_EQ(first->ended() + second->ended(), 0);
    EXPECT_EQ(set(file, 1, 0, 9, F_UNLCK), 0);
    EXPECT_EQ(error_of(*first), 0);
    EXPECT_EQ(second->ended(), 0);
    EXPECT_EQ(client->flush(file.node, file.handle, 2).error, 0);
    EXPECT_EQ(error_of(*second), 0);
}

TEST_F(MemoryLockTest, FlocksWaitToo) {
    const File file = create("f");
    EXPECT_EQ(set(file, 1, 0, kEnd, F_RDLCK, true), 0);
    EXPECT_EQ(set(file, 2, 0, kEnd, F_RDLCK, true), 0);
    const auto upgrade = wait_for(file, 1, 0, kEnd, F_WRLCK, true);
    EXPECT_EQ(upgrade->ended(), 0);
    EXPECT_EQ(set(file, 3, 0, kEnd, F_RDLCK, true), 0);
    EXPECT_EQ(set(file, 2, 0, kEnd, F_UNLCK, true), 0);
    EXPECT_EQ(upgrade->ended(), 0);
    fuse_release_in in{};
    in.lock_owner = 3;
    in.release_flags = FUSE_RELEASE_FLOCK_UNLOCK;
    // Of another open file: 3 loses its lock, 1 gets its.
    in.fh = client->open(file.node, O_RDWR).handle();
    EXPECT_EQ(client->call_with(FUSE_RELEASE, file.node, in).error, 0);
    EXPECT_EQ(error_of(*upgrade), 0);
}

TEST_F(MemoryLockTest, SignalsEndTheWait) {
    const File file = create("f");
    EXPECT_EQ(set(file, 1, 0, 9, F_WRLCK), 0);
    const auto waiter = wait_for(file, 2, 0, 9, F_WRLCK);
    client->interrupt(waiter->unique() + 1000);
    EXPECT_EQ(waiter->ended(), 0) << "that was another's";
    client->interrupt(waiter->unique());
    EXPECT_EQ(error_of(*waiter), EINTR);
    client->interrupt(waiter->unique());
    EXPECT_EQ(waiter->ended(), 1);
    EXPECT_EQ(set(file, 1, 0, 9, F_UNLCK), 0);
    EXPECT_EQ(set(file, 3, 0, 9, F_WRLCK), 0) << "who was interrupted holds nothing";
}

TEST_F(MemoryLockTest, DeadlocksAreRefused) {
    const File a = create("a");
    const File b = create("b");
    const File c = create("c");
    EXPECT_EQ(set(a, 1, 0, 0, F_WRLCK), 0);
    EXPECT_EQ(set(b, 2, 0, 0, F_WRLCK), 0);
    EXPECT_EQ(set(c, 3, 0, 0, F_WRLCK), 0);
    const auto first = wait_for(b, 1, 0, 0, F_WRLCK);
    const auto second = wait_for(c, 2, 0, 0, F_RDLCK);
    const auto third = wait_for(a, 3, 0, 0, F_WRLCK);
    EXPECT_EQ(error_of(*third), EDEADLK);
    EXPECT_EQ(first->ended() + second->ended(), 0);
    // The refused one gives way, and everything resolves.
    EXPECT_EQ(client->flush(c.node, c.handle, 3).error, 0);
    EXPECT_EQ(error_of(*second), 0);
    EXPECT_EQ(client->flush(b.node, b.handle, 2).error, 0);
    EXPECT_EQ(error_of(*first), 0);
}

TEST_F(MemoryLockTest, ADeadlockThatArisesInTheQueueIsFound) {
    const File a = create("a");
    const File b = create("b");
    EXPECT_EQ(set(a, 1, 0, 0, F_WRLCK), 0);
    EXPECT_EQ(set(b, 2, 0, 0, F_WRLCK), 0);
    const auto first = wait_for(a, 3, 0, 0, F_WRLCK);   // will hold a
    const auto second = wait_for(a, 2, 0, 0, F_WRLCK);  // 2 then waits for 3 ...
    const auto third = wait_for(b, 3, 0, 0, F_WRLCK);   // ... whose other thread waits for 2
    EXPECT_EQ(set(a, 1, 0, 0, F_UNLCK), 0);
    EXPECT_EQ(error_of(*first), 0);
    EXPECT_EQ(error_of(*second), EDEADLK);
    EXPECT_EQ(third->ended(), 0);
    client->flush(b.node, b.handle, 2);
    EXPECT_EQ(error_of(*third), 0);
}

TEST_F(MemoryLockTest, LocksAreLimited) {
    start({.max_locks = 3});
    const File file = create("f");
    EXPECT_EQ(set(file, 1, 0, 100, F_WRLCK), 0);
    EXPECT_EQ(set(file, 1, 10, 20, F_UNLCK), 0);
    EXPECT_EQ(set(file, 2, 10, 10, F_WRLCK), 0);
    EXPECT_EQ(set(file, 2, 12, 12, F_WRLCK), ENOLCK);
    EXPECT_EQ(set(file, 3, 0, kEnd, F_WRLCK, true), ENOLCK);
    EXPECT_EQ(set(file, 1, 50, 60, F_UNLCK), ENOLCK);
    EXPECT_EQ(set(file, 1, 0, kEnd, F_UNLCK), 0);
    EXPECT_EQ(set(file, 2, 12, 12, F_WRLCK), 0);
}

TEST_F(MemoryLockTest, NobodyWaitsForAClientThatIsGone) {
    const File file = create("f");
    EXPECT_EQ(set(file, 1, 0, 9, F_WRLCK), 0);
    const auto waiter = wait_for(file, 2, 0, 9, F_WRLCK);
    EXPECT_EQ(client->call(FUSE_DESTROY, 0, {}).error, 0);
    EXPECT_EQ(error_of(*waiter), ENOTCONN);
    EXPECT_EQ(client->init().error, 0);
    const File again{.node = client->lookup(kRootNode, "f").node(), .handle = client->open(file.node, O_RDWR).handle()};
    EXPECT_EQ(again.node, file.node);
    EXPECT_EQ(set(again, 3, 0, kEnd, F_WRLCK), 0);
    EXPECT_EQ(set(file, 3, 0, kEnd, F_WRLCK), EBADF);
}

// A hostile client says DESTROY while another of its threads locks.
TEST_F(MemoryLockTest, WhatIsLockedDuringDestroyDoesNotStay) {
    create("f");
    for (int round = 0; round < 500; ++round) {
        Client other(*session);
        const std::uint64_t node = client->lookup(kRootNode, "f").node();
        const File file{.node = node, .handle = client->open(node, O_RDWR).handle()};
        ASSERT_EQ(set(file, 1, 0, 9, F_WRLCK), 0) << "a lock of round " << round - 1 << " is there still";
        ASSERT_EQ(set(file, 3, 100, kEnd, F_WRLCK), 0);
        std::unique_ptr<fuse_test::RawRequest> waiting;
        std::thread locks([&] {
            other.setlk(file.node, file.handle, 2, 50, 59, F_WRLCK);
            Bytes arguments;
            fuse_test::append(arguments, Client::lock(file.handle, 2, 0, 9, F_WRLCK));
            waiting = other.start(FUSE_SETLKW, file.node, arguments);
        });
        for (int i = 0; i < round % 50; ++i) std::this_thread::yield();
        EXPECT_EQ(client->call(FUSE_DESTROY, 0, {}).error, 0);
        locks.join();
        ASSERT_EQ(waiting->ended(), 1) << "round " << round;
        ASSERT_EQ(client->init().error, 0);
        ASSERT_EQ(waiting->ended(), 1);
        const std::uint64_t again = client->lookup(kRootNode, "f").node();
        const File free{.node = again, .handle = client->open(again, O_RDWR).handle()};
        ASSERT_EQ(set(free, 4, 0, kEnd, F_WRLCK), 0) << "round " << round;
        ASSERT_EQ(client->call(FUSE_DESTROY, 0, {}).error, 0);
        ASSERT_EQ(client->init().error, 0);
    }
}

}  // namespace
}  // namespace farhaul::backend
