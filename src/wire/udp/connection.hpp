// One connection: the UdpWire that the layer above holds. It sends through the endpoint's Transmitter; the endpoint's
// Receivers look up its ReceiveTarget by token and call the sink.
//
// Life signs, one timer: a peer that was silent for ping_interval is sent a small ping; silent for peer_timeout and
// through several pings, it is gone. While data flows, a ping as large as a data frame goes with it: when those stay
// unanswered although the peer is heard, big packets vanish on the path (a black hole); then Don't Fragment is taken
// back. Until the server is first heard, a client repeats its Confirm.
//
// A "port unreachable" alone kills nothing: it may be stray or forged, or a relay is being restarted. Only the silence
// does; what the network said meanwhile becomes part of the message.
//
// A peer's address may change under way (an address translator forgot it, a relay was restarted). Any frame that passes
// the checks and comes from an address that is not the known one makes it a candidate, which is sent a ping with a
// random number; once the pong with that number comes from there, the connection moves. So a recorded or forged frame
// moves nothing: the candidate must hear us, know our token, and answer a question that was asked just now, which makes
// it newer than whatever is delayed in the network. Until then everything goes to the known address. One candidate at a
// time, asked again every kChallengeInterval while frames come from it, and given up for another after kChallengeLife.
// A ping is answered to where it came from, so that both ends may move at once.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "base/loop.hpp"
#include "wire/udp/endpoint.hpp"
#include "wire/udp/frame.hpp"
#include "wire/udp/socket.hpp"
#include "wire/udp/token_table.hpp"
#include "wire/udp/transmitter.hpp"

namespace farhaul::udp {

class Engine;

inline constexpr std::uint32_t kRefusalsNeeded = 3;
/// During the handshake; later the peer timeout holds.
inline constexpr Duration kConnectRefusalPatience = Duration::from_milliseconds(1'000);
inline constexpr Duration kChallengeInterval = Duration::from_milliseconds(50);
inline constexpr Duration kChallengeLife = Duration::from_milliseconds(2'000);
/// Unanswered big pings in a row that make a black hole.
inline constexpr std::uint32_t kBigPingsToBlackHole = 5;

struct ConnectionConfig {
    std::uint64_t local_token = 0;
    std::uint64_t peer_token = 0;
    ConnectParameters parameters;
    std::vector<TxPath> paths;             ///< one per agreed channel
    std::vector<std::byte> confirm_frame;  ///< a client's, to be repeated; else empty
    Duration round_trip;
};

class Connection final : public UdpWire {
 public:
    Connection(Engine& engine, ConnectionConfig config);
    ~Connection() override;

    // --- UdpWire ---
    const sdr::WireLimits& limits() const override { return limits_; }
    void attach(sdr::WireSink* sink) override;
    std::size_t tx_burst(std::span<const sdr::OutgoingPacket> packets) override;
    void send_datagram(std::span<const std::byte> datagram) override;
    void quiesce() override;
    void wake() override;
    void close() override;
    const Address& peer() const override { return config_.paths[0].to; }
    const ConnectParameters& parameters() const override { return config_.parameters; }
    UdpWireCounters counters() const override;
    bool segmentation_offload() const override;

    // --- for the engine, on the loop's thread ---
    ReceiveTarget& target() { return target_; }
    std::uint64_t token() const { return config_.local_token; }
    /// A frame of another type than data that passed check_frame(). May destroy this connection.
    void on_frame(const FrameHeader& header, std::span<const std::byte> frame, std::uint32_t channel,
                  const Address& from, const LocalAddress& local);
    /// A frame with a good CRC came from there. Destroys nothing.
    void note_source(std::uint32_t channel, const Address& from, const LocalAddress& local);
    void on_network_error(const NetworkError& error);
    bool is_peer(const Address& address) const;
    /// The socket of `channel` takes packets again; kAnyChannel: memory may have been freed. May destroy this
    /// connection.
    void on_writable(std::uint32_t channel);
    static constexpr std::uint32_t kAnyChannel = ~0u;
    /// Takes and clears the request for WireSink::poll().
    bool take_poll_request() { return poll_requested_.exchange(false, std::memory_order_acq_rel); }
    sdr::WireSink* sink() const { return target_.sink.load(std::memory_order_seq_cst); }

 private:
    std::size_t send_over_channels(std::span<const sdr::OutgoingPacket> packets);
    bool take_sent_ahead(const sdr::OutgoingPacket& packet);
    void note(const TxResult& result, std::uint32_t channel);
    void send_frame(FrameType type, std::uint32_t sequence, std::uint32_t size);
    void send_frame_on(const TxPath& path, FrameType type, std::uint32_t sequence, std::uint32_t size);
    void on_pong(const FrameHeader& header, std::uint32_t channel, const Address& from);
    void break_with(ErrorCode code, std::string message);
    void break_silent(TimePoint now);
    void on_tick();
    void on_break();
    void arm_tick();
    void check_black_hole(TimePoint now);
    TimePoint last_heard() const {
        return TimePoint::from_nanoseconds(target_.last_heard_ns.load(std::memory_order_relaxed));
    }

    Engine& engine_;
    ConnectionConfig config_;
    sdr::WireLimits limits_;
    ReceiveTarget target_;
    TxFraming framing_;
    UdpWireCounters counters_;
    std::uint32_t blocked_channels_ = 0;  // bit per channel
    // Of the last burst: sent by their channels although an earlier packet's channel was full. The layer above offers
    // them again. Immediate and generation name a packet.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> sent_ahead_;
    bool wants_writable_ = false;
    std::atomic<bool> poll_requested_{false};
    bool closed_ = false;
    bool peer_closed_ = false;
    std::optional<Error> broken_;
    Timer tick_;
    Timer break_;

    bool confirming_ = false;
    TimePoint created_;
    std::uint32_t pings_since_heard_ = 0;
    TimePoint heard_at_last_tick_;
    std::uint64_t sent_at_last_tick_ = 0;
    std::uint32_t big_ping_sent_ = 0, big_ping_answered_ = 0;
    bool black_hole_ = false;

    std::uint32_t refusals_ = 0;  // since the peer was heard
    TimePoint first_refusal_;
    int refusal_error_ = 0;

    /// Where the peer may have moved to.
    struct Candidate {
        std::uint32_t channel = 0;
        std::uint32_t number = 0;
        Address address;
        LocalAddress local;
        TimePoint since, asked_at;
    };
    std::optional<Candidate> candidate_;
};

}  // namespace farhaul::udp
