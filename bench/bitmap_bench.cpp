// How fast packet completions become bitmap bits: message id and generation looked up and checked, bounds checked,
// packet bit set, chunk bit set when its last packet is in. Packets bring metadata only, as where the device placed the
// payload. 16 packets per chunk.
//
// Published for comparison (SDR-RDMA, SC '25): 92.1 M/s with 128 threads of a BlueField-3 DPA.
#include <benchmark/benchmark.h>

#include <barrier>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "sdr/message_table.hpp"

namespace farhaul::sdr {
namespace {

constexpr std::uint32_t kPackets = 1u << 16;  // 256 MiB at 4 KiB
constexpr std::size_t kBatch = 64;            // completions per call, as a wire hands them over

std::unique_ptr<MessageTable> make_table(std::uint32_t packets_per_chunk) {
    auto table = MessageTable::create({.packets_per_chunk = packets_per_chunk});
    if (!table) std::abort();
    return std::move(*table);
}

/// The arrivals of message `sequence` that channel `channel` of `channels` sees, each displaced by up to `reorder`
/// places.
std::vector<Arrival> arrivals_of(const MessageTable& table, std::uint64_t sequence, std::uint32_t channel,
                                 std::uint32_t channels, std::uint32_t reorder) {
    const ImmediateLayout& layout = table.config().layout;
    std::vector<Arrival> arrivals;
    for (std::uint32_t packet = channel; packet < kPackets; packet += channels)
        arrivals.push_back(
            {nullptr, table.config().payload_bytes,
             layout.encode(static_cast<std::uint32_t>(sequence & (layout.message_ids() - 1)), packet, packet & 15),
             static_cast<std::uint32_t>(sequence >> layout.message_bits)});
    Random random(1);
    if (reorder > 0)
        for (std::size_t i = 0; i + reorder < arrivals.size(); ++i)
            if (random.chance(0.17)) std::swap(arrivals[i], arrivals[i + random.below(reorder)]);
    return arrivals;
}

template <bool kAtomic>
void take(MessageTable& table, std::span<const Arrival> arrivals, ArrivalCounters& counters) {
    std::array<MessageSlot*, kBatch> touched;
    std::size_t touched_count = 0;
    for (; !arrivals.empty(); arrivals = arrivals.subspan(std::min(arrivals.size(), kBatch)))
        table.arrivals<kAtomic>(arrivals.first(std::min(arrivals.size(), kBatch)), counters, touched, touched_count);
    benchmark::DoNotOptimize(touched);
}

/// One thread owns the message. Opening the slot (clearing the bitmap) is part of the time, as in life.
template <bool kAtomic>
void one_thread(benchmark::State& state) {
    auto table = make_table(static_cast<std::uint32_t>(state.range(0)));
    const auto arrivals = arrivals_of(*table, 0, 0, 1, static_cast<std::uint32_t>(state.range(1)));
    ArrivalCounters counters;
    for (auto _ : state) {
        auto slot = table->open(0, nullptr, static_cast<std::uint64_t>(kPackets) * 4096);
        take<kAtomic>(*table, arrivals, counters);
        if (!(*slot)->complete()) state.SkipWithError("the message is not complete");
        table->close(**slot);
    }
    state.counters["completions/s"] =
        benchmark::Counter(static_cast<double>(counters.accepted), benchmark::Counter::kIsRate);
}

/// Two channels with a thread each on one message, packets round-robin: every packet word is shared.
void two_threads(benchmark::State& state) {
    static std::unique_ptr<MessageTable> table;
    static MessageSlot* slot;
    static std::barrier barrier(2);
    const auto me = static_cast<std::uint32_t>(state.thread_index());
    if (me == 0) table = make_table(16);
    barrier.arrive_and_wait();
    const auto arrivals = arrivals_of(*table, 0, me, 2, 0);
    ArrivalCounters counters;
    for (auto _ : state) {
        if (me == 0) slot = *table->open(0, nullptr, static_cast<std::uint64_t>(kPackets) * 4096);
        barrier.arrive_and_wait();
        take<true>(*table, arrivals, counters);
        barrier.arrive_and_wait();
        if (me == 0) {
            if (!slot->complete()) state.SkipWithError("the message is not complete");
            table->close(*slot);
        }
    }
    state.counters["completions/s"] =
        benchmark::Counter(static_cast<double>(counters.accepted), benchmark::Counter::kIsRate);
}

/// 16 messages at once, a packet of each in turn: no two neighbours share a slot.
void interleaved(benchmark::State& state) {
    auto table = make_table(16);
    std::vector<Arrival> arrivals;
    std::vector<std::vector<Arrival>> each;
    for (std::uint64_t n = 0; n < 16; ++n) each.push_back(arrivals_of(*table, n, 0, 16, 0));
    for (std::size_t i = 0; i < each[0].size(); ++i)
        for (const auto& of : each) arrivals.push_back(of[i]);
    ArrivalCounters counters;
    for (auto _ : state) {
        for (std::uint64_t n = 0; n < 16; ++n) {
            if (MessageSlot* open = table->find(n)) table->close(*open);
            if (!table->open(n, nullptr, static_cast<std::uint64_t>(kPackets) * 4096)) std::abort();
        }
        take<false>(*table, arrivals, counters);
    }
    state.counters["completions/s"] =
        benchmark::Counter(static_cast<double>(counters.accepted), benchmark::Counter::kIsRate);
}

BENCHMARK(one_thread<false>)
    ->Name("plain")
    ->ArgNames({"chunk", "reorder"})
    ->Args({16, 0})
    ->Args({1, 0})
    ->Args({64, 0})
    ->Args({12, 0})
    ->Args({16, 64});
BENCHMARK(one_thread<true>)
    ->Name("atomic")
    ->ArgNames({"chunk", "reorder"})
    ->Args({16, 0})
    ->Args({1, 0})
    ->Args({64, 0})
    ->Args({16, 64});
BENCHMARK(two_threads)->Name("atomic_two_threads_one_message")->Threads(2)->UseRealTime();
BENCHMARK(interleaved)->Name("plain_16_messages_interleaved");

}  // namespace
}  // namespace farhaul::sdr

int main(int argc, char** argv) {
    std::ifstream cpuinfo("/proc/cpuinfo");
    for (std::string line; std::getline(cpuinfo, line);)
        if (line.starts_with("model name")) {
            benchmark::AddCustomContext("cpu", line.substr(line.find(':') + 2));
            break;
        }
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
