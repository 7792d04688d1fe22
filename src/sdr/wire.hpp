// The seam to what carries packets: a simulated link, UDP sockets, verbs queue pairs. A Wire is one connection to one
// peer.
//
// Bursts of many packets cross this seam, so that a virtual call costs nothing per packet. Everything here is
// unreliable: what is sent may be lost, delayed, duplicated or reordered, but what arrives is what was sent (a wire
// checks integrity and drops what fails).
//
// Threads: a Wire and its WireSink belong to one Loop, except on_arrivals(), which a wire with several channels may
// call from one thread per channel (WireLimits::concurrent_channels says so, and the table then uses atomic bits). The
// sink then does no more there than set bits and call Wire::wake(); the wire in turn calls WireSink::poll() on the
// Loop's thread, where the listeners hear of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.hpp"

namespace farhaul::sdr {

/// One unreliable write with immediate: payload for the peer's posted buffer.
struct OutgoingPacket {
    const std::byte* payload;  ///< null when the wire carries metadata only; must stay valid until tx_burst returns
    std::uint32_t length;      ///< payload bytes, at most WireLimits::max_payload_bytes; may be 0
    std::uint32_t immediate;
    std::uint32_t generation;  ///< of the message id; a wire may carry only its low WireLimits::generation_bits bits
    std::uint32_t channel;     ///< below WireLimits::channels
};

/// A packet that came in. `payload` is valid during on_arrivals() only; null when it was placed already or carries
/// metadata only.
struct Arrival {
    const std::byte* payload;
    std::uint32_t length;
    std::uint32_t immediate;
    std::uint32_t generation;
};

struct WireLimits {
    std::uint32_t max_payload_bytes = 4096;   ///< most payload per packet on this path
    std::uint32_t max_datagram_bytes = 1200;  ///< most bytes of one control datagram
    std::uint32_t channels = 1;
    std::uint32_t generation_bits = 32;  ///< how much of OutgoingPacket::generation arrives
    bool concurrent_channels = false;    ///< on_arrivals() may be called from several threads at once
    bool carries_payload = true;         ///< false: metadata only (fast simulation); buffers may then be null
    std::uint64_t receive_buffer_bytes =
        0;  ///< what may be in flight towards an end like this one before it overflows; 0: no such limit
};

/// What a Wire calls.
class WireSink {
 public:
    virtual ~WireSink() = default;
    /// Data packets of one channel, in the order in which they arrived.
    virtual void on_arrivals(std::uint32_t channel, std::span<const Arrival> arrivals) = 0;
    /// On the Loop's thread, soon after some thread called Wire::wake(): hands on what other threads took. Cheap when
    /// there is nothing.
    virtual void poll() {}
    /// A control datagram of the peer. From outside: never trusted.
    virtual void on_datagram(std::span<const std::byte> datagram) = 0;
    /// Room again after tx_burst() took less than it was given.
    virtual void on_writable() = 0;
    /// The path is broken (the peer's port is closed, the device is gone). Operations should end with this error.
    virtual void on_wire_error(const Error& error) = 0;
};

class Wire {
 public:
    virtual ~Wire() = default;
    virtual const WireLimits& limits() const = 0;
    /// Sink of this wire's events; null detaches. After detaching from the Loop's thread no callback runs any more.
    virtual void attach(WireSink* sink) = 0;
    /// Takes the first n packets and returns n. n < packets.size() means: wait for on_writable().
    virtual std::size_t tx_burst(std::span<const OutgoingPacket> packets) = 0;
    /// Sends one control datagram, ahead of queued data where the wire can. Unreliable; dropped if the wire is full.
    virtual void send_datagram(std::span<const std::byte> datagram) = 0;
    /// Returns when no other thread is inside on_arrivals() with state from before this call. A no-op on
    /// single-threaded wires. The message table calls it after it detached a buffer and before it lets go of it.
    virtual void quiesce() {}
    /// Makes the Loop's thread call WireSink::poll() soon. Called from inside on_arrivals(), on any thread, at most
    /// once per poll(); only on wires with concurrent_channels, which must implement it (an eventfd, or a flag if the
    /// Loop's thread polls anyway).
    virtual void wake() {}
};

}  // namespace farhaul::sdr
