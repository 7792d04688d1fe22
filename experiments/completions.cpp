#include "completions.hpp"

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "sdr/message_table.hpp"

namespace farhaul::experiments {
namespace {

using namespace farhaul::sdr;

constexpr std::uint32_t kPackets = 1u << 16;  // 256 MiB at 4 KiB
constexpr std::size_t kBatch = 64;
constexpr int kRepeats = 3;

std::unique_ptr<MessageTable> make_table(std::uint32_t packets_per_chunk) {
    auto table = MessageTable::create({.packets_per_chunk = packets_per_chunk});
    if (!table) std::abort();
    return std::move(*table);
}

MessageSlot* open(MessageTable& table) {
    auto slot = table.open(0, nullptr, std::uint64_t{kPackets} * 4096);
    if (!slot) std::abort();
    return *slot;
}

std::vector<Arrival> arrivals_of(const MessageTable& table, std::uint32_t channel, std::uint32_t channels) {
    std::vector<Arrival> arrivals;
    for (std::uint32_t packet = channel; packet < kPackets; packet += channels)
        arrivals.push_back(
            {nullptr, table.config().payload_bytes, table.config().layout.encode(0, packet, packet & 15), 0});
    return arrivals;
}

template <bool kAtomic>
void take(MessageTable& table, std::span<const Arrival> arrivals, ArrivalCounters& counters) {
    std::array<MessageSlot*, kBatch> touched;
    std::size_t touched_count = 0;
    for (; !arrivals.empty(); arrivals = arrivals.subspan(std::min(arrivals.size(), kBatch)))
        table.arrivals<kAtomic>(arrivals.first(std::min(arrivals.size(), kBatch)), counters, touched, touched_count);
}

using Clock = std::chrono::steady_clock;

double own_messages(std::uint32_t packets_per_chunk, unsigned threads, double seconds) {
    std::barrier start(static_cast<std::ptrdiff_t>(threads));
    std::vector<double> rates(threads);
    std::vector<std::jthread> workers;
    for (unsigned t = 0; t < threads; ++t)
        workers.emplace_back([&, t] {
            const auto table = make_table(packets_per_chunk);
            const auto arrivals = arrivals_of(*table, 0, 1);
            ArrivalCounters counters;
            start.arrive_and_wait();
            const auto begin = Clock::now();
            std::chrono::duration<double> took{};
            while (took.count() < seconds) {
                MessageSlot* slot = open(*table);
                take<false>(*table, arrivals, counters);
                if (!slot->complete()) std::abort();
                table->close(*slot);
                took = Clock::now() - begin;
            }
            rates[t] = static_cast<double>(counters.accepted) / took.count();
        });
    workers.clear();
    double sum = 0;
    for (const double rate : rates) sum += rate;
    return sum;
}

double one_message(std::uint32_t packets_per_chunk, unsigned threads, double seconds) {
    const auto table = make_table(packets_per_chunk);
    MessageSlot* slot = nullptr;
    bool stop = false;
    std::barrier barrier(static_cast<std::ptrdiff_t>(threads));
    std::uint64_t messages = 0;
    std::chrono::duration<double> took{};
    std::vector<std::jthread> workers;
    for (unsigned t = 0; t < threads; ++t)
        workers.emplace_back([&, t] {
            const auto arrivals = arrivals_of(*table, t, threads);
            ArrivalCounters counters;
            barrier.arrive_and_wait();
            const auto begin = Clock::now();
            while (true) {
                if (t == 0) {
                    took = Clock::now() - begin;
                    stop = took.count() >= seconds;
                    if (!stop) slot = open(*table);
                }
                barrier.arrive_and_wait();
                if (stop) break;
                take<true>(*table, arrivals, counters);
                barrier.arrive_and_wait();
                if (t == 0) {
                    if (!slot->complete()) std::abort();
                    table->close(*slot);
                    ++messages;
                }
            }
        });
    workers.clear();
    return static_cast<double>(messages * kPackets) / took.count();
}

}  // namespace

double completion_rate(std::uint32_t packets_per_chunk, unsigned threads, Sharing sharing, double seconds) {
    double best = 0;
    for (int i = 0; i < kRepeats; ++i)
        best = std::max(best, sharing == Sharing::kOwnMessages ? own_messages(packets_per_chunk, threads, seconds)
                                                               : one_message(packets_per_chunk, threads, seconds));
    return best;
}

}  // namespace farhaul::experiments
