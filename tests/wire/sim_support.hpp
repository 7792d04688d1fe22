// Helpers of the tests of the simulated wire.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "wire/sim/sim_network.hpp"

namespace farhaul::wire {

/// Remembers what came and when.
class RecordingSink : public sdr::WireSink {
 public:
    struct Packet {
        TimePoint at;
        std::uint32_t channel;
        std::uint32_t length;
        std::uint32_t immediate;
        std::uint32_t generation;
        std::vector<std::byte> payload;
    };
    explicit RecordingSink(SimLoop& loop) : loop_(loop) {}
    void on_arrivals(std::uint32_t channel, std::span<const sdr::Arrival> arrivals) override {
        batches.push_back(arrivals.size());
        for (const auto& arrival : arrivals) {
            Packet packet{loop_.now(), channel, arrival.length, arrival.immediate, arrival.generation, {}};
            if (arrival.payload != nullptr) packet.payload.assign(arrival.payload, arrival.payload + arrival.length);
            packets.push_back(std::move(packet));
        }
    }
    void on_datagram(std::span<const std::byte> datagram) override {
        datagrams.emplace_back(loop_.now(),
                               std::string(reinterpret_cast<const char*>(datagram.data()), datagram.size()));
    }
    void on_writable() override {
        ++writable_calls;
        if (writable) writable();
    }
    void on_wire_error(const Error& error) override { errors.push_back(error.message); }

    std::vector<Packet> packets;
    std::vector<std::size_t> batches;
    std::vector<std::pair<TimePoint, std::string>> datagrams;
    std::vector<std::string> errors;
    std::function<void()> writable;
    int writable_calls = 0;

 private:
    SimLoop& loop_;
};

/// Sends packets with immediates 0, 1, 2, ... as the wire takes them.
class Feeder {
 public:
    Feeder(SimWire& wire, RecordingSink& sink, std::uint32_t count, std::uint32_t length)
        : wire_(wire), count_(count), length_(length) {
        sink.writable = [this] { pump(); };
    }
    void pump() {
        while (next_ < count_) {
            std::vector<sdr::OutgoingPacket> burst;
            for (std::uint32_t i = next_; i < count_ && burst.size() < 16; ++i)
                burst.push_back({.payload = nullptr, .length = length_, .immediate = i, .generation = 0, .channel = 0});
            const std::size_t taken = wire_.tx_burst(burst);
            next_ += static_cast<std::uint32_t>(taken);
            if (taken < burst.size()) return;
        }
    }
    bool done() const { return next_ == count_; }
    std::uint32_t sent() const { return next_; }

 private:
    SimWire& wire_;
    std::uint32_t count_, length_, next_ = 0;
};

struct Pair {
    explicit Pair(const SimLinkConfig& config, std::uint64_t seed = 1)
        : network(loop), at_first(loop), at_second(loop) {
        auto ends = network.connect(config, seed);
        if (!ends) throw std::runtime_error(ends.error().message);
        first = ends->first;
        second = ends->second;
        first->attach(&at_first);
        second->attach(&at_second);
    }
    SimLoop loop;
    SimNetwork network;
    RecordingSink at_first, at_second;
    SimWire* first = nullptr;
    SimWire* second = nullptr;
};

inline SimLinkConfig plain_link(BitRate rate, Duration delay) {
    SimLinkConfig config;
    config.forward.rate = config.backward.rate = rate;
    config.forward.delay = config.backward.delay = delay;
    config.limits.carries_payload = false;
    return config;
}

inline std::span<const std::byte> as_bytes(const std::string& text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace farhaul::wire
