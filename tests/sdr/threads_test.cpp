// Channels with a thread each: all of them on the same messages at once, with duplicates across channels, while the
// owner posts, shrinks, reads and completes. Run under ThreadSanitizer it also proves the order of stores.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "base/bytes.hpp"
#include "fake_wire.hpp"
#include "sdr/message_table.hpp"

namespace farhaul::sdr {
namespace {

using testing::GuardedBuffer;
using testing::message_bytes;

/// A wire whose channels are threads of the test. quiesce() waits for them as the udp wire does.
struct ThreadedWire final : Wire {
    const WireLimits& limits() const override { return limits_; }
    void attach(WireSink* sink) override {
        std::unique_lock lock(gate);
        sink_ = sink;
    }
    std::size_t tx_burst(std::span<const OutgoingPacket> packets) override { return packets.size(); }
    void send_datagram(std::span<const std::byte>) override {}
    void quiesce() override { std::unique_lock lock(gate); }
    void wake() override { wakes.fetch_add(1); }
    void deliver(std::uint32_t channel, std::span<const Arrival> arrivals) {
        std::shared_lock lock(gate);
        if (sink_ != nullptr) sink_->on_arrivals(channel, arrivals);
    }

    WireLimits limits_{.max_payload_bytes = 4096, .channels = 3, .concurrent_channels = true};
    std::shared_mutex gate;
    WireSink* sink_ = nullptr;
    std::atomic<int> wakes{0};
};

TEST(Threads, ChannelsShareAMessage) {
    constexpr std::uint32_t kThreads = 3;
    constexpr std::uint64_t kMessages = 200;
    const QueuePairConfig config{.layout = {2, 22, 8},
                                 .payload_bytes = 16,
                                 .packets_per_chunk = 7,
                                 .max_messages = 4,
                                 .max_message_bytes = 16 * 300};
    testing::ManualLoop loop;
    ThreadedWire wire;
    struct Owner final : QueuePairListener {
        std::uint64_t calls = 0;
        void on_receive_progress(MessageSlot&) override { ++calls; }
    } owner;
    auto made = QueuePair::create(loop, wire, config, &owner);
    ASSERT_TRUE(made);
    QueuePair& queue_pair = **made;

    std::barrier start(kThreads + 1), stop(kThreads + 1);
    std::vector<std::byte> bytes;
    std::uint64_t message = 0;
    std::atomic<std::uint32_t> running{0};
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            Random random(t + 1);
            for (std::uint64_t n = 0; n < kMessages; ++n) {
                start.arrive_and_wait();
                const auto packets = static_cast<std::uint32_t>((bytes.size() + 15) / 16);
                std::vector<Arrival> batch;
                // Every packet twice over all threads, so that copies of one packet come on two channels at the same
                // time.
                for (std::uint32_t i = 0; i < packets; ++i) {
                    if (i % kThreads != t && (i + 1) % kThreads != t) continue;
                    const std::uint64_t offset = i * 16ull;
                    batch.push_back({bytes.data() + offset,
                                     static_cast<std::uint32_t>(std::min<std::uint64_t>(16, bytes.size() - offset)),
                                     config.layout.encode(static_cast<std::uint32_t>(message % 4), i, 0),
                                     static_cast<std::uint32_t>(message / 4)});
                }
                for (std::size_t i = batch.size(); i > 1; --i)
                    if (random.chance(0.3)) std::swap(batch[i - 1], batch[random.below(i)]);
                for (std::size_t at = 0; at < batch.size();) {
                    const std::size_t size = std::min<std::size_t>(batch.size() - at, random.between(1, 40));
                    wire.deliver(t, {batch.data() + at, size});
                    at += size;
                }
                running.fetch_sub(1);
                stop.arrive_and_wait();
            }
        });
    Random random(99);
    std::uint64_t polled = 0;
    for (message = 0; message < kMessages; ++message) {
        const std::uint64_t length = random.between(1, 16 * 280);
        const bool shrink = random.chance(0.5);
        const bool early = random.chance(0.2);
        bytes = message_bytes(message, length);
        GuardedBuffer buffer(shrink ? length + random.below(16 * 20) : length);
        auto posted = queue_pair.post_receive(buffer.data(), buffer.length());
        ASSERT_TRUE(posted);
        MessageSlot& slot = **posted;
        running = kThreads;
        start.arrive_and_wait();
        bool announced = false;
        for (int turn = 0; running.load() > 0 || turn < 3; ++turn) {
            if (!announced && turn >= 1) {
                // What on_message_info() does, in the middle of the arrivals.
                std::vector<std::byte> datagram;
                ByteWriter writer(datagram);
                writer.write(std::uint8_t{1});
                writer.write(std::uint8_t{0});
                writer.write(std::uint16_t{1});
                writer.write(std::uint64_t{0});
                writer.write(std::uint64_t{1});
                writer.write(std::uint64_t{0});
                writer.write(std::uint32_t{0});
                writer.write(message);
                writer.write(std::uint8_t{2});
                writer.write(message);
                writer.write(length);
                writer.write(std::uint8_t{0});
                writer.write(std::uint32_t{0});
                wire.sink_->on_datagram(datagram);
                announced = true;
            }
            // Read payload wherever a chunk bit says that one may.
            for (std::uint32_t c = slot.next_incomplete_chunk(0); c-- > 0;) {
                const std::uint64_t at = c * 7ull * 16;
                ASSERT_EQ(buffer.data()[at], bytes[at]);
            }
            wire.sink_->poll();
            if (early && turn == 2) break;
        }
        if (early) {
            queue_pair.complete_receive(slot);
            const std::vector<std::byte> then(buffer.data(), buffer.data() + buffer.length());
            stop.arrive_and_wait();
            ASSERT_TRUE(std::equal(then.begin(), then.end(), buffer.data()));
        } else {
            stop.arrive_and_wait();
            ASSERT_EQ(slot.length(), length);
            ASSERT_TRUE(slot.complete()) << message << ": " << slot.chunks_complete() << " of " << slot.chunks();
            ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), buffer.data()));
            queue_pair.complete_receive(slot);
        }
        ASSERT_TRUE(buffer.guards_intact());
        polled = owner.calls;
    }
    for (auto& thread : threads) thread.join();
    EXPECT_GT(polled, 0u);
    EXPECT_GT(wire.wakes.load(), 0);
    EXPECT_EQ(queue_pair.counters().arrivals.out_of_bounds, 0u);
    EXPECT_EQ(queue_pair.counters().malformed_datagrams, 0u);
}

