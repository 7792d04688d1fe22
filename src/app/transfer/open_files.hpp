// How many files a process may have open: both ends of a transfer hold one per nested folder, the receiver also one per
// small file that waits to be synced.
#pragma once

#include <algorithm>

#include <sys/resource.h>

namespace farhaul::app::transfer {

/// Raises the soft limit towards the hard one; what the hard one forbids stays forbidden.
inline void allow_many_files() {
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= files.rlim_max) return;
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 65536);
    ::setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace farhaul::app::transfer
