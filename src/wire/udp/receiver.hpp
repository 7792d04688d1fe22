// The receive path of one channel: recvmmsg with merged packets (GRO) into preallocated buffers, split, check, hand on.
// Nothing is allocated per packet and nothing is copied: arrivals point into the receive buffers.
//
// Runs on the loop's thread or on the channel's own; not on both.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "wire/udp/frame.hpp"
#include "wire/udp/socket.hpp"
#include "wire/udp/token_table.hpp"

namespace farhaul::udp {

/// Takes the frames that are not data of an established connection. On the receiver's thread.
class OtherFrames {
 public:
    virtual ~OtherFrames() = default;
    /// At least kHeaderBytes, otherwise unchecked. `message` has the control messages.
    virtual void on_other_frame(std::uint32_t channel, std::span<const std::byte> frame, const Address& from,
                                const msghdr& message) = 0;
    /// A data frame that passed every check, its CRC included, came from an address that is not the one its connection
    /// knows. Must not end the connection.
    virtual void on_new_address(std::uint32_t channel, std::uint64_t token, const Address& from,
                                const msghdr& message) = 0;
};

/// Written by one thread, read by others.
class RelaxedCounter {
 public:
    void add(std::uint64_t n) { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
    std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
    std::atomic<std::uint64_t> value_{0};
};

struct ReceiverCounters {
    RelaxedCounter frames, bytes, malformed, corrupt, early, truncated, kernel_drops;
};

class Receiver {
 public:
    Receiver(std::uint32_t channel, UdpSocket& socket, const TokenTable& table, OtherFrames& others);

    enum class Outcome { kIdle, kReceived, kError };
    /// One recvmmsg call and all that follows from it. kError: the socket has an error pending (see
    /// UdpSocket::next_error()).
    Outcome receive(TimePoint now);
    const ReceiverCounters& counters() const { return counters_; }

 private:
    static constexpr std::size_t kBuffers = 4;
    static constexpr std::size_t kBufferBytes = 65536;
    static constexpr std::size_t kMaxArrivals = 512;

    void on_frame(std::span<const std::byte> frame, const Address& from, const msghdr& message);
    void flush();

    std::uint32_t channel_;
    UdpSocket& socket_;
    const TokenTable& table_;
    OtherFrames& others_;
    ReceiverCounters counters_;

    std::vector<std::byte> buffers_;
    std::vector<mmsghdr> messages_;
    std::vector<iovec> parts_;
    std::vector<sockaddr_storage> names_;
    std::vector<std::byte> controls_;

    std::vector<sdr::Arrival> arrivals_;
    std::size_t arrival_count_ = 0;
    ReceiveTarget* target_ = nullptr;  // of the arrivals; null: look it up
    TimePoint now_;
    std::uint64_t from_fingerprint_ = 0;
    bool new_address_told_ = false;  // in this batch
    std::uint64_t batch_frames_ = 0, batch_bytes_ = 0;
    std::uint32_t dropped_before_ = 0;
};

}  // namespace farhaul::udp
