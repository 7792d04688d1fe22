// The file that tells the ranks of `sdr allreduce` of each other: the same one on all hosts.
//
//   # rank 0 first; a line each: where the rank is reached, and what the link from it to the next one is like
//   192.0.2.1:18530 rate=10G
//   192.0.2.2:18530 rate=10G scheme=auto
//   far-site:18530  rate=1G  scheme=ec:32,8
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/units.hpp"
#include "reliable/scheme.hpp"

namespace farhaul::app::allreduce {

struct Peer {
    std::string address;  ///< HOST:PORT, not looked up yet
    std::optional<reliable::Scheme> scheme;
    std::optional<BitRate> rate;
};

/// Errors: kInvalidArgument with the number of the line.
Result<std::vector<Peer>> parse_peers(std::string_view text);
/// Reads at most 1 MiB. Errors: kIo, kInvalidArgument.
Result<std::vector<Peer>> read_peers(const std::string& path);

}  // namespace farhaul::app::allreduce
