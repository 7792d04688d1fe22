// What `sdr link` prints: the live line, the summary, and its JSON.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "link/realtime/forwarder.hpp"

namespace farhaul::app {

/// Names of the two directions, such as "a -> b".
struct DirectionNames {
    std::string forward, backward;
};

/// Rates since `before` and totals, on one line.
std::string live_line(const link::ForwarderReport& before, const link::ForwarderReport& now);
/// What came in, what was dropped and why, per direction; many lines.
std::string summary(const link::ForwarderReport& report, const DirectionNames& names);
nlohmann::json summary_json(const link::ForwarderReport& report);
/// Empty when the program kept up; otherwise what went wrong and what to do.
std::string keep_up_warning(const link::ForwarderReport& report);

}  // namespace farhaul::app
