// What a mount's counters say, as a JSON document: what `dpfs stat` prints and scripts read.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "base/time.hpp"
#include "fuse/session.hpp"

namespace farhaul::daemon {

struct Served {
    std::string mountpoint;
    std::string source;
    std::string transport;  ///< "classic" or "io_uring"
    unsigned threads = 0;
    Duration uptime;
};

/// {"mountpoint", "source", "transport", "threads", "passthrough", "pid", "version", "uptime_seconds", "malformed",
///  "operations": {NAME: {"requests", "errors", "bytes_in", "bytes_out", "latency_seconds": {"p50", "p99", "p999"}}}}
/// "passthrough": the kernel may read and write files by itself, which no counter sees. Operations that never came are
/// left out. Latencies are those of the file system, from a request's arrival to its
/// reply.
nlohmann::json statistics_of(const fuse::Session& session, const Served& served);

}  // namespace farhaul::daemon
