// The sending end of a transfer: connects, reads blocks ahead on a thread of its own, keeps the agreed window of them
// in flight, and waits for the receiver's last word.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/transfer/file_source.hpp"
#include "app/transfer/session.hpp"

namespace farhaul::app::transfer {

struct SenderOptions {
    udp::Address peer;
    Offer offer;
    BitRate rate;
    Duration timeout = Duration::from_milliseconds(10'000);
    std::uint32_t channels = 1;
    bool checksum = true;
};

/// What a run tells while it goes, on the loop's thread.
struct SenderEvents {
    std::function<void(const std::string&)> warning;
    std::function<void(const TransferReport&)> connected;  ///< round trip, packet size and window are known
    std::function<void(std::uint64_t bytes)> progress;     ///< acknowledged so far
};

class Sender {
 public:
    Sender(udp::RealLoop& loop, SenderOptions options, std::vector<WalkRoot> roots, SenderEvents events);
    ~Sender();

    /// Runs the whole transfer on the calling thread.
    TransferReport run();
    /// From the loop's thread: gives up and tells the receiver.
    void interrupt();

 private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace farhaul::app::transfer
