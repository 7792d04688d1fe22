#include "link/model.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace farhaul::link {
namespace {

constexpr TimePoint at_ns(std::int64_t ns) { return TimePoint::from_nanoseconds(ns); }

LinkModel make(const LinkConfig& config, std::vector<LinkChange> schedule = {}, std::uint64_t seed = 1) {
    auto model = LinkModel::create(config, std::move(schedule), seed);
    EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message);
    return std::move(*model);
}

LinkModel make(const LinkConfig& config, const char* schedule) {
    auto changes = parse_schedule(schedule);
    EXPECT_TRUE(changes.has_value()) << (changes ? "" : changes.error().message);
    return make(config, std::move(*changes));
}

/// Which of `packets` packets, offered back to back, are lost.
std::vector<bool> losses(LinkModel& model, std::size_t packets) {
    std::vector<bool> lost(packets);
    for (std::size_t i = 0; i < packets; ++i)
        lost[i] = model.offer(at_ns(static_cast<std::int64_t>(i) * 1000), 1500).dropped == DropReason::kLoss;
    return lost;
}

double share(const std::vector<bool>& lost) {
    std::size_t n = 0;
    for (const bool l : lost) n += l;
    return static_cast<double>(n) / static_cast<double>(lost.size());
}

std::vector<std::size_t> bursts(const std::vector<bool>& lost) {
    std::vector<std::size_t> lengths;
    std::size_t current = 0;
    for (const bool l : lost) {
        if (l) {
            ++current;
        } else if (current != 0) {
            lengths.push_back(current);
            current = 0;
        }
    }
    return lengths;
}

