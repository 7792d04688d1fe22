#include "link/realtime/forwarder.hpp"

namespace farhaul::link {

bool could_not_keep_up(const ForwarderReport& report) {
    if (report.longest_stall > Duration::from_milliseconds(10)) return true;
    for (const auto& d : report.directions)
        if (d.lost_before_model != 0 || d.lost_after_model != 0 ||
            d.lateness.quantile(0.99) > Duration::from_milliseconds(1))
            return true;
    return false;
}

}  // namespace farhaul::link
