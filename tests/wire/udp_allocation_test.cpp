// The sanitizers bring their own operator new: there this file is empty.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FARHAUL_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FARHAUL_SANITIZED 1
#endif
#endif
#ifndef FARHAUL_SANITIZED

// The data path of the UDP wire does not allocate: not per packet, not per batch.
#include <cstdlib>
#include <new>

#include "udp_test_support.hpp"

namespace {

std::atomic<std::uint64_t> allocations{0};
thread_local bool counting = false;

void* counted(std::size_t size) {
    if (counting) allocations.fetch_add(1, std::memory_order_relaxed);
    if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
    throw std::bad_alloc();
}

}  // namespace

// For the whole test program; the aligned forms are left alone: nothing on this path uses them.
void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace farhaul::udp {
namespace {

TEST(UdpAllocation, SendingAndReceivingDataAllocatesNothing) {
    Pair pair;
    pair.listen();
    ConnectParameters wanted;
    wanted.payload_bytes = 1448;
    ASSERT_TRUE(pair.connect(wanted));
    const auto data = pattern(100 * 1448, 1);
    RecordingSink sink(data.size(), 1448);
    pair.at_server.wire->attach(&sink);
    const auto packets = packets_of(data, 1448);
    // The first round may size something once.
    pair.at_client.wire->tx_burst(packets);
    ASSERT_TRUE(pair.run_until([&] { return sink.packets >= packets.size(); }));

    const std::uint64_t before = allocations.load();
    counting = true;
    const std::unique_ptr<int> seen = std::make_unique<int>(1);  // the counter counts
    for (int round = 0; round < 50; ++round) {
        pair.at_client.wire->tx_burst(packets);
        for (int i = 0; i < 20; ++i) pair.loop->run_once(Duration{});
    }
    counting = false;
    EXPECT_GE(sink.packets, packets.size() * 40) << "the data came while it was counted";
    EXPECT_EQ(allocations.load() - before, 1u);
}

}  // namespace
}  // namespace farhaul::udp

#endif  // FARHAUL_SANITIZED
