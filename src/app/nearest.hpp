// The known word that a mistyped one probably stands for.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace farhaul::app {

/// The word of `known` with the fewest edits from `word` (insert, delete, replace, swap of neighbours), or an empty
/// string when none is closer than a third of its length: a wild guess helps nobody.
std::string nearest(std::string_view word, std::span<const std::string> known);

}  // namespace farhaul::app