TEST(LinkModel, RateIsExactOverAMillionPackets) {
    auto model = make({.rate = BitRate::from_gigabits(400), .delay = Duration::from_microseconds(12'500)});
    for (std::int64_t i = 1; i <= 1'000'000; ++i) {
        const Fate fate = model.offer(TimePoint(), 4096);
        // 81.92 ns each, rounded down once.
        ASSERT_EQ(fate.departs.nanoseconds(), i * 8192 / 100);
        ASSERT_EQ(fate.arrives - fate.departs, Duration::from_microseconds(12'500));
    }
    EXPECT_EQ(model.backlog(TimePoint()), Duration::from_nanoseconds(81'920'000));
    EXPECT_EQ(model.backlog(at_ns(81'920'000)), Duration());
}

TEST(LinkModel, OverheadCountsOnTheLineOnly) {
    auto model = make({.rate = BitRate::from_gigabits(1), .overhead_bytes = 38});
    EXPECT_EQ(model.offer(TimePoint(), 1500).departs.nanoseconds(), 1538 * 8);
    EXPECT_EQ(model.counters().offered_bytes, 1500u);
}

TEST(LinkModel, AnInfiniteRateTakesNoTime) {
    auto model = make({.delay = Duration::from_milliseconds(1), .queue_bytes = 1000});
    for (int i = 0; i < 100; ++i) {
        const Fate fate = model.offer(at_ns(5), 1500);
        EXPECT_EQ(fate.dropped, DropReason::kNone);
        EXPECT_EQ(fate.arrives, at_ns(1'000'005));
    }
}

TEST(LinkModel, QueueDropsTheTail) {
    auto model = make({.rate = BitRate::from_gigabits(1), .queue_bytes = 15'000});
    for (int i = 0; i < 10; ++i) EXPECT_EQ(model.offer(TimePoint(), 1500).dropped, DropReason::kNone) << i;
    EXPECT_EQ(model.offer(TimePoint(), 1500).dropped, DropReason::kQueueFull);
    EXPECT_EQ(model.offer(TimePoint(), 1).dropped, DropReason::kQueueFull);
    EXPECT_EQ(model.offer(at_ns(11'999), 1500).dropped, DropReason::kQueueFull);
    const Fate fate = model.offer(at_ns(12'000), 1500);  // one packet has left
    EXPECT_EQ(fate.dropped, DropReason::kNone);
    EXPECT_EQ(fate.departs, at_ns(11 * 12'000)) << "what was dropped did not use the line";
    EXPECT_EQ(model.counters().dropped_queue, 3u);
    EXPECT_EQ(model.counters().delivered_packets, 11u);
}

TEST(LinkModel, AnIdleLineTakesAPacketLargerThanTheQueue) {
    auto model = make({.rate = BitRate::from_gigabits(1), .queue_bytes = 100});
    EXPECT_EQ(model.offer(TimePoint(), 1500).dropped, DropReason::kNone);
    EXPECT_EQ(model.offer(TimePoint(), 1500).dropped, DropReason::kQueueFull);
    EXPECT_EQ(model.offer(at_ns(12'000), 1500).dropped, DropReason::kNone);
}

TEST(LinkModel, QueueKnowsBytesThatWereQueuedBeforeTheRateChanged) {
    auto model = make({.rate = BitRate::from_gigabits(1), .queue_bytes = 15'000}, "rate=100M@12us");
    for (int i = 0; i < 10; ++i) model.offer(TimePoint(), 1500);
    // 9 packets wait; one more fits, no second one, although 108 us at 100 Mbit/s would be 1350 bytes only.
    const Fate fate = model.offer(at_ns(12'000), 1500);
    EXPECT_EQ(fate.dropped, DropReason::kNone);
    EXPECT_EQ(fate.departs, at_ns(120'000 + 120'000));
    EXPECT_EQ(model.offer(at_ns(12'000), 1500).dropped, DropReason::kQueueFull);
}

TEST(LinkModel, IndependentLossHasItsRateAndNoMemory) {
    for (const double p : {1e-3, 0.05, 0.3}) {
        auto model = make({.loss = {p, 1}});
        const std::size_t n = 2'000'000;
        const auto lost = losses(model, n);
        EXPECT_NEAR(share(lost), p, 5 * std::sqrt(p * (1 - p) / static_cast<double>(n))) << p;
        // The mean burst of independent losses is 1 / (1 - p).
        const auto lengths = bursts(lost);
        double sum = 0;
        for (const auto l : lengths) sum += static_cast<double>(l);
        const double mean = sum / static_cast<double>(lengths.size());
        EXPECT_NEAR(mean, 1 / (1 - p), 5 * std::sqrt(p) / (1 - p) / std::sqrt(static_cast<double>(lengths.size())))
            << p;
    }
}

TEST(LinkModel, BurstsHaveTheirMeanAndTheAverageLossStays) {
    struct Case {
        double p, burst;
    };
    for (const auto& c : {Case{0.01, 8}, Case{0.001, 3}, Case{0.2, 1.5}, Case{0.5, 20}}) {
        auto model = make({.loss = {c.p, c.burst}}, std::vector<LinkChange>{}, 7);
        const std::size_t n = 4'000'000;
        const auto lost = losses(model, n);
        const auto lengths = bursts(lost);
        const auto count = static_cast<double>(lengths.size());
        double sum = 0;
        std::size_t ones = 0;
        for (const auto l : lengths) sum += static_cast<double>(l), ones += l == 1;
        // A geometric length of mean L has variance L(L - 1), and 1 with probability 1/L.
        EXPECT_NEAR(sum / count, c.burst, 5 * std::sqrt(c.burst * (c.burst - 1) / count)) << c.p << ' ' << c.burst;
        EXPECT_NEAR(static_cast<double>(ones) / count, 1 / c.burst, 5 * std::sqrt(1 / c.burst / count)) << c.p;
        // Losses come in bursts: the share's standard error grows by at most sqrt(2 L).
        EXPECT_NEAR(share(lost), c.p, 5 * std::sqrt(2 * c.burst * c.p / static_cast<double>(n)))
            << c.p << ' ' << c.burst;
    }
}

TEST(LinkModel, BurstsAreStationaryFromTheFirstPacket) {
    int lost = 0;
    const int runs = 20'000;
    for (int seed = 0; seed < runs; ++seed)
        lost += make({.loss = {0.1, 50}}, std::vector<LinkChange>{}, static_cast<std::uint64_t>(seed))
                    .offer(TimePoint(), 1)
                    .dropped == DropReason::kLoss;
    EXPECT_NEAR(static_cast<double>(lost) / runs, 0.1, 5 * std::sqrt(0.09 / runs));
}

TEST(LinkModel, LossesOfZeroAndOne) {
    auto none = make({.loss = {0, 1}});
    EXPECT_EQ(share(losses(none, 100'000)), 0);
    auto none_in_bursts = make({.loss = {0, 9}});
    EXPECT_EQ(share(losses(none_in_bursts, 100'000)), 0);
    auto all = make({.loss = {1, 1}});
    EXPECT_EQ(share(losses(all, 100'000)), 1);
    auto all_in_bursts = make({.loss = {1, 9}});
    EXPECT_EQ(share(losses(all_in_bursts, 100'000)), 1);
}

TEST(LinkModel, AGroupSharesItsFate) {
    auto model = make({.loss = {0.25, 1}, .loss_per_group = true});
    int lost_groups = 0;
    const int groups = 40'000;
    for (int g = 0; g < groups; ++g) {
        const bool first = model.offer(TimePoint(), 1500, static_cast<std::uint64_t>(g)).dropped == DropReason::kLoss;
        for (int i = 1; i < 16; ++i)
            ASSERT_EQ(model.offer(TimePoint(), 1500, static_cast<std::uint64_t>(g)).dropped == DropReason::kLoss,
                      first);
        lost_groups += first;
    }
    EXPECT_NEAR(static_cast<double>(lost_groups) / groups, 0.25, 5 * std::sqrt(0.25 * 0.75 / groups));
}

TEST(LinkModel, JitterKeepsOrderAndStaysInItsRange) {
    const Duration jitter = Duration::from_milliseconds(5), delay = Duration::from_milliseconds(10);
    auto model = make({.rate = BitRate::from_gigabits(1), .delay = delay, .jitter = jitter});
    TimePoint last;
    bool varied = false;
    for (int i = 0; i < 20'000; ++i) {
        const Fate fate = model.offer(at_ns(i * 100'000), 1500);
        const Duration added = fate.arrives - fate.departs - delay;
        ASSERT_GE(added, Duration());
        ASSERT_LE(added, jitter);
        ASSERT_GE(fate.arrives, last);
        ASSERT_TRUE(fate.in_order);
        varied |= added > Duration::from_milliseconds(1);
        last = fate.arrives;
    }
    EXPECT_TRUE(varied);
}

TEST(LinkModel, ReorderingDelaysItsShareByAtMostItsDelay) {
    const Duration longest = Duration::from_milliseconds(3);
    auto model = make({.delay = Duration::from_milliseconds(1), .reorder_probability = 0.1, .reorder_delay = longest});
    int late = 0, overtaken = 0;
    const int n = 50'000;
    TimePoint latest;
    for (int i = 0; i < n; ++i) {
        const Fate fate = model.offer(at_ns(i * 10'000), 1500);
        const Duration added = fate.arrives - fate.departs - Duration::from_milliseconds(1);
        if (fate.in_order) {
            ASSERT_EQ(added, Duration()) << "a late packet holds up no others";
        } else {
            ASSERT_GT(added, Duration());
            ASSERT_LE(added, longest);
            ++late;
        }
        overtaken += fate.arrives < latest;
        latest = std::max(latest, fate.arrives);
    }
    EXPECT_NEAR(late / static_cast<double>(n), 0.1, 5 * std::sqrt(0.09 / n));
    EXPECT_GT(overtaken, n / 2) << "a packet that is 1.5 ms late is overtaken by 150 others";
    EXPECT_EQ(model.counters().reordered, static_cast<std::uint64_t>(late));
}

TEST(LinkModel, DuplicatesAndCorruption) {
    auto model = make({.duplicate_probability = 0.2, .corrupt_probability = 0.05});
    int copies = 0, corrupted = 0;
    const int n = 50'000;
    for (int i = 0; i < n; ++i) {
        const Fate fate = model.offer(at_ns(i), 100);
        if (fate.duplicated) {
            ++copies;
            ASSERT_EQ(fate.copy_arrives, fate.arrives);
        }
        corrupted += fate.corrupted;
    }
    EXPECT_NEAR(copies / static_cast<double>(n), 0.2, 5 * std::sqrt(0.16 / n));
    EXPECT_NEAR(corrupted / static_cast<double>(n), 0.05, 5 * std::sqrt(0.05 / n));
    EXPECT_EQ(model.counters().duplicated, static_cast<std::uint64_t>(copies));
    EXPECT_EQ(model.counters().corrupted, static_cast<std::uint64_t>(corrupted));
    EXPECT_EQ(model.counters().delivered_packets, static_cast<std::uint64_t>(n))
        << "copies are not counted as delivered";
}

TEST(LinkModel, OtherFaultsDoNotChangeWhichPacketsAreLost) {
    const LinkConfig plain{.loss = {0.02, 4}};
    LinkConfig busy = plain;
    busy.jitter = Duration::from_milliseconds(1);
    busy.reorder_probability = 0.1;
    busy.reorder_delay = Duration::from_milliseconds(1);
    busy.duplicate_probability = 0.1;
    busy.corrupt_probability = 0.1;
    auto a = make(plain, std::vector<LinkChange>{}, 42);
    auto b = make(busy, std::vector<LinkChange>{}, 42);
    EXPECT_EQ(losses(a, 200'000), losses(b, 200'000));
}

TEST(LinkModel, ReplaysBitForBitFromItsSeed) {
    const LinkConfig config{.rate = BitRate::from_gigabits(10),
                            .delay = Duration::from_milliseconds(2),
                            .queue_bytes = 200'000,
                            .loss = {0.05, 3},
                            .jitter = Duration::from_microseconds(50),
                            .reorder_probability = 0.02,
                            .reorder_delay = Duration::from_microseconds(300),
                            .duplicate_probability = 0.01,
                            .corrupt_probability = 0.01};
    const auto run = [&](std::uint64_t seed) {
        auto model = make(config, *parse_schedule("loss=0.2@10ms,rate=1G@20ms,down@30ms,up@32ms"), seed);
        std::vector<std::int64_t> trace;
        Random sizes(9);
        for (int i = 0; i < 50'000; ++i) {
            const Fate f = model.offer(at_ns(i * 1'000), static_cast<std::uint32_t>(sizes.between(64, 1500)));
            trace.insert(trace.end(), {static_cast<std::int64_t>(f.dropped), f.duplicated, f.corrupted, f.in_order,
                                       f.departs.nanoseconds(), f.arrives.nanoseconds(), f.copy_arrives.nanoseconds()});
        }
        return trace;
    };
    EXPECT_EQ(run(5), run(5));
    EXPECT_NE(run(5), run(6));
}

TEST(LinkModel, ScheduleChangesTheLinkAtItsTimes) {
    auto model = make({.rate = BitRate::from_gigabits(1), .delay = Duration::from_milliseconds(10)},
                      "up@8s, loss=1@3s, loss=0@4s, rate=500M@5s, delay=20ms@6s, down@7s");
    const auto offer = [&](double s) { return model.offer(TimePoint() + Duration::from_seconds(s), 1250); };
    EXPECT_EQ(offer(2.999).dropped, DropReason::kNone);
    EXPECT_EQ(offer(3.0).dropped, DropReason::kLoss);
    EXPECT_EQ(offer(3.999).dropped, DropReason::kLoss);
    Fate f = offer(4.0);
    EXPECT_EQ(f.dropped, DropReason::kNone);
    EXPECT_EQ((f.departs - at_ns(4'000'000'000)).nanoseconds(), 10'000);
    f = offer(5.0);
    EXPECT_EQ((f.departs - at_ns(5'000'000'000)).nanoseconds(), 20'000);
    EXPECT_EQ(f.arrives - f.departs, Duration::from_milliseconds(10));
    f = offer(6.5);
    EXPECT_EQ(f.arrives - f.departs, Duration::from_milliseconds(20));
    EXPECT_EQ(offer(7.5).dropped, DropReason::kLinkDown);
    EXPECT_EQ(offer(8.0).dropped, DropReason::kNone);
    EXPECT_EQ(model.counters().dropped_down, 1u);
    EXPECT_EQ(model.counters().dropped_loss, 2u);
    EXPECT_EQ(model.config().rate, BitRate::from_bits_per_second(500'000'000));
}

TEST(LinkModel, ACutOfTheDelayReordersNothing) {
    auto model = make({.delay = Duration::from_milliseconds(20)}, "delay=1ms@5ms");
    const Fate before = model.offer(at_ns(4'999'999), 1500);
    const Fate after = model.offer(at_ns(5'000'000), 1500);
    EXPECT_GE(after.arrives, before.arrives);
    EXPECT_EQ(model.offer(at_ns(50'000'000), 1500).arrives, at_ns(51'000'000));
}

TEST(LinkModel, AScheduledLossKeepsTheBurstLength) {
    auto model = make({.loss = {0.001, 6}}, "loss=0.1@0");
    const auto lengths = bursts(losses(model, 1'000'000));
    double sum = 0;
    for (const auto l : lengths) sum += static_cast<double>(l);
    EXPECT_NEAR(sum / static_cast<double>(lengths.size()), 6,
                5 * std::sqrt(30.0 / static_cast<double>(lengths.size())));
}

TEST(LinkModel, RefusesWhatCannotBe) {
    const auto refused = [](const LinkConfig& c, std::vector<LinkChange> s = {}) {
        auto m = LinkModel::create(c, std::move(s), 1);
        return !m && m.error().code == ErrorCode::kInvalidArgument && !m.error().message.empty();
    };
    EXPECT_TRUE(refused({.loss = {-0.1, 1}}));
    EXPECT_TRUE(refused({.loss = {1.1, 1}}));
    EXPECT_TRUE(refused({.loss = {std::nan(""), 1}}));
    EXPECT_TRUE(refused({.loss = {0.9, 2}})) << "bursts of 2 with a packet between them lose at most 2/3";
    EXPECT_FALSE(refused({.loss = {2.0 / 3, 2}}));
    EXPECT_TRUE(refused({.delay = Duration::from_nanoseconds(-1)}));
    EXPECT_TRUE(refused({.reorder_probability = 0.1}));
    EXPECT_TRUE(refused({.duplicate_probability = 2}));
    EXPECT_TRUE(refused({.corrupt_probability = -1}));
    EXPECT_TRUE(refused(
        {}, {LinkChange{.at = Duration::from_nanoseconds(-5), .loss = {}, .rate = {}, .delay = {}, .up = true}}));
}

TEST(Schedule, ReadsWhatTheManualSays) {
    auto s = parse_schedule("loss=1e-2@3s,loss=5%/8@4s,rate=500M@5s,delay=30ms@6s,down@7s, up@8s");
    ASSERT_TRUE(s.has_value()) << s.error().message;
    ASSERT_EQ(s->size(), 6u);
    EXPECT_EQ((*s)[0].at, Duration::from_seconds(3));
    EXPECT_EQ((*s)[0].loss->probability, 1e-2);
    EXPECT_EQ((*s)[0].loss->mean_burst_packets, 0);
    EXPECT_EQ((*s)[1].loss->probability, 0.05);
    EXPECT_EQ((*s)[1].loss->mean_burst_packets, 8);
    EXPECT_EQ(*(*s)[2].rate, BitRate::from_bits_per_second(500'000'000));
    EXPECT_EQ(*(*s)[3].delay, Duration::from_milliseconds(30));
    EXPECT_FALSE(*(*s)[4].up);
    EXPECT_TRUE(*(*s)[5].up);
    EXPECT_TRUE(parse_schedule("")->empty());
}

TEST(Schedule, SaysWhatIsWrong) {
    for (const char* text : {"loss=1e-2", "loss=1e-2@", "loss@3s", "loss=2@3s", "loss=x@3s", "loss=0.1/0@3s",
                             "loss=0.1/x@3s", "loss=0.1/@1s", "rate=fast@1s", "delay=3@1s", "down=1@2s", "sideways@2s",
                             "@3s", "down@3x", "down@3s,", ",down@3s", "down@-3s", "up@8s;down@9s", "rate=@1s"}) {
        auto s = parse_schedule(text);
        ASSERT_FALSE(s.has_value()) << text;
        EXPECT_EQ(s.error().code, ErrorCode::kInvalidArgument) << text;
        EXPECT_NE(s.error().message.find("schedule"), std::string::npos) << s.error().message;
    }
}

}  // namespace
}  // namespace farhaul::link
