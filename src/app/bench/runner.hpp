// Runs the two ends of `sdr bench`.
#pragma once

#include <functional>
#include <memory>

#include "app/bench/session.hpp"
#include "app/bench/tcp.hpp"

namespace farhaul::app::bench {

struct EndpointOptions {
    std::uint32_t channels = 1;
    bool checksum = true;
    bool checksum_optional = false;  ///< a server: agrees to do without when the client asks
    Duration timeout = Duration::from_milliseconds(10'000);
};

/// Serves clients until the loop is stopped.
class Server {
 public:
    /// Also listens on the TCP port of the same number, if that is free. Errors: kIo.
    static Result<std::unique_ptr<Server>> open(udp::RealLoop& loop, const udp::Address& address,
                                                const EndpointOptions& options,
                                                std::function<void(const std::string&)> say);
    ~Server();
    const udp::Address& local_address() const;

 private:
    struct State;
    explicit Server(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

/// What one size of the client gave.
struct RunResult {
    BandwidthRow bandwidth;
    LatencyRow latency;
    std::uint32_t payload_bytes = 0;  ///< per packet, as agreed
    Duration round_trip;
    bool segmentation_offload = false;
};

class Client {
 public:
    static Result<std::unique_ptr<Client>> open(udp::RealLoop& loop, const udp::Address& server,
                                                const EndpointOptions& options);
    ~Client();
    /// Runs `plan` over `queue_pairs` connections at once. `duration` > 0 ends it by time instead of iterations.
    /// `packet_bytes` is the wanted payload.
    Result<RunResult> run(Plan plan, std::uint32_t queue_pairs, Duration duration, std::uint32_t packet_bytes);

 private:
    struct State;
    explicit Client(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace farhaul::app::bench
