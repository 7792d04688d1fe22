#include "io/ring.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace farhaul::io {
namespace {

struct Counted : Operation {
    Counted() {
        done = [](Operation* operation, std::int32_t result) {
            auto* self = static_cast<Counted*>(operation);
            ++self->calls;
            self->outcome = result;
        };
    }
    int calls = 0;
    std::int32_t outcome = 0;
};

class RingTest : public testing::TestWithParam<bool> {
 protected:
    void SetUp() override {
        auto made = Ring::create(8, GetParam());
        if (!made && made.error().code == ErrorCode::kUnsupported) GTEST_SKIP() << made.error().message;
        ASSERT_TRUE(made) << made.error().message;
        ring_ = std::move(*made);
        file_ = ::memfd_create("ring_test", MFD_CLOEXEC);
        ASSERT_GE(file_, 0);
    }
    void TearDown() override {
        if (file_ >= 0) ::close(file_);
    }
    void run_until(const Counted& operation) {
        while (operation.calls == 0) ring_->submit_and_reap(true);
    }
    std::unique_ptr<Ring> ring_;
    int file_ = -1;
};

TEST_P(RingTest, WritesReadsAndSyncs) {
    std::string head = "far", tail = "haul";
    const std::array<iovec, 2> from{iovec{head.data(), 3}, iovec{tail.data(), 4}};
    Counted write;
    ring_->write(file_, from, 2, 0, write);
    EXPECT_EQ(ring_->queued(), 1u);
    run_until(write);
    EXPECT_EQ(write.outcome, 7);

    Counted sync;
    ring_->fsync(file_, true, sync);
    run_until(sync);
    EXPECT_EQ(sync.outcome, 0);

    std::array<char, 16> bytes{};
    const std::array<iovec, 1> to{iovec{bytes.data(), bytes.size()}};
    Counted read;
    ring_->read(file_, to, 0, read);
    run_until(read);
    EXPECT_EQ(read.outcome, 9);
    EXPECT_EQ(std::string(bytes.data() + 2, 7), "farhaul");
}

TEST_P(RingTest, ReportsErrorsAsNegativeErrno) {
    char byte = 0;
    const std::array<iovec, 1> to{iovec{&byte, 1}};
    Counted read;
    ring_->read(-1, to, 0, read);
    run_until(read);
    EXPECT_EQ(read.outcome, -EBADF);
}

TEST_P(RingTest, TakesMoreOperationsThanItHasEntries) {
    constexpr int kMany = 1000;
    std::vector<Counted> operations(kMany);
    for (Counted& operation : operations) ring_->fsync(file_, false, operation);
    int calls = 0;
    for (int i = 0; i < 2 * kMany && calls < kMany; ++i) {
        ring_->submit_and_reap(true);
        calls = 0;
        for (const Counted& operation : operations) calls += operation.calls;
    }
    for (const Counted& operation : operations) {
        EXPECT_EQ(operation.calls, 1);
        EXPECT_EQ(operation.outcome, 0);
    }
    EXPECT_LE(ring_->in_flight(), 1u);  // the wake-up's own
}

TEST_P(RingTest, CompletionsMayQueueMore) {
    struct Chain : Operation {
        Ring* ring = nullptr;
        int file = -1;
        int left = 100;
    } chain;
    chain.ring = ring_.get();
    chain.file = file_;
    chain.done = [](Operation* operation, std::int32_t) {
        auto* self = static_cast<Chain*>(operation);
        if (--self->left > 0) self->ring->fsync(self->file, true, *self);
    };
    ring_->fsync(file_, true, chain);
    while (chain.left > 0) ring_->submit_and_reap(true);
    EXPECT_EQ(chain.left, 0);
}

TEST_P(RingTest, DoesNotWaitWhenToldNotTo) {
    EXPECT_EQ(ring_->submit_and_reap(false), 0u);
    EXPECT_EQ(ring_->submit_and_reap(false), 0u);
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    char byte = 0;
    const std::array<iovec, 1> to{iovec{&byte, 1}};
    Counted read;
    ring_->read(pipe[0], to, static_cast<std::uint64_t>(-1), read);
    EXPECT_EQ(ring_->submit_and_reap(false), 0u);
    ASSERT_EQ(::write(pipe[1], "x", 1), 1);
    for (int i = 0; i < 1000 && read.calls == 0; ++i) ring_->submit_and_reap(false);
    EXPECT_EQ(read.outcome, 1);
    EXPECT_EQ(byte, 'x');
    ::close(pipe[0]);
    ::close(pipe[1]);
}

TEST_P(RingTest, ReadsWhenThereIsSomething) {
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK), 0);
    std::array<char, 8> bytes{};
    const std::array<iovec, 1> to{iovec{bytes.data(), bytes.size()}};
    for (int round = 0; round < 20; ++round) {
        Counted read;
        ring_->read_when(EPOLLIN | EPOLLEXCLUSIVE, pipe[0], to, read);
        ring_->submit_and_reap(false);
        EXPECT_EQ(read.calls, 0);
        ASSERT_EQ(::write(pipe[1], "abc", 3), 3);
        run_until(read);
        EXPECT_EQ(read.outcome, 3);
        EXPECT_EQ(read.calls, 1);
    }
    // It is already there.
    ASSERT_EQ(::write(pipe[1], "abc", 3), 3);
    Counted read;
    ring_->read_when(EPOLLIN, pipe[0], to, read);
    run_until(read);
    EXPECT_EQ(read.outcome, 3);
    ::close(pipe[0]);
    ::close(pipe[1]);
}

