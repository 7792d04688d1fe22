#include "reliable/scheme.hpp"

namespace farhaul::reliable {

Result<Scheme> parse_scheme(std::string_view text) {
    for (Scheme scheme : {Scheme::kGoBackN, Scheme::kSelectiveRepeat, Scheme::kSelectiveRepeatNack})
        if (text == to_string(scheme)) return scheme;
    return fail(ErrorCode::kInvalidArgument, "there is no scheme '{}': use one of {}", text, scheme_names());
}

std::string to_string(Scheme scheme) {
    switch (scheme) {
        case Scheme::kGoBackN: return "gbn";
        case Scheme::kSelectiveRepeat: return "sr";
        case Scheme::kSelectiveRepeatNack: return "sr-nack";
    }
    return "unknown";
}

std::string scheme_names() { return "gbn, sr, sr-nack"; }

}  // namespace farhaul::reliable
