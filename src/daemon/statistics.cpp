#include "daemon/statistics.hpp"

#include <unistd.h>

namespace farhaul::daemon {

nlohmann::json statistics_of(const fuse::Session& session, const Served& served) {
    nlohmann::json operations = nlohmann::json::object();
    for (std::uint32_t opcode = 0; opcode < fuse::abi::kOpcodes; ++opcode) {
        const fuse::OperationCounters* counters = session.counters(opcode);
        const char* name = fuse::operation_name(opcode);
        if (counters == nullptr || name == nullptr) continue;
        const auto seconds = [&](double fraction) {
            return static_cast<double>(counters->latency.quantile(fraction)) * 1e-9;
        };
        operations[name] = {
            {"requests", counters->requests.load(std::memory_order_relaxed)},
            {"errors", counters->errors.load(std::memory_order_relaxed)},
            {"bytes_in", counters->bytes_in.load(std::memory_order_relaxed)},
            {"bytes_out", counters->bytes_out.load(std::memory_order_relaxed)},
            {"latency_seconds", {{"p50", seconds(0.5)}, {"p99", seconds(0.99)}, {"p999", seconds(0.999)}}},
        };
    }
    return {
        {"mountpoint", served.mountpoint},
        {"source", served.source},
        {"transport", served.transport},
        {"threads", served.threads},
        {"passthrough", session.initialized() && session.connection().has(fuse::abi::kPassthrough)},
        {"pid", ::getpid()},
        {"version", FARHAUL_VERSION},
        {"uptime_seconds", served.uptime.seconds()},
        {"malformed", session.malformed()},
        {"operations", std::move(operations)},
    };
}

}  // namespace farhaul::daemon
