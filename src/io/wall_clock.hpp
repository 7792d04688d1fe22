// The time of day, for what stamps files. It may jump: nothing is ever timed with it.
#pragma once

#include <ctime>

namespace farhaul::io {

/// CLOCK_REALTIME.
inline timespec wall_clock() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return now;
}

}  // namespace farhaul::io
