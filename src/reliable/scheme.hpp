// The reliability schemes, under the names by which this room and those above it use them. They are defined below, so
// that the planner speaks of the same.
#pragma once

#include "plan/scheme.hpp"

namespace farhaul::reliable {

using plan::decode_scheme;
using plan::encode_scheme;
using plan::parse_scheme;
using plan::Scheme;
using plan::scheme_names;
using plan::to_string;

}  // namespace farhaul::reliable
