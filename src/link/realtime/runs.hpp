// The model applied to a super-packet: each segment has its own fate, and what survives leaves as runs of consecutive
// segments.
//
// A run ends where a segment is lost, corrupted, duplicated or out of order, and after kRunSpan: the segments of a run
// arrive together when its last one is due, so the first may be late by that much. That is what interrupt coalescing of
// a network card does, and what lets one core carry the traffic.
#pragma once

#include <cstdint>

#include "base/time.hpp"
#include "link/model.hpp"

namespace farhaul::link {

inline constexpr Duration kRunSpan = Duration::from_microseconds(100);

/// `count` consecutive segments from `first` on, which leave at `last_due`.
struct Run {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    TimePoint first_due, last_due;  ///< of its first and last segment
    bool in_order = true;
    bool corrupted = false;  ///< only in runs of one segment
    bool copy = false;       ///< a duplicate; only in runs of one segment
};

/// Offers `segments` segments to `model` at `now` and calls `emit(run)` for what survives, in order. `size_of(i)` gives
/// the bytes of segment i on the line.
template <typename SizeOf, typename Emit>
void split_into_runs(LinkModel& model, TimePoint now, std::uint32_t segments, SizeOf size_of, Emit emit) {
    Run run;
    const auto flush = [&] {
        if (run.count != 0) emit(run);
        run.count = 0;
    };
    for (std::uint32_t i = 0; i < segments; ++i) {
        const Fate fate = model.offer(now, size_of(i));
        if (fate.dropped != DropReason::kNone) {
            flush();
            continue;
        }
        const bool alone = fate.corrupted || !fate.in_order;
        if (alone || (run.count != 0 && fate.arrives - run.first_due > kRunSpan)) flush();
        if (run.count == 0) {
            run.first = i;
            run.first_due = fate.arrives;
        }
        ++run.count;
        run.last_due = fate.arrives;
        run.in_order = fate.in_order;
        run.corrupted = fate.corrupted;
        if (alone || fate.duplicated) flush();
        if (fate.duplicated) emit(Run{i, 1, fate.copy_arrives, fate.copy_arrives, fate.in_order, fate.corrupted, true});
    }
    flush();
}

}  // namespace farhaul::link