TEST(Threads, EachChunkIsCountedOnce) {
    constexpr std::uint32_t kThreads = 2;
    auto made = MessageTable::create({.layout = {2, 22, 8}, .payload_bytes = 64, .packets_per_chunk = 16});
    MessageTable& table = **made;
    for (std::uint64_t n = 0; n < 50; ++n) {
        constexpr std::uint32_t kPackets = 16 * 400;
        auto slot = table.open(n, nullptr, kPackets * 64ull);
        std::vector<ArrivalCounters> counters(kThreads);
        std::vector<std::thread> threads;
        for (std::uint32_t t = 0; t < kThreads; ++t)
            threads.emplace_back([&, t] {
                std::vector<Arrival> batch;
                for (std::uint32_t i = t; i < kPackets; i += kThreads)
                    batch.push_back({nullptr, 64, table.config().layout.encode(static_cast<std::uint32_t>(n % 4), i, 0),
                                     static_cast<std::uint32_t>(n / 4)});
                std::array<MessageSlot*, 4> touched{};
                std::size_t count = 0;
                table.arrivals<true>(batch, counters[t], touched, count);
            });
        for (auto& thread : threads) thread.join();
        ASSERT_EQ((*slot)->chunks_complete(), 400u);
        ASSERT_TRUE((*slot)->complete());
        ASSERT_EQ(counters[0].accepted + counters[1].accepted, kPackets);
        table.close(**slot);
    }
}

}  // namespace
}  // namespace farhaul::sdr
