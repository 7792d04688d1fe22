// The connect handshake and path MTU probing, as state machines without sockets, clocks or threads.
//
//   client                                                     server
//     | Request{versions, client token, parameters, blob}  -->  |   repeated with back-off until answered
//     |  <--  Reply{version, server token, parameters, blob}    |   or Refuse{reason}; a repeated request gets the same
//     reply | Probe(size), Probe(size), ... on each channel      -->  |   only for sizes that the handshake itself has
//     not shown to pass |  <--  ProbeReply(size), ...                             |   as large as the probe: both
//     directions are shown | Confirm{payload, channels}                         -->  |   repeated by the connection
//     until the server is heard |  <--  ConfirmAck                                        |
//
// The client is connected when it knows the payload size (one round trip, or two when probing); the server when it is
// confirmed. Until then the server keeps no more than one entry of a bounded table per request, and forgets the oldest
// when it is full: whoever confirms has received the server's token and so really is at its address. Requests are
// padded to the size of the longest reply, so that a forged source address gets no more bytes than the forger sent.
//
// Probing: a ladder of frame sizes, capped by the wanted one. A size is given up at once when the kernel refuses it
// (larger than the device's MTU, Don't Fragment is set) and otherwise when it was sent kProbeRounds times without an
// answer while smaller ones passed: that is how a black hole shows. At 30% loss in each direction, a size that passes
// is missed with probability 0.51^16 = 2e-5. Probing ends as soon as the largest size that is left has been answered,
// so a clean path costs one round trip. A channel none of whose probes is answered is not used.
// Behind a relay or an address translator (the server saw the request come from another port) only the first channel is
// used: the others would go past it.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/random.hpp"
#include "base/result.hpp"
#include "base/time.hpp"
#include "wire/udp/address.hpp"
#include "wire/udp/frame.hpp"

