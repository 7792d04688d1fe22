#include "base/loop.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace farhaul {
namespace {

struct Record {
    std::vector<int>* fired;
    int name;
};
void note(void* context) {
    auto* record = static_cast<Record*>(context);
    record->fired->push_back(record->name);
}

TEST(TimerQueue, FiresInOrderOfTimeThenOfArming) {
    TimerQueue queue;
    std::vector<int> fired;
    Record records[] = {{&fired, 0}, {&fired, 1}, {&fired, 2}, {&fired, 3}};
    Timer a(queue, note, &records[0]), b(queue, note, &records[1]), c(queue, note, &records[2]),
        d(queue, note, &records[3]);
    const auto at = [](int ns) { return TimePoint::from_nanoseconds(ns); };
    a.arm(at(30));
    b.arm(at(10));
    c.arm(at(10));
    d.arm(at(20));
    d.disarm();
    EXPECT_EQ(queue.next_deadline(), at(10));
    while (queue.fire_next(at(100))) {
    }
    EXPECT_EQ(fired, (std::vector<int>{1, 2, 0}));
    EXPECT_FALSE(a.armed());
}

TEST(TimerQueue, DoesNotFireEarly) {
    TimerQueue queue;
    std::vector<int> fired;
    Record record{&fired, 7};
    Timer timer(queue, note, &record);
    timer.arm(TimePoint::from_nanoseconds(5));
    EXPECT_FALSE(queue.fire_next(TimePoint::from_nanoseconds(4)));
    timer.arm_no_later_than(TimePoint::from_nanoseconds(9));
    EXPECT_TRUE(queue.fire_next(TimePoint::from_nanoseconds(5)));
}

TEST(TimerQueue, SurvivesRandomArmingAndDestruction) {
    Random random(1);
    TimerQueue queue;
    std::vector<int> fired;
    std::vector<Record> records(200);
    std::vector<std::unique_ptr<Timer>> timers(200);
    for (int i = 0; i < 200; ++i) records[i] = {&fired, i};
    std::vector<std::int64_t> due(200, -1);
    for (int step = 0; step < 20'000; ++step) {
        const auto i = random.below(200);
        switch (random.below(4)) {
            case 0:
                timers[i].reset(), due[i] = -1;
                break;
            case 1:
                if (timers[i]) timers[i]->disarm(), due[i] = -1;
                break;
            default:
                if (!timers[i]) timers[i] = std::make_unique<Timer>(queue, note, &records[i]);
                due[i] = static_cast<std::int64_t>(random.below(1000));
                timers[i]->arm(TimePoint::from_nanoseconds(due[i]));
        }
        std::int64_t least = TimePoint::never().nanoseconds();
        for (auto d : due)
            if (d >= 0) least = std::min(least, d);
        ASSERT_EQ(queue.next_deadline().nanoseconds(), least) << "step " << step;
    }
    std::int64_t last = 0;
    while (!queue.empty()) {
        const auto now = queue.next_deadline();
        ASSERT_GE(now.nanoseconds(), last);
        last = now.nanoseconds();
        fired.clear();
        ASSERT_TRUE(queue.fire_next(now));
        ASSERT_EQ(due[static_cast<std::size_t>(fired.at(0))], last);
    }
}

}  // namespace
}  // namespace farhaul
