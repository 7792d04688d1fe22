#include "plan/tail_layout.hpp"

#include <algorithm>
#include <iterator>

namespace farhaul::plan {
namespace {

// Codes there are: a code costs tables of some 100 KiB, so a connection should not need one per size of message. What a
// block has fewer counts as zeros.
constexpr std::uint32_t kSizes[] = {1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, TailLayout::kMostData};

}  // namespace

TailLayout TailLayout::make(std::uint32_t packets, std::uint32_t coded, std::uint32_t most_parity) {
    TailLayout layout;
    layout.packets = packets;
    layout.coded = coded = std::min(coded, packets);
    if (coded == 0) return layout;
    const std::uint32_t least = (coded + kMostData - 1) / kMostData;
    const std::uint32_t each = (coded + least - 1) / least;
    layout.k = *std::ranges::lower_bound(kSizes, each);
    layout.blocks = (coded + layout.k - 1) / layout.k;
    if (layout.blocks >= kLeastForColumns) layout.groups = std::max(1u, layout.blocks / kColumnBlocks);
    if (layout.column_packets() > most_parity / 2) layout.groups = 0;
    layout.most_rows = std::min(
        {255 - layout.k, std::max(kLeastRows, layout.k / 2), (most_parity - layout.column_packets()) / layout.blocks});
    return layout;
}

}  // namespace farhaul::plan
