// A reliable connection over one queue pair: Writes of any length arrive whole, exactly once, in the buffers that the
// peer posted, in order of posting. Both directions at once. The scheme (how losses are noticed and repaired) is chosen
// per connection; both ends must use the same.
//
// Like everything here a state machine: driven by the Loop and the queue pair, without thread, clock or socket.
//
// A Write longer than one message is split; so is the posted buffer, at the same places (max_message_bytes of the queue
// pair). A Write shorter than the buffer it lands in is completed with its own length; a longer one fails on both sides
// with kInvalidArgument / kProtocol.
//
// Threads: everything on the Loop's thread. Callbacks run from the Loop, never from inside write()/receive()
// themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/executor.hpp"
#include "base/loop.hpp"
#include "base/result.hpp"
#include "reliable/scheme.hpp"
#include "sdr/queue_pair.hpp"

namespace farhaul::reliable {

struct ConnectionConfig {
    Scheme scheme = Scheme::kSelectiveRepeatNack;
    /// Retransmission timeout in round trips, for `sr` and `gbn` (and the last resort of `sr-nack`); the published
    /// value is 3.
    double rto_rtts = 3;
    /// The round trip that the handshake measured: used until the connection has its own samples.
    Duration initial_rtt = Duration::from_milliseconds(100);
    /// Never adapt: use initial_rtt as the round trip throughout (to compare with models that assume a known one).
    bool fixed_rtt = false;
    /// Lower bound of the timeout. Hosts are stopped for milliseconds at a time (other processes, the hypervisor): what
    /// is shorter than that resends what is merely late.
    Duration min_rto = Duration::from_milliseconds(10);
    /// What the hosts' clocks and wake-ups can resolve: floors of the reordering window and of the pace of probes on
    /// short links.
    Duration granularity = Duration::from_milliseconds(1);
    /// No sign of life for so long while something is outstanding (or keepalive is on): the peer is gone.
    Duration peer_timeout = Duration::from_milliseconds(10'000);
    /// A Write not done for so long after write(): kTimeout. Zero: no limit.
    Duration write_timeout;
    /// Most payload bytes sent and not yet acknowledged, over all Writes; new packets wait beyond it, repairs do not.
    /// Zero: no limit if the queue pair has a rate limit; otherwise what the wire's receive buffers hold safely, since
    /// nothing else then keeps the sender from overrunning them.
    std::uint64_t window_bytes = 0;
    /// What the path carries, payload and overhead_bytes counted, for schemes that need to know how much is in flight.
    /// Unlimited: the queue pair's rate limit if it has one, else the window.
    BitRate line_rate{};
    /// Where parity is encoded; it must outlive the connection. Null: on the loop's thread, just before it is sent.
    Executor* executor = nullptr;
    /// Send a probe after so long a silence of ours, so that peer_timeout holds on an idle connection too. Zero: off.
    Duration keepalive;
};

struct ReceiveResult {
    std::uint64_t length = 0;                ///< bytes that arrived in the buffer
    std::optional<std::uint32_t> immediate;  ///< only for receives posted with want_immediate
    bool early = false;                      ///< ended by finish_early(): bytes may be missing
};

using WriteCallback = std::function<void(Status)>;
using ReceiveCallback = std::function<void(Result<ReceiveResult>)>;
using ReceiveId = std::uint64_t;

struct ConnectionCounters {
    std::uint64_t packets_first = 0;  ///< packets sent for the first time
    std::uint64_t packets_resent = 0;
    std::uint64_t packets_parity = 0;    ///< of coding schemes
    std::uint64_t packets_rebuilt = 0;   ///< by the receiver, from parity
    std::uint64_t packets_spurious = 0;  ///< resent although the first copy had arrived, as far as acks show
    std::uint64_t timeouts = 0;          ///< retransmission timer expiries that resent something
    std::uint64_t acks_sent = 0, acks_received = 0;
    std::uint64_t probes_sent = 0, probes_received = 0;
    std::uint64_t malformed = 0;           ///< datagrams of the peer that made no sense, dropped
    std::uint64_t bytes_acknowledged = 0;  ///< of our Writes
    std::uint64_t bytes_received = 0;      ///< of completed receives
    std::uint64_t writes_completed = 0, receives_completed = 0;
};

class Connection {
 public:
    /// The wire must outlive the connection. Errors: kInvalidArgument from the queue pair's or this configuration.
    static Result<std::unique_ptr<Connection>> create(Loop& loop, sdr::Wire& wire,
                                                      const sdr::QueuePairConfig& queue_pair,
                                                      const ConnectionConfig& config);
    /// Outstanding callbacks are not called any more; no buffer is touched after it returns.
    ~Connection();

    /// Writes `length` bytes at `data` (null on a metadata-only wire), which must stay valid until `done` is called:
    /// with success when the peer has everything, else with the error. Writes land in the peer's receives in the order
    /// of these calls; several are in flight at once. Errors at once: kClosed after the connection failed;
    /// kInvalidArgument for bytes at a null pointer.
    Status write(const std::byte* data, std::uint64_t length, WriteCallback done,
                 std::optional<std::uint32_t> immediate = {});

    /// Posts a buffer for the next Write of the peer; any number may be posted ahead (the queue pair opens max_messages
    /// slots of them). With want_immediate the receive completes only when the writer's immediate is in: the writer
    /// must send one. Errors: those of write().
    Result<ReceiveId> receive(std::byte* buffer, std::uint64_t length, ReceiveCallback done,
                              bool want_immediate = false);
    /// Ends a receive as it is: the writer is told that it is done, its callback runs with early = true. What comes
    /// later touches nothing. Errors: kInvalidArgument when there is no such receive.
    Status finish_early(ReceiveId id);
    /// The message slots of a posted receive that are open now, in order: to look at bitmaps while it arrives.
    void open_slots(ReceiveId id,
                    const std::function<void(std::uint64_t offset, const sdr::MessageSlot&)>& visit) const;

    /// Writes not done yet.
    std::uint64_t writes_outstanding() const;
    /// Fails everything outstanding with `error`, as if the peer were gone; later calls return kClosed.
    void abort(const Error& error);
    /// Called once when the connection fails (peer gone, wire broken), after the callbacks of what was outstanding.
    void on_failure(std::function<void(const Error&)> callback);
    bool failed() const;

    Duration round_trip() const;
    ConnectionCounters counters() const;
    sdr::QueuePair& queue_pair();
    const ConnectionConfig& config() const;

 private:
    Connection();
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace farhaul::reliable
