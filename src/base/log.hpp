// One logger for the house. The first function that knows of an error logs it, once; libraries return errors and log
// only what their caller cannot see (dropped packets, fallbacks). Level from FARHAUL_LOG (trace, debug, info, warn,
// error, off); default warn.
#pragma once

#include <spdlog/spdlog.h>

namespace farhaul {

/// Writes to stderr. Created on first use.
spdlog::logger& log();
/// `level` as in FARHAUL_LOG; an unknown word leaves the level as it is and returns false.
bool set_log_level(std::string_view level);

}  // namespace farhaul
