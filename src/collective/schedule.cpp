#include "collective/schedule.hpp"

#include <algorithm>

namespace farhaul::collective {
namespace {

/// Calls `take` for the segments of `range`, in order. An empty range has none: neither end sends anything for it.
template <typename Take>
void cut(Range range, std::uint64_t segment_bytes, const Take& take) {
    for (std::uint64_t at = 0; at < range.length; at += segment_bytes)
        take(Range{range.offset + at, std::min(segment_bytes, range.length - at)});
}

}  // namespace

Range chunk_of(std::uint64_t count, std::uint64_t element_bytes, std::uint32_t ranks, std::uint32_t chunk) {
    const std::uint64_t each = count / ranks, larger = count % ranks;
    const std::uint64_t begin = each * chunk + std::min<std::uint64_t>(chunk, larger);
    return {begin * element_bytes, (each + (chunk < larger ? 1 : 0)) * element_bytes};
}

Schedule Schedule::make(Kind kind, std::uint64_t count, std::uint64_t element_bytes, std::uint32_t rank,
                        std::uint32_t ranks, std::uint32_t root, std::uint64_t segment_bytes) {
    Schedule schedule;
    if (ranks < 2) return schedule;
    const auto chunk = [&](std::uint64_t index) {
        return chunk_of(count, element_bytes, ranks, static_cast<std::uint32_t>(index % ranks));
    };
    const auto write = [&](Range range) {
        cut(range, segment_bytes, [&](Range segment) { schedule.writes.push_back(segment); });
    };
    const auto receive = [&](Range range, bool combine) {
        cut(range, segment_bytes, [&](Range segment) { schedule.receives.push_back({segment, combine}); });
    };

    if (kind == Kind::kBroadcast) {
        const Range all{0, count * element_bytes};
        const std::uint32_t distance = (rank + ranks - root) % ranks;
        if (distance > 0) receive(all, false);
        if (distance + 1 < ranks) write(all);
        if (distance == 0) schedule.ready_writes = schedule.writes.size();
        return schedule;
    }
    const std::uint64_t reducing = kind == Kind::kAllgather ? 0 : ranks - 1;
    const std::uint64_t steps = reducing + (kind == Kind::kReduceScatter ? 0 : ranks - 1);
    // In step s rank r sends chunk first - s. An allreduce goes the way round that ends with chunk r + 1 at rank r;
    // alone, a reduce-scatter ends with chunk r and an allgather begins with it.
    const std::uint64_t first = (kind == Kind::kReduceScatter ? rank + ranks - 1 : rank) + steps * ranks;
    for (std::uint64_t step = 0; step < steps; ++step) {
        write(chunk(first - step));
        if (step == 0) schedule.ready_writes = schedule.writes.size();
        receive(chunk(first - step - 1), step < reducing);
    }
    return schedule;
}

}  // namespace farhaul::collective
