// The datagrams of the reliability layer: first as the pure decoder sees them, then thrown at a live connection that is
// in the middle of a Write, where they must never crash it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "reliable/ack.hpp"
#include "reliable/connection.hpp"
#include "wire/sim/sim_loop.hpp"
#include "wire/sim/sim_network.hpp"

using namespace farhaul;

namespace {

using reliable::Scheme;
constexpr std::array kSchemes{Scheme::kGoBackN,
                              Scheme::kSelectiveRepeat,
                              Scheme::kSelectiveRepeatNack,
                              Scheme{Scheme::Kind::kErasure, 8, 2, false},
                              Scheme{Scheme::Kind::kErasureXor, 8, 2, false},
                              Scheme::kAuto};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto input = std::as_bytes(std::span(data, size));
    reliable::Ack ack;
    if (reliable::decode_ack(input, ack)) {
        std::uint64_t sum = 0;
        for (const auto& section : ack.sections)
            for (const auto& run : ack.missing_of(section)) sum += run.count;
        if (sum == ~0ull) return 1;
    }
    Error error;
    reliable::decode_abort(input, error);

    wire::SimLoop loop;
    wire::SimNetwork network(loop);
    wire::SimLinkConfig link;
    link.limits.carries_payload = false;
    link.forward.rate = link.backward.rate = BitRate::from_gigabits(10);
    link.forward.delay = link.backward.delay = Duration::from_microseconds(100);
    link.forward.loss.probability = 0.05;
    auto wires = network.connect(link, 1);
    if (!wires) return 0;
    sdr::QueuePairConfig queue_pair;
    queue_pair.payload_bytes = 1000;
    queue_pair.packets_per_chunk = 4;
    queue_pair.max_message_bytes = 50'000;
    queue_pair.max_messages = 4;
    reliable::ConnectionConfig config;
    config.scheme = kSchemes[size % kSchemes.size()];
    config.initial_rtt = queue_pair.initial_rtt = Duration::from_microseconds(200);
    auto a = reliable::Connection::create(loop, *wires->first, queue_pair, config);
    auto b = reliable::Connection::create(loop, *wires->second, queue_pair, config);
    if (!a || !b) return 0;
    if (!(*b)->receive(nullptr, 120'000, {})) return 0;
    if (!(*a)->write(nullptr, 120'000, {})) return 0;
    if (!loop.run_for(Duration::from_microseconds(150))) return 0;
    // The input is a sequence of datagrams, each led by its length; the SDK's prefix for the layer above is added.
    std::size_t at = 0;
    while (at + 2 < input.size()) {
        const std::size_t length = std::min<std::size_t>(static_cast<std::size_t>(data[at]) + 1, input.size() - at - 1);
        wires->first->inject_datagram(input.subspan(at + 1, length));
        wires->second->inject_datagram(input.subspan(at + 1, length), Duration::from_microseconds(20));
        at += 1 + length;
        if (!loop.run_for(Duration::from_microseconds(10))) return 0;
    }
    if (!loop.run_for(Duration::from_milliseconds(20))) return 0;
    return 0;
}
