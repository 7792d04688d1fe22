// A hostile peer: whatever datagrams and packets come, a live queue pair with sends and receives open must not crash,
// write outside a posted buffer, or keep growing. The input is a list of events: a byte that says what, a length, and
// bytes.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/loop.hpp"
#include "sdr/queue_pair.hpp"

using namespace farhaul;
using namespace farhaul::sdr;

namespace {

struct FuzzLoop final : Loop {
    TimePoint now() const override { return now_; }
    void advance(Duration duration) {
        const TimePoint end = now_ + duration;
        for (int i = 0; i < 1000 && timers_.next_deadline() <= end; ++i) {
            now_ = std::max(now_, timers_.next_deadline());
            timers_.fire_next(now_);
        }
        now_ = end;
    }
    TimePoint now_;
};

struct FuzzWire final : Wire {
    const WireLimits& limits() const override { return limits_; }
    void attach(WireSink* sink) override { sink_ = sink; }
    std::size_t tx_burst(std::span<const OutgoingPacket> packets) override {
        unsigned sum = 0;  // payload must be readable
        for (const OutgoingPacket& packet : packets)
            for (std::uint32_t i = 0; i < packet.length; ++i) sum += static_cast<unsigned>(packet.payload[i]);
        check_ = sum;
        return packets.size() > 3 ? 3 : packets.size();
    }
    void send_datagram(std::span<const std::byte> datagram) override {
        if (datagram.empty() || datagram.size() > limits_.max_datagram_bytes) std::abort();
    }
    WireLimits limits_{.max_payload_bytes = 64, .max_datagram_bytes = 300};
    WireSink* sink_ = nullptr;
    volatile unsigned check_ = 0;
};

constexpr std::uint64_t kBuffer = 64 * 20 + 7;

struct Fuzzed final : QueuePairListener {
    void on_receive_progress(MessageSlot& slot) override {
        // What a reader may look at.
        std::uint64_t in = 0;
        for (std::uint32_t c = 0; c < slot.chunks(); ++c) in += static_cast<std::uint64_t>(slot.chunk_packets(c) != 0);
        if (in > slot.chunks() || slot.chunks_complete() > slot.chunks() || slot.packet_horizon() > slot.packets())
            std::abort();
        std::uint32_t immediate = 0;
        slot.immediate(&immediate);
    }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    FuzzLoop loop;
    FuzzWire wire;
    const QueuePairConfig config{.layout = {3, 21, 8},
                                 .payload_bytes = 64,
                                 .packets_per_chunk = 5,
                                 .max_messages = 4,
                                 .max_message_bytes = kBuffer,
                                 .control_timeout = Duration::from_milliseconds(100'000)};
    auto made = QueuePair::create(loop, wire, config, nullptr);
    if (!made) std::abort();
    QueuePair& queue_pair = **made;
    Fuzzed listener;
    queue_pair.set_listener(&listener);
    // On the heap and of exactly the posted size, so that the sanitizer sees every byte too many.
    std::vector<std::pair<MessageSlot*, std::unique_ptr<std::byte[]>>> receives;
    const auto source = std::make_unique<std::byte[]>(kBuffer);
    std::vector<SendHandle*> sends;
    const auto post = [&] {
        auto buffer = std::make_unique<std::byte[]>(kBuffer);
        if (auto slot = queue_pair.post_receive(buffer.get(), kBuffer)) receives.emplace_back(*slot, std::move(buffer));
    };
    post();
    post();

    while (size >= 2) {
        const std::uint8_t what = data[0];
        const std::size_t length = std::min<std::size_t>(data[1], size - 2);
        const std::uint8_t* bytes = data + 2;
        data += 2 + length;
        size -= 2 + length;
        // A copy of its own, so that reading past the end is seen.
        std::vector<std::byte> copy(length);
        if (length > 0) std::memcpy(copy.data(), bytes, length);
        switch (what % 8) {
            case 0:
                wire.sink_->on_datagram(copy);
                break;
            case 1:  // as records, so that the kind byte need not be guessed
                copy.insert(copy.begin(), std::byte{1});
                wire.sink_->on_datagram(copy);
                break;
            case 2: {  // packets: 10 bytes each say immediate, generation and length
                std::vector<std::byte> payload(64 * 1024);
                std::vector<Arrival> batch;
                for (std::size_t at = 0; at + 10 <= length; at += 10) {
                    std::uint32_t immediate = 0, generation = 0;
                    std::uint16_t bytes_in = 0;
                    std::memcpy(&immediate, copy.data() + at, 4);
                    std::memcpy(&generation, copy.data() + at + 4, 4);
                    std::memcpy(&bytes_in, copy.data() + at + 8, 2);
                    batch.push_back({payload.data(), bytes_in, immediate, generation});
                }
                wire.sink_->on_arrivals(what / 8, batch);
                break;
            }
            case 3: {  // packets that are nearly right: message, index, length
                std::vector<std::byte> payload(64);
                std::vector<Arrival> batch;
                for (std::size_t at = 0; at + 3 <= length; at += 3)
                    batch.push_back({payload.data(), std::to_integer<std::uint32_t>(copy[at + 2]) % 66,
                                     config.layout.encode(std::to_integer<std::uint32_t>(copy[at]) % 8,
                                                          std::to_integer<std::uint32_t>(copy[at + 1]) % 24, 1),
                                     std::to_integer<std::uint32_t>(copy[at]) / 128});
                wire.sink_->on_arrivals(0, batch);
                break;
            }
            case 4:
                loop.advance(Duration::from_milliseconds(static_cast<std::int64_t>(length) * 10));
                break;
            case 5:
                if (!receives.empty()) {
                    queue_pair.complete_receive(*receives[what / 8 % receives.size()].first);
                    receives.erase(receives.begin() + static_cast<std::ptrdiff_t>(what / 8 % receives.size()));
                }
                post();
                break;
            case 6:
                if (auto send =
                        queue_pair.start_send({.immediate = length % 2 == 0 ? std::optional(7u) : std::nullopt})) {
                    sends.push_back(*send);
                    const std::uint64_t bytes_out = std::min<std::uint64_t>((*send)->capacity(), kBuffer);
                    if (!queue_pair.continue_send(**send, 0, source.get(), bytes_out / 64 * 64)) std::abort();
                    if (length % 3 != 0 && !queue_pair.end_send(**send)) std::abort();
                }
                break;
            default:
                wire.sink_->on_writable();
                if (!sends.empty() && length % 2 == 0) {
                    queue_pair.release_send(*sends.back());
                    sends.pop_back();
                }
        }
        if (queue_pair.send_queue_packets() > 21 * 4) std::abort();
    }
    // Buffers go before the queue pair would let them: complete first, as an owner must.
    for (auto& [slot, buffer] : receives) queue_pair.complete_receive(*slot);
    return 0;
}