namespace farhaul::udp {

inline constexpr Duration kFirstRequestInterval = Duration::from_milliseconds(100);
inline constexpr Duration kLongestRequestInterval = Duration::from_milliseconds(1'000);
inline constexpr std::uint32_t kProbeRounds = 16;
inline constexpr Duration kShortestProbeInterval = Duration::from_milliseconds(10);

/// Frame sizes to try for a wanted frame: descending, the wanted size first, all above what the handshake has shown.
std::vector<std::uint32_t> probe_ladder(std::uint32_t wanted_frame_bytes);

/// Client side of one connection attempt.
class ClientHandshake {
 public:
    enum class State { kRequesting, kProbing, kConnected, kFailed };
    enum class Sent { kOk, kTooBig };
    /// Sends a frame on a channel. kTooBig: the kernel says that it never fits.
    using SendFunction = std::function<Sent(std::uint32_t channel, std::span<const std::byte> frame)>;
    struct Config {
        ConnectParameters wanted;
        std::vector<std::byte> blob;
        std::uint64_t client_token = 0;  ///< not 0
        Duration timeout = Duration::from_milliseconds(10'000);
        std::string peer_name;       ///< for messages
        std::uint16_t own_port = 0;  ///< of channel 0; 0: not known
    };

    ClientHandshake(Config config, SendFunction send) : config_(std::move(config)), send_(std::move(send)) {}

    /// For a sender that needs to know the handshake itself. Before start().
    void set_send(SendFunction send) { send_ = std::move(send); }
    void start(TimePoint now);
    /// A frame with our client token that passed check_frame().
    void on_frame(TimePoint now, std::uint32_t channel, const FrameHeader& header, std::span<const std::byte> frame);
    void on_timer(TimePoint now);
    /// The network says that nobody listens there, or that there is no way.
    void on_refused(const Error& error);
    TimePoint next_deadline() const { return deadline_; }

    State state() const { return state_; }
    /// When kFailed.
    const Error& error() const { return error_; }
    /// When kConnected: agreed parameters (payload_bytes as probed, channels as reachable), and what the server said.
    const ConnectParameters& agreed() const { return agreed_; }
    const ReplyMessage& reply() const { return reply_; }
    Duration round_trip() const { return round_trip_; }
    const Config& config() const { return config_; }
    /// The frame to repeat until the server is heard.
    std::vector<std::byte> confirm_frame() const;

 private:
    struct ProbeSize {
        std::uint32_t frame_bytes;
        bool answered = false;
        bool given_up = false;
    };
    void fail_with(ErrorCode code, std::string message);
    void send_request(TimePoint now);
    void on_reply(TimePoint now, std::span<const std::byte> body);
    void send_probes(TimePoint now);
    void send_probe(std::uint32_t channel, ProbeSize& size);
    bool probing_done() const;
    void finish_probing();

    Config config_;
    SendFunction send_;
    State state_ = State::kRequesting;
    Error error_{ErrorCode::kTimeout, {}};
    TimePoint deadline_ = TimePoint::never();
    TimePoint give_up_at_;
    TimePoint first_request_at_;
    Duration interval_ = kFirstRequestInterval;
    std::uint32_t requests_ = 0;
    ReplyMessage reply_;
    ConnectParameters agreed_;
    Duration round_trip_;
    std::vector<ProbeSize> sizes_;
    std::uint32_t channels_answered_ = 1;  // bit per channel; the handshake has shown channel 0
    std::uint32_t rounds_ = 0;
    TimePoint probing_since_;
};

/// Server side: the requests that were answered, until their clients confirm, and for as long as their connections
/// live.
class ServerHandshake {
 public:
    struct Entry {
        std::uint64_t client_token = 0;
        std::uint64_t server_token = 0;
        Address peer;
        LocalAddress local;                               ///< where its request came to
        std::array<Address, kMaxChannels> channel_peers;  ///< where the client's probes of each channel came from
        ConnectParameters agreed;                         ///< payload_bytes and channels as confirmed, once confirmed
        std::vector<std::byte> blob;                      ///< the client's
        std::vector<std::byte> reply;                     ///< the whole frame
        TimePoint answered_at;
        bool confirmed = false;
        std::list<std::uint64_t>::iterator age;  // place in the order of half-open entries; valid until confirmed
    };
    struct Decision {
        bool accepted = false;
        ConnectParameters own;
        std::vector<std::byte> blob;
        std::string reason;
    };
    struct Config {
        std::uint32_t max_half_open = 1024;
        std::array<std::uint16_t, kMaxChannels> ports{};  ///< of our channels
        std::uint32_t channels = 1;                       ///< that we have
        std::function<std::uint64_t()> new_token;         ///< random, not 0, not in use
    };
    /// A half-open entry is forgotten after this.
    static constexpr Duration kHalfOpenLife = Duration::from_milliseconds(15'000);

    explicit ServerHandshake(Config config) : config_(std::move(config)) {}

    /// What to send back to a request (a whole frame), or nothing. `decide` is asked for new requests only.
    std::vector<std::byte> on_request(TimePoint now, const Address& peer, const LocalAddress& local,
                                      const RequestMessage& request,
                                      const std::function<Decision(const RequestMessage&)>& decide);
    /// The entry whose server token this is, or null.
    Entry* find(std::uint64_t server_token);
    /// Marks the entry as confirmed with these values. Returns true the first time; values beyond what was agreed are
    /// cut.
    bool confirm(Entry& entry, const ConfirmMessage& confirm);
    /// The connection is over.
    void remove(std::uint64_t server_token);
    void expire(TimePoint now);

    std::size_t half_open() const { return half_open_.size(); }
    std::uint64_t evicted() const { return evicted_; }

 private:
    Config config_;
    std::unordered_map<std::uint64_t, Entry> entries_;            // by server token
    std::unordered_map<std::uint64_t, std::uint64_t> by_client_;  // client token -> server token
    std::list<std::uint64_t> half_open_;                          // server tokens, oldest first
    std::uint64_t evicted_ = 0;
};

}  // namespace farhaul::udp
