// `sdr allreduce --local N`: the ranks as processes of this host, with emulated links between them if asked for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "wire/udp/address.hpp"

namespace farhaul::app::allreduce {

/// What a rank's process does. `listening`: tell the port that it listens on, get the address of its right neighbour.
using RankMain =
    std::function<int(std::uint32_t rank, const std::function<Result<udp::Address>(std::uint16_t port)>& listening)>;

struct LocalOptions {
    std::uint32_t ranks = 4;
    /// Arguments for `sdr link`, which then runs between each two neighbours; empty: they talk directly.
    std::vector<std::string> link;
    bool quiet = false;  ///< do not say which processes there are
};

/// Starts the processes and waits for them. Returns the exit code for the whole: the worst of the ranks'; a rank that a
/// signal ended counts as failed. Errors: kIo.
Result<int> run_local(const LocalOptions& options, const RankMain& rank_main);

}  // namespace farhaul::app::allreduce
