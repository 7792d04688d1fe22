// The reliability schemes a connection can use, and how users name them.
#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace farhaul::reliable {

enum class Scheme {
    kGoBackN,              ///< `gbn`: what commodity NICs do: the receiver takes packets in order only, a gap resends everything behind it
    kSelectiveRepeat,      ///< `sr`: each packet has a timeout RTO; what is not acknowledged by then is sent again
    kSelectiveRepeatNack,  ///< `sr-nack`: the receiver reports what is missing; the sender repairs about one round trip after the loss
};

/// Parses `gbn`, `sr` or `sr-nack`. Errors: kInvalidArgument naming the schemes there are.
Result<Scheme> parse_scheme(std::string_view text);
std::string to_string(Scheme scheme);
/// Every name that parse_scheme takes, for help texts: "gbn, sr, sr-nack".
std::string scheme_names();

}  // namespace farhaul::reliable
