// Kernel TCP as a peer of `sdr bench --scheme tcp-ALGORITHM`: the same bytes, the same table. The client names the
// congestion control; the clock runs from the connection being up to the server's word that everything has arrived.
#pragma once

#include <string>

#include "app/bench/statistics.hpp"
#include "base/result.hpp"
#include "base/time.hpp"
#include "wire/udp/address.hpp"
#include "wire/udp/real_loop.hpp"

namespace farhaul::app::bench {

/// Accepts on `address` and serves each client on a thread of its own. Errors: kIo.
class TcpServer {
 public:
    static Result<std::unique_ptr<TcpServer>> open(udp::RealLoop& loop, const udp::Address& address);
    ~TcpServer();

 private:
    struct State;
    explicit TcpServer(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

/// Sends `iterations` messages of `bytes` with the congestion control `algorithm` (empty: the system's), in one stream
/// or each only when the server has said that it has the one before. Blocks. `packets_resent` of the row counts
/// segments. Errors: kPeerGone, kTimeout (no byte moved for `timeout`), kUnsupported (no such algorithm).
Result<BandwidthRow> run_tcp_client(const udp::Address& server, const std::string& algorithm, std::uint64_t bytes,
                                    std::uint64_t iterations, bool one_at_a_time, Duration timeout);

}  // namespace farhaul::app::bench
