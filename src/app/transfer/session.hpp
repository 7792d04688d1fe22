// What `sdr send` and `sdr recv` share: how a connection is made from what the two ends agreed on, and how its results
// are told.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "app/commands.hpp"
#include "app/transfer/protocol.hpp"
#include "base/units.hpp"
#include "reliable/connection.hpp"
#include "wire/udp/endpoint.hpp"

namespace farhaul::app::transfer {

/// IPv4 or IPv6 and UDP headers are below ours; the larger is not worth telling apart when pacing.
inline constexpr std::uint32_t kIpUdpBytes = 28;

/// Most of a window by default.
inline constexpr std::uint64_t kDefaultMemory = 256u << 20;

/// How much may be in flight, and in which pieces.
struct Window {
    std::uint32_t block_bytes = 1u << 20;
    std::uint32_t blocks = 16;
};

/// Room for four round trips of 100 ms at `rate` (a repair takes about two, and the disk its time), at least 16 MiB and
/// at most `memory`; a rate of 0 on a path that leaves this host gets all of `memory`.
Window choose_window(BitRate rate, bool loopback, std::uint64_t memory);

/// The rate when the user names none: unlimited on loopback; 1 Gbit/s elsewhere, since there is no congestion control.
BitRate default_rate(const udp::Address& peer);

/// Both ends make their queue pair by this rule, so that they agree.
sdr::QueuePairConfig queue_pair_config(const Offer& offer, const udp::ConnectParameters& agreed, std::uint32_t blocks,
                                       BitRate rate, Duration round_trip, Duration timeout);
reliable::ConnectionConfig connection_config(const Offer& offer, Duration round_trip, Duration timeout);

/// Options of the socket for a given --timeout.
udp::UdpOptions udp_options(Duration timeout, std::uint32_t channels);

/// One transfer as either end tells it.
struct TransferReport {
    Outcome outcome = Outcome::kOk;
    int exit_code = kExitOk;
    std::string message;  ///< why it failed
    std::string peer;
    reliable::Scheme scheme = reliable::Scheme::kSelectiveRepeatNack;
    std::uint64_t files = 0;
    std::uint64_t files_failed = 0;
    std::uint64_t skipped = 0;
    std::uint64_t bytes = 0;
    Duration elapsed;  ///< from the connection being up to the last word of the receiver
    Duration round_trip;
    std::uint32_t payload_bytes = 0;
    std::uint64_t packets_sent = 0;
    std::uint64_t packets_resent = 0;  ///< as far as this end knows: the receiver counts duplicates only
    std::optional<Digest> digest;      ///< of a single file
    std::string path;                  ///< of a single file

    double goodput() const { return elapsed > Duration{} ? static_cast<double>(bytes) * 8 / elapsed.seconds() : 0; }
};

int exit_code_of(Outcome outcome);
int exit_code_of(ErrorCode code);
/// One line for people.
std::string to_line(const TransferReport& report, bool sender);
/// One line of JSON.
std::string to_json(const TransferReport& report, bool sender);

}  // namespace farhaul::app::transfer
