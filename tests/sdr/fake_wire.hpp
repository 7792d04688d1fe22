// Two queue pairs joined by queues that drop, duplicate, delay and reorder under a seed, on a loop that the test turns
// by hand.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.hpp"
#include "base/random.hpp"
#include "sdr/queue_pair.hpp"

namespace farhaul::sdr::testing {

class ManualLoop final : public Loop {
 public:
    TimePoint now() const override { return now_; }

    void at(TimePoint time, std::function<void()> event) { events_.emplace(std::max(time, now_), std::move(event)); }
    void after(Duration delay, std::function<void()> event) { at(now_ + delay, std::move(event)); }
    /// Handles the next timer or event at or before `limit`; false when there is none.
    bool step(TimePoint limit = TimePoint::never()) {
        const TimePoint timer = timers_.next_deadline();
        const TimePoint event = events_.empty() ? TimePoint::never() : events_.begin()->first;
        const TimePoint next = std::min(timer, event);
        if (next >= TimePoint::never() || next > limit) return false;
        now_ = std::max(now_, next);
        if (timer <= event) return timers_.fire_next(now_);
        auto function = std::move(events_.begin()->second);
        events_.erase(events_.begin());
        function();
        return true;
    }
    /// Time passes and nothing is handled, as for a process that is stopped.
    void jump(Duration duration) { now_ = now_ + duration; }
    void run_for(Duration duration) {
        const TimePoint end = now_ + duration;
        while (step(end)) {
        }
        now_ = std::max(now_, end);
    }
    /// Turns until `done` or until nothing happens for `limit`.
    template <typename Done>
    bool run_until(Done done, Duration limit = Duration::from_seconds(60)) {
        const TimePoint end = now_ + limit;
        while (!done())
            if (!step(end)) return done();
        return true;
    }

 private:
    TimePoint now_;
    std::multimap<TimePoint, std::function<void()>> events_;
};

struct Faults {
    double loss = 0;  ///< of data packets
    double datagram_loss = 0;
    double duplicate = 0;      ///< of either
    double reorder = 0;        ///< delayed by up to reorder_delay more
    double partial_burst = 0;  ///< tx_burst takes only some of what it is given
    Duration delay = Duration::from_milliseconds(1);
    Duration reorder_delay = Duration::from_milliseconds(5);
};

/// One end. What it sends arrives at `peer`.
class FakeWire final : public Wire {
 public:
    FakeWire(ManualLoop& loop, std::uint64_t seed) : loop_(loop), random_(seed) {}
    ~FakeWire() override { *alive_ = false; }

    const WireLimits& limits() const override { return limits_; }
    void attach(WireSink* sink) override { sink_ = sink; }
    std::size_t tx_burst(std::span<const OutgoingPacket> packets) override {
        ++bursts;
        std::size_t taken = packets.size();
        if (random_.chance(faults.partial_burst)) {
            taken = random_.below(packets.size());
            loop_.after(Duration::from_microseconds(5), [this, alive = alive_] {
                if (*alive && sink_ != nullptr) sink_->on_writable();
            });
        }
        for (const OutgoingPacket& packet : packets.first(taken)) send(packet);
        return taken;
    }
    void send_datagram(std::span<const std::byte> datagram) override {
        ++datagrams;
        std::vector<std::byte> bytes(datagram.begin(), datagram.end());
        last_datagram = bytes;
        if (drop_datagrams > 0) {
            --drop_datagrams;
            return;
        }
        if (random_.chance(faults.datagram_loss)) return;
        deliver_at(loop_.now() + delay(), [bytes](WireSink& sink) { sink.on_datagram(bytes); });
        if (random_.chance(faults.duplicate))
            deliver_at(loop_.now() + delay(), [bytes](WireSink& sink) { sink.on_datagram(bytes); });
    }
    void quiesce() override { ++quiesced; }

    WireLimits limits_{.max_payload_bytes = 65536, .max_datagram_bytes = 1200};
    Faults faults;
    FakeWire* peer = nullptr;
    std::vector<OutgoingPacket> sent;  ///< every packet given (payload pointers are stale)
    bool keep_sent = false;
    /// Called for each packet before the faults; returning false keeps it from being sent.
    std::function<bool(const OutgoingPacket&)> filter;
    std::uint64_t drop_datagrams = 0;
    std::uint64_t bursts = 0, datagrams = 0, quiesced = 0;
    std::vector<std::byte> last_datagram;
    WireSink* sink_ = nullptr;

 private:
    Duration delay() {
        Duration total = faults.delay;
        if (random_.chance(faults.reorder))
            total += Duration::from_nanoseconds(static_cast<std::int64_t>(
                random_.below(static_cast<std::uint64_t>(faults.reorder_delay.nanoseconds()) + 1)));
        return total;
    }
    void send(const OutgoingPacket& packet) {
        if (keep_sent) sent.push_back(packet);
        if (filter && !filter(packet)) return;
        if (random_.chance(faults.loss)) return;
        std::vector<std::byte> payload;
        if (packet.payload != nullptr) payload.assign(packet.payload, packet.payload + packet.length);
        const int copies = random_.chance(faults.duplicate) ? 2 : 1;
        for (int i = 0; i < copies; ++i)
            deliver_at(loop_.now() + delay(), [payload, packet](WireSink& sink) {
                const Arrival arrival{payload.empty() ? nullptr : payload.data(), packet.length, packet.immediate,
                                      packet.generation};
                sink.on_arrivals(packet.channel, {&arrival, 1});
            });
    }
    template <typename Function>
    void deliver_at(TimePoint time, Function function) {
        loop_.at(time, [to = peer, alive = peer->alive_, function] {
            if (*alive && to->sink_ != nullptr) function(*to->sink_);
        });
    }

