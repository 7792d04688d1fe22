// One connection of `sdr bench`, either end of it.
//
// Reliable schemes: the client keeps `depth` Writes in flight, a Write is done when it is acknowledged, and the server
// posts as many receives. Raw: messages go out as the queue pair takes them; the *receiver* counts a message when its
// bitmap is full, gives up on one that lost a packet when nothing more of it comes (two round trips and 20 ms), and
// tells its figures in a datagram, which the client asks for every 20 ms from the end of its sending on.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "app/bench/plan.hpp"
#include "app/bench/statistics.hpp"
#include "wire/udp/endpoint.hpp"

namespace farhaul::app::bench {

class Session {
 public:
    virtual ~Session() = default;
    /// Begins to send; the server's end does so by itself.
    virtual void start() = 0;
    /// No new messages: for runs that end by time.
    virtual void stop() = 0;
    virtual bool done() const = 0;
    virtual const std::optional<Error>& error() const = 0;
    /// When done: messages, seconds (of this connection), packets; and the completion times for the peak.
    virtual BandwidthRow row() const = 0;
    virtual const std::vector<std::int64_t>& completions() const = 0;
    /// What completions() count from.
    virtual TimePoint started() const = 0;
    /// Round trips of the ping-pong in nanoseconds.
    virtual std::vector<std::int64_t> take_samples() { return {}; }
};

}  // namespace farhaul::app::bench
