// What the send side costs per packet, without payload: ranges cut into packets and handed to a wire that takes
// everything and looks at nothing.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "base/loop.hpp"
#include "sdr/queue_pair.hpp"

namespace farhaul::sdr {
namespace {

struct BenchLoop final : Loop {
    TimePoint now() const override { return now_; }
    void turn(Duration step) {
        now_ = now_ + step;
        while (timers_.fire_next(now_)) {
        }
    }
    TimePoint now_;
};

/// Its control datagrams come back: the queue pair is its own peer.
struct Mirror final : Wire {
    const WireLimits& limits() const override { return limits_; }
    void attach(WireSink* sink) override { sink_ = sink; }
    std::size_t tx_burst(std::span<const OutgoingPacket> packets) override {
        benchmark::DoNotOptimize(packets.data());
        return packets.size();
    }
    void send_datagram(std::span<const std::byte> datagram) override {
        if (sink_ != nullptr) sink_->on_datagram(datagram);
    }
    WireLimits limits_{.channels = 2, .carries_payload = false};
    WireSink* sink_ = nullptr;
};

/// Arguments: packets per range; 1 with an immediate, 0 without; 1 with a rate limit (so high that it never waits), 0
/// without.
void inject(benchmark::State& state) {
    BenchLoop loop;
    Mirror wire;
    QueuePairConfig config{.max_message_bytes = 4096ull << 16};
    if (state.range(2) != 0) config.rate_limit = BitRate::from_gigabits(400'000);
    auto queue_pair = QueuePair::create(loop, wire, config, nullptr);
    if (!queue_pair) std::abort();
    const std::uint64_t range = static_cast<std::uint64_t>(state.range(0)) * 4096;
    for (auto _ : state) {
        auto slot = (*queue_pair)->post_receive(nullptr, config.max_message_bytes);
        loop.turn(Duration::from_microseconds(1));
        auto send = (*queue_pair)->start_send({.immediate = state.range(1) != 0 ? std::optional(1u) : std::nullopt});
        if (!slot || !send) std::abort();
        for (std::uint64_t at = 0; at < config.max_message_bytes; at += range) {
            if (!(*queue_pair)->continue_send(**send, at, nullptr, range)) std::abort();
            if (state.range(2) != 0) loop.turn(Duration::from_microseconds(10));
        }
        while (!(*queue_pair)->injected(**send)) loop.turn(Duration::from_microseconds(10));
        (*queue_pair)->release_send(**send);
        (*queue_pair)->complete_receive(**slot);
    }
    state.counters["packets/s"] =
        benchmark::Counter(static_cast<double>((*queue_pair)->counters().packets_sent), benchmark::Counter::kIsRate);
    state.counters["per_packet"] = benchmark::Counter(static_cast<double>((*queue_pair)->counters().packets_sent),
                                                      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK(inject)
    ->ArgNames({"range", "immediate", "rate"})
    ->Args({16, 0, 0})
    ->Args({16, 1, 0})
    ->Args({16, 1, 1})
    ->Args({1, 1, 0})
    ->Args({4096, 1, 0});

}  // namespace
}  // namespace farhaul::sdr

BENCHMARK_MAIN();
