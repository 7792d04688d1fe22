// The loop in real time.
#include <thread>

#include "udp_test_support.hpp"

namespace farhaul::udp {
namespace {

struct Fired {
    explicit Fired(RealLoop& l)
        : loop(l), timer(l.timers(), [](void* self) { static_cast<Fired*>(self)->fire(); }, this) {}
    void fire() {
        at.push_back(loop.now());
        if (again) timer.arm(loop.now());
    }
    RealLoop& loop;
    Timer timer;
    std::vector<TimePoint> at;
    bool again = false;
};

TEST(UdpLoop, TimersFireNeverEarlyAndSoon) {
    auto loop = RealLoop::create().value();
    Fired fired(*loop);
    for (const std::int64_t us : {0, 50, 500, 5'000, 30'000}) {
        fired.at.clear();
        loop->update_now();
        const TimePoint deadline = loop->now() + Duration::from_microseconds(us);
        fired.timer.arm(deadline);
        ASSERT_TRUE(loop->run_until([&] { return !fired.at.empty(); }, Duration::from_seconds(5)));
        EXPECT_GE(fired.at[0], deadline);
    }
}

TEST(UdpLoop, TimerThatArmsItselfForNowStarvesNobody) {
    auto loop = RealLoop::create().value();
    Fired fired(*loop);
    fired.again = true;
    fired.timer.arm(loop->now());
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    bool read_ready = false;
    ASSERT_TRUE(loop->add_fd(fds[0], EPOLLIN, [&](std::uint32_t) { read_ready = true; }));
    ASSERT_EQ(write(fds[1], "x", 1), 1);
    EXPECT_TRUE(loop->run_until([&] { return read_ready; }, Duration::from_seconds(5)));
    fired.timer.disarm();
    loop->remove_fd(fds[0]);
    ::close(fds[0]);
    ::close(fds[1]);
}

TEST(UdpLoop, CallbackMayRemoveItselfAndOthers) {
    auto loop = RealLoop::create().value();
    int a[2], b[2];
    ASSERT_EQ(pipe(a), 0);
    ASSERT_EQ(pipe(b), 0);
    int calls = 0;
    const auto callback = [&](std::uint32_t) {
        ++calls;
        loop->remove_fd(a[0]);
        loop->remove_fd(b[0]);
    };
    ASSERT_TRUE(loop->add_fd(a[0], EPOLLIN, callback));
    ASSERT_TRUE(loop->add_fd(b[0], EPOLLIN, callback));
    EXPECT_FALSE(loop->add_fd(a[0], EPOLLIN, callback)) << "twice";
    ASSERT_EQ(write(a[1], "x", 1), 1);
    ASSERT_EQ(write(b[1], "x", 1), 1);
    for (int i = 0; i < 5; ++i) loop->run_once(Duration::from_milliseconds(1));
    EXPECT_EQ(calls, 1);
    for (const int fd : {a[0], a[1], b[0], b[1]}) ::close(fd);
}

TEST(UdpLoop, PostAndStopFromOtherThreadsAreNeverLost) {
    auto loop = RealLoop::create().value();
    constexpr int kTasks = 20'000;
    int done = 0;
    std::thread poster([&] {
        for (int i = 0; i < kTasks; ++i) loop->post([&] { ++done; });
    });
    EXPECT_TRUE(loop->run_until([&] { return done == kTasks; }, Duration::from_seconds(30))) << done;
    poster.join();
    for (int round = 0; round < 50; ++round) {
        std::thread stopper([&] { loop->stop(); });
        loop->run();  // hangs if a stop were lost
        stopper.join();
    }
}

TEST(UdpLoop, WakeEndsASleep) {
    auto loop = RealLoop::create().value();
    for (int round = 0; round < 50; ++round) {
        std::thread waker([&] { loop->wake(); });
        loop->run_once(Duration::from_seconds(20));
        waker.join();
    }
    const TimePoint start = RealLoop::clock();
    loop->run_once(Duration::from_milliseconds(20));
    EXPECT_LT((RealLoop::clock() - start).seconds(), 10.0);
}

}  // namespace
}  // namespace farhaul::udp