TEST_P(RingTest, CancelEndsAnOperationOnce) {
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    char byte = 0;
    const std::array<iovec, 1> to{iovec{&byte, 1}};
    Counted plain;
    Counted polled;
    ring_->read(pipe[0], to, static_cast<std::uint64_t>(-1), plain);
    ring_->read_when(EPOLLIN, pipe[0], to, polled);
    ring_->submit_and_reap(false);
    ring_->cancel(plain);
    ring_->cancel(polled);
    run_until(plain);
    run_until(polled);
    EXPECT_EQ(plain.outcome, -ECANCELED);
    EXPECT_EQ(polled.outcome, -ECANCELED);
    ring_->cancel(plain);  // it has ended
    ring_->submit_and_reap(false);
    EXPECT_EQ(plain.calls, 1);
    EXPECT_EQ(polled.calls, 1);
    ::close(pipe[0]);
    ::close(pipe[1]);
}

TEST_P(RingTest, WakesFromOtherThreads) {
    constexpr int kRounds = 2000;
    std::atomic<int> handed{0};
    std::atomic<int> seen{0};
    std::thread waker([&] {
        for (int i = 1; i <= kRounds; ++i) {
            handed.store(i);
            ring_->wake();
            if (i % 3 == 0)
                while (seen.load() != i) std::this_thread::yield();
        }
    });
    while (seen.load() < kRounds) {
        ring_->submit_and_reap(true);
        seen.store(handed.load());
    }
    waker.join();
}

TEST_P(RingTest, WakeBeforeTheFirstWaitIsRemembered) {
    ring_->wake();
    ring_->wake();
    ring_->submit_and_reap(true);  // would hang
}

TEST_P(RingTest, IsMadeOnOneThreadAndOwnedByAnother) {
    Counted sync;
    std::thread([&] {
        ring_->fsync(file_, true, sync);
        run_until(sync);
    }).join();
    EXPECT_EQ(sync.outcome, 0);
}

TEST_P(RingTest, DestroyedWithOperationsUnderWayLeavesTheirMemoryAlone) {
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    char byte = 0;
    const std::array<iovec, 1> to{iovec{&byte, 1}};
    Counted read;
    ring_->read(pipe[0], to, static_cast<std::uint64_t>(-1), read);
    ring_->submit_and_reap(false);
    ring_.reset();
    ASSERT_EQ(::write(pipe[1], "x", 1), 1);
    EXPECT_EQ(read.calls, 0);
    EXPECT_EQ(byte, 0);
    ASSERT_EQ(::read(pipe[0], &byte, 1), 1) << "the cancelled operation took the byte";
    ::close(pipe[0]);
    ::close(pipe[1]);
}

INSTANTIATE_TEST_SUITE_P(Entries, RingTest, testing::Values(false, true),
                         [](const auto& entries) { return entries.param ? "Large" : "Plain"; });

}  // namespace
}  // namespace farhaul::io
