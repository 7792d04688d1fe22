// The link in real time: what carries packets through two models, one per direction, on the thread that calls step().
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/time.hpp"
#include "link/model.hpp"
#include "link/realtime/lateness.hpp"

namespace farhaul::link {

/// A model for each direction. Their times count from when forwarding begins.
struct LinkPair {
    LinkModel forward;  ///< from clients to the target; from network namespace A to B
    LinkModel backward;
};

enum Direction : std::uint8_t { kForward = 0, kBackward = 1 };

/// What happened to the packets of one direction outside the model, since the start.
struct DirectionReport {
    LinkCounters model;
    std::uint64_t sent_packets = 0;     ///< handed to the kernel, copies included
    std::uint64_t waiting_packets = 0;  ///< on their way now
    std::uint64_t lost_before_model =
        0;  ///< dropped by the kernel because they were not read in time: not the model's doing
    std::uint64_t lost_after_model = 0;  ///< refused by the kernel when they left: not the model's doing
    std::uint64_t unusable_packets = 0;  ///< came in and could not be forwarded: no client, too many clients, malformed
    Lateness lateness;                   ///< when packets left, compared with the model
};

struct ForwarderReport {
    Duration running;  ///< since forwarding began
    std::array<DirectionReport, 2> directions;
    std::uint64_t clients = 0;       ///< of the relay, now
    Duration longest_stall{};        ///< for how long this program neither read nor sent, when it should have
    Duration cpu;                    ///< processor time of this process since forwarding began
    std::vector<std::string> notes;  ///< what the user should know, one line each
};

class Forwarder {
 public:
    virtual ~Forwarder() = default;
    /// Forwards what is there and what is due, then waits for more, at most `longest_wait`. Fails when forwarding
    /// cannot go on.
    virtual Status step(Duration longest_wait) = 0;
    virtual ForwarderReport report() = 0;
};

/// Did the program itself, rather than the model, lose packets, send 1% of them more than a millisecond late, or not
/// look at its input for 10 ms?
bool could_not_keep_up(const ForwarderReport& report);

}  // namespace farhaul::link