    ManualLoop& loop_;
    Random random_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

/// A listener that counts, and does what a test plugs in.
struct Events final : QueuePairListener {
    int clear_to_send = 0, injected = 0, low = 0, progress = 0, errors = 0;
    std::string error;
    ErrorCode code{};
    std::vector<std::vector<std::byte>> datagrams;
    std::function<void(SendHandle&, std::uint64_t, std::uint64_t)> when_injected;
    std::function<void()> when_low;
    std::function<void(MessageSlot&)> when_progress;
    std::function<void()> when_clear_to_send;

    void on_clear_to_send() override {
        ++clear_to_send;
        if (when_clear_to_send) when_clear_to_send();
    }
    void on_injected(SendHandle& send, std::uint64_t offset, std::uint64_t length) override {
        ++injected;
        if (when_injected) when_injected(send, offset, length);
    }
    void on_send_queue_low() override {
        ++low;
        if (when_low) when_low();
    }
    void on_receive_progress(MessageSlot& slot) override {
        ++progress;
        if (when_progress) when_progress(slot);
    }
    void on_datagram(std::span<const std::byte> datagram) override {
        datagrams.emplace_back(datagram.begin(), datagram.end());
    }
    void on_queue_pair_error(const Error& what) override {
        ++errors;
        error = what.message;
        code = what.code;
    }
};

/// Two wires and a queue pair on each, `a` sending to `b` by convention.
struct Pair {
    explicit Pair(const QueuePairConfig& config_in, std::uint64_t seed = 1)
        : wire_a(loop, seed * 2 + 1), wire_b(loop, seed * 2 + 2), config(config_in) {
        wire_a.peer = &wire_b;
        wire_b.peer = &wire_a;
    }
    void open() {
        auto made_a = QueuePair::create(loop, wire_a, config, &events_a);
        auto made_b = QueuePair::create(loop, wire_b, config, &events_b);
        if (!made_a || !made_b) std::abort();
        a = std::move(*made_a);
        b = std::move(*made_b);
    }
    void faults(const Faults& both) { wire_a.faults = wire_b.faults = both; }

    ManualLoop loop;
    FakeWire wire_a, wire_b;
    Events events_a, events_b;
    QueuePairConfig config;
    std::unique_ptr<QueuePair> a, b;
};

/// Bytes that depend on the message and the position, so that a byte in the wrong place is noticed.
inline std::byte pattern(std::uint64_t message, std::uint64_t offset) {
    std::uint64_t x = (message + 1) * 0x9e3779b97f4a7c15ull + offset * 0xd1b54a32d192ed03ull;
    x ^= x >> 29;
    return static_cast<std::byte>(x * 0xbf58476d1ce4e5b9ull >> 56);
}
inline std::vector<std::byte> message_bytes(std::uint64_t message, std::uint64_t length) {
    std::vector<std::byte> bytes(length);
    for (std::uint64_t i = 0; i < length; ++i) bytes[i] = pattern(message, i);
    return bytes;
}

/// A buffer between two guards; what was not written stays at kFill.
class GuardedBuffer {
 public:
    static constexpr std::byte kFill{0xee};
    explicit GuardedBuffer(std::uint64_t length) : bytes_(length + 2 * kGuard, kFill), length_(length) {}
    std::byte* data() { return bytes_.data() + kGuard; }
    const std::byte* data() const { return bytes_.data() + kGuard; }
    std::uint64_t length() const { return length_; }
    bool guards_intact() const {
        for (std::size_t i = 0; i < kGuard; ++i)
            if (bytes_[i] != kFill || bytes_[bytes_.size() - 1 - i] != kFill) return false;
        return true;
    }
    bool untouched() const {
        for (const std::byte byte : bytes_)
            if (byte != kFill) return false;
        return true;
    }

 private:
    static constexpr std::size_t kGuard = 128;
    std::vector<std::byte> bytes_;
    std::uint64_t length_;
};

/// Seeds of the property tests: FARHAUL_SEEDS=N says how many (else `usual`), FARHAUL_SEED=S runs that one only.
struct Seeds {
    explicit Seeds(std::uint64_t usual) {
        if (const char* many = std::getenv("FARHAUL_SEEDS")) usual = std::strtoull(many, nullptr, 10);
        end = first + usual;
        if (const char* one = std::getenv("FARHAUL_SEED")) {
            first = std::strtoull(one, nullptr, 10);
            end = first + 1;
        }
    }
    std::uint64_t first = 1, end = 1;
};

}  // namespace farhaul::sdr::testing
