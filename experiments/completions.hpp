// How fast packet completions become bits of a message's bitmap: what the receiving side of an SDK does per packet when
// the device has placed the payload. The immediates of a message are handed to sdr::MessageTable in batches, as a wire
// does; message id, generation and bounds are checked, packet bits and chunk bits set.
#pragma once

#include <cstdint>

namespace farhaul::experiments {

enum class Sharing {
    kOwnMessages,  ///< each thread has a queue pair of its own
    kOneMessage,   ///< the threads are channels of one queue pair: packets of a message round-robin, atomic bits
};

/// Completions per second of all threads together, the best of a few measurements of `seconds` each.
double completion_rate(std::uint32_t packets_per_chunk, unsigned threads, Sharing sharing, double seconds);

}  // namespace farhaul::experiments
