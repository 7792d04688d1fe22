#include "app/allreduce/rank_run.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "app/transfer/session.hpp"

namespace farhaul::app::allreduce {

using collective::Collective;
using collective::DataType;
using collective::Operation;

namespace {

/// A value of its own for each rank and element; small, so that sums of integers stay meaningful in any type.
std::uint32_t drawn(std::uint64_t element, std::uint32_t rank) {
    std::uint64_t x = element * 0x9e3779b97f4a7c15ull + rank * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 31;
    return static_cast<std::uint32_t>(x * 0x94d049bb133111ebull >> 54);
}

template <typename T>
T cast_value(std::uint32_t value) {
    if constexpr (std::is_integral_v<T>)
        return static_cast<T>(value) - 512;
    else
        return (static_cast<T>(value) - 512) / 7;
}

template <typename T, typename Store>
void fill_as(std::byte* buffer, std::uint64_t count, std::uint32_t rank, Store store) {
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto value = store(cast_value<T>(drawn(i, rank)));
        std::memcpy(buffer + i * sizeof value, &value, sizeof value);
    }
}

/// `Stored`: as it lies in memory; `load` makes a T of it. `epsilon`: what one addition rounds by, relatively.
template <typename T, typename Stored, typename Load, typename Round>
std::uint64_t count_wrong_as(const std::byte* buffer, std::uint64_t count, Operation operation, std::uint32_t ranks,
                             Load load, Round round, double epsilon) {
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
        Stored stored;
        std::memcpy(&stored, buffer + i * sizeof stored, sizeof stored);
        const T got = load(stored);
        double sum = 0, magnitude = 0;
        T least = round(cast_value<T>(drawn(i, 0))), most = least;
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
            const T value = round(cast_value<T>(drawn(i, rank)));
            sum += static_cast<double>(value);
            magnitude += std::abs(static_cast<double>(value));
            least = std::min(least, value);
            most = std::max(most, value);
        }
        bool right = false;
        switch (operation) {
            case Operation::kSum:
                right = std::abs(static_cast<double>(got) - sum) <= epsilon * ranks * magnitude;
                break;
            case Operation::kMin:
                right = got == least;
                break;
            case Operation::kMax:
                right = got == most;
                break;
        }
        wrong += !right;
    }
    return wrong;
}

class Runner {
 public:
    Runner(udp::RealLoop& loop, collective::Ring& ring, const bool& interrupted)
        : loop_(loop), ring_(ring), interrupted_(interrupted) {}

    /// One operation from beginning to release.
    Status run(const Collective& operation) {
        if (Status status = ring_.prepare(operation); !status) return status;
        if (Status status = start_and_wait(); !status) return status;
        return wait([this] { return released_ == started_; });
    }
    /// `iterations` of them one after the other, on two buffers in turn, so that receives are posted ahead of time.
    Result<double> time(Collective operation, std::byte* const (&buffers)[2], std::uint32_t iterations) {
        const std::uint64_t before = started_;
        const auto prepare = [&](std::uint32_t i) -> Status {
            // This buffer's operation was the one before the last.
            if (Status status = wait([&] { return released_ + 1 >= before + i; }); !status) return status;
            operation.buffer = buffers[i % 2];
            return ring_.prepare(operation);
        };
        if (Status status = prepare(0); !status) return propagate(status);
        const TimePoint begin = udp::RealLoop::clock();
        TimePoint end;
        for (std::uint32_t i = 0; i < iterations; ++i) {
            start();
            if (i + 1 < iterations)
                if (Status status = prepare(i + 1); !status) return propagate(status);
            if (Status status = wait([this] { return done_ == started_; }); !status) return propagate(status);
            end = udp::RealLoop::clock();
        }
        if (Status status = wait([this] { return released_ == started_; }); !status) return propagate(status);
        return (end - begin).seconds() / iterations;
    }

 private:
    void start() {
        ++started_;
        ring_.start(
            [this](Status status) {
                ++done_;
                if (!status && !error_) error_ = status.error();
            },
            [this] { ++released_; });
    }
    Status start_and_wait() {
        start();
        return wait([this] { return done_ == started_; });
    }
    template <typename Condition>
    Status wait(const Condition& condition) {
        // A failure between operations is not told by a callback.
        while (
            !loop_.run_until([&] { return condition() || error_ || ring_.failed(); }, Duration::from_milliseconds(100)))
            if (interrupted_) break;
        if (error_) return std::unexpected(*error_);
        if (interrupted_) {
            ring_.abort({ErrorCode::kClosed, "interrupted"});
            return fail(ErrorCode::kClosed, "interrupted");
        }
        if (!condition()) return ring_.prepare({});  // says why
        return {};
    }

    udp::RealLoop& loop_;
    collective::Ring& ring_;
    const bool& interrupted_;
    std::uint64_t started_ = 0, done_ = 0, released_ = 0;
    std::optional<Error> error_;
};

}  // namespace

void fill(std::byte* buffer, std::uint64_t count, DataType type, std::uint32_t rank) {
    const auto same = [](auto value) { return value; };
    switch (type) {
        case DataType::kFloat32:
            return fill_as<float>(buffer, count, rank, same);
        case DataType::kFloat64:
            return fill_as<double>(buffer, count, rank, same);
        case DataType::kBfloat16:
            return fill_as<float>(buffer, count, rank, collective::to_bfloat16);
        case DataType::kInt32:
            return fill_as<std::int32_t>(buffer, count, rank, same);
        case DataType::kInt64:
            return fill_as<std::int64_t>(buffer, count, rank, same);
    }
}

