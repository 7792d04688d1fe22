// The receiving end: answers senders and runs any number of transfers at once, each with a ring of posted blocks and a
// thread that writes to the disk.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "app/transfer/file_sink.hpp"
#include "app/transfer/session.hpp"

namespace farhaul::app::transfer {

struct ReceiverOptions {
    udp::Address listen{};
    SinkOptions sink{};
    std::uint64_t memory = kDefaultMemory;  ///< most bytes of blocks per transfer
    Duration timeout = Duration::from_milliseconds(10'000);
    std::uint32_t channels = 1;
    std::uint32_t max_transfers = 16;  ///< at once; further senders are told to come later
    bool once = false;                 ///< take no second transfer
};

struct ReceiverEvents {
    std::function<void(const std::string& peer, const Offer& offer)> started;
    std::function<void(const std::string&)> warning;
    /// Of all transfers that are going on: bytes so far and announced.
    std::function<void(std::uint64_t done, std::uint64_t total)> progress;
    std::function<void(const TransferReport&)> ended;
};

class Receiver {
 public:
    Receiver(udp::RealLoop& loop, ReceiverOptions options, ReceiverEvents events);
    ~Receiver();

    /// Errors: kIo when the folder cannot be written to or the port is in use.
    Status listen();
    /// The address with its real port.
    const udp::Address& local_address() const;
    /// Transfers going on, ones that are being wound up included.
    std::size_t transfers() const;
    /// Ends every transfer as interrupted and takes no new one; partial files are gone when transfers() is 0.
    void interrupt();

 private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace farhaul::app::transfer
