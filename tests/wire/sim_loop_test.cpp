#include <vector>

#include <gtest/gtest.h>

#include "wire/sim/sim_loop.hpp"

namespace farhaul::wire {
namespace {

TEST(SimLoop, JumpsFromTimerToTimerInOrder) {
    SimLoop loop;
    std::vector<std::int64_t> seen;
    for (int ms : {30, 10, 20})
        loop.call_after(Duration::from_milliseconds(ms), [&] { seen.push_back(loop.now().nanoseconds()); });
    ASSERT_TRUE(loop.run());
    EXPECT_EQ(seen, (std::vector<std::int64_t>{10'000'000, 20'000'000, 30'000'000}));
    EXPECT_EQ(loop.events(), 3u);
}

TEST(SimLoop, EqualDeadlinesFireAsArmed) {
    SimLoop loop;
    std::vector<int> seen;
    for (int i = 0; i < 100; ++i) loop.call_after(Duration::from_nanoseconds(5), [&seen, i] { seen.push_back(i); });
    ASSERT_TRUE(loop.run());
    for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(SimLoop, RunUntilStopsAtTheTimeAndSetsTheClock) {
    SimLoop loop;
    int fired = 0;
    loop.call_after(Duration::from_nanoseconds(10), [&] { ++fired; });
    loop.call_after(Duration::from_nanoseconds(11), [&] { ++fired; });
    ASSERT_TRUE(loop.run_until(TimePoint::from_nanoseconds(10)));
    EXPECT_EQ(fired, 1);
    EXPECT_EQ(loop.now().nanoseconds(), 10);
    ASSERT_TRUE(loop.run_for(Duration::from_nanoseconds(100)));
    EXPECT_EQ(fired, 2);
    EXPECT_EQ(loop.now().nanoseconds(), 110);
}

TEST(SimLoop, RunWhileSaysWhyItCannotGoOn) {
    SimLoop loop;
    bool done = false;
    loop.call_after(Duration::from_milliseconds(1), [&] { done = true; });
    ASSERT_TRUE(loop.run_while([&] { return !done; }));
    EXPECT_EQ(loop.now().nanoseconds(), 1'000'000);
    Status nothing_left = loop.run_while([] { return true; });
    ASSERT_FALSE(nothing_left);
    EXPECT_EQ(nothing_left.error().code, ErrorCode::kTimeout);
    loop.call_after(Duration::from_milliseconds(10), [] {});
    Status too_late = loop.run_while([] { return true; }, TimePoint::from_nanoseconds(5'000'000));
    ASSERT_FALSE(too_late);
    EXPECT_EQ(loop.now().nanoseconds(), 1'000'000);
}

struct Restless {
    Restless(SimLoop& l, Duration p) : loop(l), period(p), timer(l.timers(), fire, this) { timer.arm(l.now()); }
    static void fire(void* context) {
        auto* self = static_cast<Restless*>(context);
        self->timer.arm(self->loop.now() + self->period);
    }
    SimLoop& loop;
    Duration period;
    Timer timer;
};

TEST(SimLoop, ALivelockEndsWithAnError) {
    SimLoop loop;
    loop.set_event_budget(1'000'000, 1'000);
    Restless still(loop, Duration());
    Status status = loop.run();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
    EXPECT_NE(status.error().message.find("time stands still"), std::string::npos);
    EXPECT_LE(loop.events(), 1'001u);
}

TEST(SimLoop, AnEndlessRunEndsAtItsBudget) {
    SimLoop loop;
    loop.set_event_budget(5'000, 1'000);
    Restless endless(loop, Duration::from_nanoseconds(1));
    Status status = loop.run();
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find("budget"), std::string::npos);
}

TEST(SimLoop, AnActionMayAddActions) {
    SimLoop loop;
    int depth = 0;
    std::function<void()> again = [&] {
        if (++depth < 50) loop.call_after(Duration::from_nanoseconds(1), again);
    };
    again();
    ASSERT_TRUE(loop.run());
    EXPECT_EQ(depth, 50);
    EXPECT_EQ(loop.now().nanoseconds(), 49);
}

}  // namespace
}  // namespace farhaul::wire
