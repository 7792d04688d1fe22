// log |gamma(x)| from any thread: std::lgamma also writes the sign to a global variable.
#pragma once

#include <cmath>

namespace farhaul {

inline double log_gamma(double x) {
    int sign = 0;
    return ::lgamma_r(x, &sign);
}

}  // namespace farhaul
