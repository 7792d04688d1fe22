#include "wire/sim/sim_network.hpp"

#include "wire/sim/sim_direction.hpp"

namespace farhaul::wire {

struct SimWire::State {
    SimLinkShared& shared;
    SimEndpoint endpoint;
    SimDirection* out = nullptr;
    SimDirection* in = nullptr;
    SimWire* peer = nullptr;
};

struct SimNetwork::Link {
    Link(SimLoop& loop, const SimLinkConfig& config, std::uint64_t* trace_hash) : shared(loop, config, trace_hash) {}
    SimLinkShared shared;
    std::unique_ptr<SimWire> first, second;
    std::unique_ptr<SimDirection> forward, backward;
};

namespace {

Status validate(const SimLinkConfig& config) {
    const auto& limits = config.limits;
    if (limits.max_payload_bytes == 0)
        return fail(ErrorCode::kInvalidArgument,
                    "limits.max_payload_bytes is 0: give the payload of a packet, 1 or more");
    if (limits.channels == 0 || limits.channels > 1024)
        return fail(ErrorCode::kInvalidArgument, "limits.channels is {}: use 1 to 1024", limits.channels);
    if (limits.generation_bits == 0 || limits.generation_bits > 32)
        return fail(ErrorCode::kInvalidArgument, "limits.generation_bits is {}: use 1 to 32", limits.generation_bits);
    if (config.coalesce_packets == 0 || config.coalesce_packets > 64)
        return fail(ErrorCode::kInvalidArgument, "coalesce_packets is {}: use 1 to 64", config.coalesce_packets);
    if (config.coalesce < Duration() || config.tx_backlog < Duration())
        return fail(ErrorCode::kInvalidArgument,
                    "coalesce and tx_backlog are lengths of time: they cannot be negative");
    if (config.tx_packets == 0)
        return fail(ErrorCode::kInvalidArgument, "tx_packets is 0: the card must hold at least one packet");
    if (config.packets_per_chunk == 0)
        return fail(ErrorCode::kInvalidArgument, "packets_per_chunk is 0: use 1 or more");
    return config.layout.validate();
}

}  // namespace

const char* to_string(SimEvent::Kind kind) {
    switch (kind) {
        case SimEvent::Kind::kSend:
            return "send";
        case SimEvent::Kind::kLost:
            return "lost";
        case SimEvent::Kind::kCorrupt:
            return "corrupt";
        case SimEvent::Kind::kDeliver:
            return "deliver";
        case SimEvent::Kind::kSendDatagram:
            return "send-datagram";
        case SimEvent::Kind::kLostDatagram:
            return "lost-datagram";
        case SimEvent::Kind::kDeliverDatagram:
            return "deliver-datagram";
    }
    return "unknown";
}

SimWire::SimWire(std::unique_ptr<State> state) : state_(std::move(state)) {}
SimWire::~SimWire() = default;

const sdr::WireLimits& SimWire::limits() const { return state_->shared.config.limits; }
void SimWire::attach(sdr::WireSink* sink) { state_->endpoint.sink = sink; }
std::size_t SimWire::tx_burst(std::span<const sdr::OutgoingPacket> packets) { return state_->out->tx_burst(packets); }
void SimWire::send_datagram(std::span<const std::byte> datagram) { state_->out->send_datagram(datagram); }

const SimWireCounters& SimWire::counters() const { return state_->endpoint.counters; }
const link::LinkModel& SimWire::link() const { return state_->out->model(); }
SimWire& SimWire::peer() { return *state_->peer; }
void SimWire::reset_clock() {
    state_->endpoint.counters.first_packet_sent = TimePoint::never();
    state_->endpoint.counters.last_packet_sent = TimePoint();
}

void SimWire::kill() { state_->endpoint.killed = true; }
void SimWire::pause() { state_->endpoint.paused = true; }
void SimWire::resume() {
    if (!state_->endpoint.paused) return;
    state_->endpoint.paused = false;
    state_->in->receiver_resumed();
    state_->out->sender_resumed();
}
void SimWire::report_error(const Error& error) {
    if (state_->endpoint.sink != nullptr) state_->endpoint.sink->on_wire_error(error);
}
void SimWire::restart() {
    ++state_->shared.epoch;
    for (SimWire* wire : {this, state_->peer}) {
        wire->state_->endpoint.killed = false;
        wire->resume();
    }
}
void SimWire::inject_packet(std::uint32_t immediate, std::uint32_t generation, std::span<const std::byte> payload,
                            std::uint32_t channel, Duration delay) {
    state_->in->inject_packet(immediate, generation, payload, channel, delay);
}
void SimWire::inject_datagram(std::span<const std::byte> datagram, Duration delay) {
    state_->in->inject_datagram(datagram, delay);
}

SimNetwork::SimNetwork(SimLoop& loop) : loop_(loop) {}
SimNetwork::~SimNetwork() = default;

Result<std::pair<SimWire*, SimWire*>> SimNetwork::connect(const SimLinkConfig& config, std::uint64_t seed) {
    if (Status status = validate(config); !status) return propagate(status);
    Random random(seed);
    auto forward = link::LinkModel::create(config.forward, config.forward_schedule, random());
    if (!forward) return propagate(forward);
    auto backward = link::LinkModel::create(config.backward, config.backward_schedule, random());
    if (!backward) return propagate(backward);

    auto link = std::make_unique<Link>(loop_, config, &trace_hash_);
    link->shared.config.limits.concurrent_channels = false;
    const auto make_wire = [&](std::uint8_t index) {
        auto state = std::make_unique<SimWire::State>(SimWire::State{.shared = link->shared, .endpoint = {}});
        state->endpoint.index = index;
        std::unique_ptr<SimWire> wire(new SimWire(std::move(state)));
        wire->state_->endpoint.wire = wire.get();
        return wire;
    };
    link->first = make_wire(0);
    link->second = make_wire(1);
    auto& first = *link->first->state_;
    auto& second = *link->second->state_;
    link->forward =
        std::make_unique<SimDirection>(link->shared, std::move(*forward), first.endpoint, second.endpoint, random());
    link->backward =
        std::make_unique<SimDirection>(link->shared, std::move(*backward), second.endpoint, first.endpoint, random());
    first.out = second.in = link->forward.get();
    second.out = first.in = link->backward.get();
    first.peer = link->second.get();
    second.peer = link->first.get();

    std::pair<SimWire*, SimWire*> ends{link->first.get(), link->second.get()};
    links_.push_back(std::move(link));
    return ends;
}

}  // namespace farhaul::wire