std::uint64_t count_wrong(const std::byte* buffer, std::uint64_t count, DataType type, Operation operation,
                          std::uint32_t ranks) {
    const auto same = [](auto value) { return value; };
    switch (type) {
        case DataType::kFloat32:
            return count_wrong_as<float, float>(buffer, count, operation, ranks, same, same, 6e-8);
        case DataType::kFloat64:
            return count_wrong_as<double, double>(buffer, count, operation, ranks, same, same, 1.2e-16);
        case DataType::kBfloat16:
            return count_wrong_as<float, std::uint16_t>(
                buffer, count, operation, ranks, collective::from_bfloat16,
                [](float value) { return collective::from_bfloat16(collective::to_bfloat16(value)); }, 4e-3);
        case DataType::kInt32:
            return count_wrong_as<std::int32_t, std::int32_t>(buffer, count, operation, ranks, same, same, 0);
        case DataType::kInt64:
            return count_wrong_as<std::int64_t, std::int64_t>(buffer, count, operation, ranks, same, same, 0);
    }
    return count;
}

std::vector<std::uint64_t> sizes_of(const RunPlan& plan) {
    std::vector<std::uint64_t> sizes;
    const std::uint64_t element = collective::size_of(plan.type);
    double bytes = static_cast<double>(plan.least_bytes);
    while (bytes <= static_cast<double>(plan.most_bytes)) {
        const std::uint64_t whole = static_cast<std::uint64_t>(bytes) / element * element;
        if (sizes.empty() || whole != sizes.back()) sizes.push_back(whole);
        bytes = std::max(bytes * plan.factor, static_cast<double>(element));  // nothing times anything is nothing
    }
    return sizes;
}

Status run_sizes(udp::RealLoop& loop, Rank& rank, const RankConfig& config, const RunPlan& plan,
                 const bool& interrupted, const std::function<void(const SizeResult&)>& each) {
    collective::Ring& ring = rank.ring();
    Runner runner(loop, ring, interrupted);
    std::vector<std::byte> memory(2 * plan.most_bytes);
    std::byte* const buffers[2] = {memory.data(), memory.data() + plan.most_bytes};
    const auto packets = [&ring] {
        return ring.right() == nullptr ? reliable::ConnectionCounters{} : ring.right()->counters();
    };
    for (const std::uint64_t bytes : sizes_of(plan)) {
        Collective collective{.buffer = buffers[0],
                              .count = bytes / collective::size_of(plan.type),
                              .type = plan.type,
                              .operation = plan.operation};
        SizeResult result{.bytes = bytes, .count = collective.count};
        if (plan.check) {
            fill(buffers[0], collective.count, plan.type, config.rank);
            if (Status status = runner.run(collective); !status) return status;
            auto wrong = static_cast<std::int64_t>(
                count_wrong(buffers[0], collective.count, plan.type, plan.operation, config.ranks));
            Collective add{.buffer = reinterpret_cast<std::byte*>(&wrong), .count = 1, .type = DataType::kInt64};
            if (Status status = runner.run(add); !status) return status;
            result.wrong = static_cast<std::uint64_t>(wrong);
        }
        fill(buffers[0], collective.count, plan.type, config.rank);
        fill(buffers[1], collective.count, plan.type, config.rank);
        for (std::uint32_t i = 0; i < plan.warmup; ++i)
            if (Status status = runner.run(collective); !status) return status;
        std::int32_t ready = 1;
        if (Status status =
                runner.run({.buffer = reinterpret_cast<std::byte*>(&ready), .count = 1, .type = DataType::kInt32});
            !status)
            return status;
        const auto before = packets();
        auto seconds = runner.time(collective, buffers, plan.iterations);
        if (!seconds) return propagate(seconds);
        const auto after = packets();
        Collective slowest{.buffer = reinterpret_cast<std::byte*>(&*seconds),
                           .count = 1,
                           .type = DataType::kFloat64,
                           .operation = Operation::kMax};
        if (Status status = runner.run(slowest); !status) return status;
        const double n = config.ranks, size = static_cast<double>(bytes);
        result.seconds = *seconds;
        result.algorithm_bytes_per_second = *seconds > 0 ? size / *seconds : 0;
        result.bus_bytes_per_second = result.algorithm_bytes_per_second * 2 * (n - 1) / n;
        if (!config.rate.unlimited() && config.ranks > 1) {
            // What a packet's headers add, as in the bounds of the other programs.
            const double payload = static_cast<double>(ring.right()->queue_pair().config().payload_bytes);
            const double on_line = size / n * (1 + (udp::kHeaderBytes + transfer::kIpUdpBytes) / payload);
            result.floor_seconds = (2 * n - 2) * (on_line * 8 / static_cast<double>(config.rate.bits_per_second()) +
                                                  rank.round_trip().seconds() / 2);
        }
        result.packets_resent = after.packets_resent - before.packets_resent;
        result.packets_parity = after.packets_parity - before.packets_parity;
        result.packets_sent =
            after.packets_first - before.packets_first + result.packets_resent + result.packets_parity;
        each(result);
    }
    // The last acknowledgements of the others may be lost: be there to repeat ours.
    loop.run_until([&] { return ring.failed() || interrupted; },
                   std::max(Duration::from_milliseconds(200), rank.round_trip() * 4));
    return {};
}

}  // namespace farhaul::app::allreduce
