// What a session counts, per operation: requests, errors, bytes, and a histogram of latencies. Counters are relaxed
// atomics: each is exact, a set of them is not a snapshot.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "fuse/abi.hpp"

namespace farhaul::fuse {

/// Counts durations in classes that are an eighth of a power of two wide: percentiles are right within 12.5%.
class LatencyHistogram {
 public:
    static constexpr std::size_t kSteps = 8;
    static constexpr std::size_t kClasses = 36 * kSteps;  // up to 2^38 ns, 4.6 minutes; what is longer counts as that

    void record(std::uint64_t nanoseconds) { classes_[class_of(nanoseconds)].fetch_add(1, std::memory_order_relaxed); }
    std::uint64_t count() const;
    /// An upper bound of the `fraction`-quantile in nanoseconds; 0 if nothing was recorded.
    std::uint64_t quantile(double fraction) const;

 private:
    static std::size_t class_of(std::uint64_t nanoseconds) {
        if (nanoseconds < kSteps) return static_cast<std::size_t>(nanoseconds);
        const auto power = static_cast<std::size_t>(std::bit_width(nanoseconds)) - 1;  // at least 3
        const std::size_t step = (nanoseconds >> (power - 3)) & (kSteps - 1);
        const std::size_t index = (power - 2) * kSteps + step;
        return index < kClasses ? index : kClasses - 1;
    }
    static std::uint64_t upper_bound_of(std::size_t index);
    std::array<std::atomic<std::uint32_t>, kClasses> classes_{};
};

/// Of one operation.
class OperationCounters {
 public:
    std::atomic<std::uint64_t> requests{0};   ///< replied to
    std::atomic<std::uint64_t> errors{0};     ///< replied to with an errno
    std::atomic<std::uint64_t> bytes_in{0};   ///< data written by the client
    std::atomic<std::uint64_t> bytes_out{0};  ///< data read by it
    LatencyHistogram latency;
};

/// The kernel's name of an operation in lower case ("read", "readdirplus"), or nullptr.
const char* operation_name(std::uint32_t opcode);

}  // namespace farhaul::fuse
