// No allocation per packet: not on the receive path, and not on the send path once its pool of ranges has grown.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "fake_wire.hpp"

// The sanitizers bring their own operator new; without them this program's counts the allocations of each thread.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FARHAUL_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FARHAUL_SANITIZED 1
#endif
#endif
#ifndef FARHAUL_SANITIZED
namespace {
thread_local std::uint64_t allocations = 0;
}
[[gnu::noinline]] void* operator new(std::size_t size) {
    ++allocations;
    if (void* memory = std::malloc(size)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace farhaul::sdr {
namespace {

using testing::message_bytes;

TEST(Allocation, NonePerPacketOnEitherPath) {
    testing::ManualLoop loop;
    struct NullWire final : Wire {
        const WireLimits& limits() const override { return limits_; }
        void attach(WireSink* sink) override { sink_ = sink; }
        std::size_t tx_burst(std::span<const OutgoingPacket> packets) override {
            for (const OutgoingPacket& p : packets) {
                const Arrival arrival{p.payload, p.length, p.immediate, p.generation};
                if (p.immediate % 3 != 0) sink_->on_arrivals(p.channel, {&arrival, 1});
            }
            return packets.size();
        }
        void send_datagram(std::span<const std::byte> datagram) override { sink_->on_datagram(datagram); }
        WireLimits limits_;
        WireSink* sink_ = nullptr;
    } wire;  // a mirror: the queue pair sends to itself
    QueuePairConfig config{.payload_bytes = 64, .max_messages = 4, .max_message_bytes = 64u << 12};
    auto queue_pair = QueuePair::create(loop, wire, config, nullptr);
    ASSERT_TRUE(queue_pair);
    const auto bytes = message_bytes(0, 64u << 12);
    std::vector<std::byte> buffer(bytes.size());
    std::uint64_t first = 0;
    for (int round = 0; round < 40; ++round) {
        auto slot = (*queue_pair)->post_receive(buffer.data(), buffer.size());
        ASSERT_TRUE(slot);
        loop.run_for(Duration::from_microseconds(1));
        auto send = (*queue_pair)->start_send({.immediate = 5});
        ASSERT_TRUE(send);
        const std::uint64_t before = allocations;
        for (std::uint64_t at = 0; at < bytes.size(); at += 64 * 256)
            ASSERT_TRUE((*queue_pair)->continue_send(**send, at, bytes.data() + at, 64 * 256));
        const std::uint64_t during = allocations - before;
        if (round == 0) first = during;
        ASSERT_TRUE(round == 0 || during == 0) << during << " allocations for 4096 packets in round " << round;
        ASSERT_TRUE((*queue_pair)->end_send(**send));
        ASSERT_GT((*slot)->packet_horizon(), 4000u);
        (*queue_pair)->complete_receive(**slot);
        (*queue_pair)->release_send(**send);
    }
    EXPECT_LE(first, 2u) << "the pool of ranges";
    EXPECT_GT(allocations, 0u) << "the counter counts";
}

}  // namespace
}  // namespace farhaul::sdr
#endif
