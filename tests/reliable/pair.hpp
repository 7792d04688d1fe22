// Two reliable connections over a simulated link, and buffers with guard zones, for the tests of this room.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "reliable/connection.hpp"
#include "wire/sim/sim_loop.hpp"
#include "wire/sim/sim_network.hpp"

namespace farhaul::reliable::testing {

struct PairConfig {
    wire::SimLinkConfig link;
    sdr::QueuePairConfig queue_pair;
    ConnectionConfig connection;
    std::uint64_t seed = 1;

    /// 10 Gbit/s, 1 ms each way, payload carried, small messages.
    static PairConfig typical(Scheme scheme) {
        PairConfig config;
        config.link.forward.rate = config.link.backward.rate = BitRate::from_gigabits(10);
        config.link.forward.delay = config.link.backward.delay = Duration::from_milliseconds(1);
        config.queue_pair.payload_bytes = 1000;
        config.queue_pair.packets_per_chunk = 8;
        config.queue_pair.max_message_bytes = 100'000;
        config.queue_pair.max_messages = 8;
        config.queue_pair.initial_rtt = Duration::from_milliseconds(2);
        config.connection.scheme = scheme;
        config.connection.initial_rtt = Duration::from_milliseconds(2);
        config.connection.min_rto = Duration::from_milliseconds(1);  // virtual hosts are never stopped
        return config;
    }
    PairConfig& loss(double probability) {
        link.forward.loss.probability = link.backward.loss.probability = probability;
        return *this;
    }
};

class Pair {
 public:
    explicit Pair(const PairConfig& config) : Pair(config, *new wire::SimLoop, true) {}
    /// On a loop that something else lives on too.
    Pair(const PairConfig& config, wire::SimLoop& on) : Pair(config, on, false) {}
    Pair(const PairConfig& config, wire::SimLoop& on, bool owned)
        : own_loop(owned ? &on : nullptr), loop(on), network(loop) {
        auto link_config = config.link;
        link_config.layout = config.queue_pair.layout;
        link_config.packets_per_chunk = config.queue_pair.packets_per_chunk;
        auto wires = network.connect(link_config, config.seed);
        if (!wires) throw std::runtime_error(wires.error().message);
        wire_a = wires->first;
        wire_b = wires->second;
        a = make(*wire_a, config);
        b = make(*wire_b, config);
    }
    std::unique_ptr<Connection> make(wire::SimWire& wire, const PairConfig& config) {
        auto connection = Connection::create(loop, wire, config.queue_pair, config.connection);
        if (!connection) throw std::runtime_error(connection.error().message);
        return std::move(*connection);
    }

    std::unique_ptr<wire::SimLoop> own_loop;
    wire::SimLoop& loop;
    wire::SimNetwork network;
    wire::SimWire* wire_a = nullptr;
    wire::SimWire* wire_b = nullptr;
    std::unique_ptr<Connection> a, b;
};

/// A buffer between guard zones.
class Guarded {
 public:
    static constexpr std::size_t kGuard = 64;
    explicit Guarded(std::size_t size) : bytes_(size + 2 * kGuard, std::byte{0xA5}), size_(size) {}
    std::byte* data() { return bytes_.data() + kGuard; }
    std::size_t size() const { return size_; }
    bool guards_intact() const {
        for (std::size_t i = 0; i < kGuard; ++i)
            if (bytes_[i] != std::byte{0xA5} || bytes_[kGuard + size_ + i] != std::byte{0xA5}) return false;
        return true;
    }
    bool holds(std::span<const std::byte> data) const {
        return std::equal(data.begin(), data.end(), bytes_.begin() + kGuard);
    }
    bool untouched_from(std::size_t offset) const {
        for (std::size_t i = offset; i < size_; ++i)
            if (bytes_[kGuard + i] != std::byte{0xA5}) return false;
        return true;
    }

 private:
    std::vector<std::byte> bytes_;
    std::size_t size_;
};

inline std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed) {
    Random random(seed);
    std::vector<std::byte> bytes(size);
    std::size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        const std::uint64_t word = random();
        std::memcpy(bytes.data() + i, &word, 8);
    }
    for (; i < size; ++i) bytes[i] = static_cast<std::byte>(random());
    return bytes;
}

}  // namespace farhaul::reliable::testing
