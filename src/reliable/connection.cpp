// Ties a queue pair, a Writer and a Reader together: hands out datagrams, watches for silence, runs callbacks.
#include "reliable/connection.hpp"

#include <algorithm>
#include <vector>

#include "reliable/ack.hpp"
#include "reliable/parity.hpp"
#include "reliable/reader.hpp"
#include "reliable/round_trip.hpp"
#include "reliable/tail_code.hpp"
#include "reliable/writer.hpp"

namespace farhaul::reliable {
namespace {

constexpr int kAbortRepeats = 3;

}  // namespace

struct Connection::State final : sdr::QueuePairListener {
    State(Loop& loop_in, const ConnectionConfig& config_in)
        : loop(loop_in),
          config(config_in),
          round_trip(config_in.initial_rtt, config_in.fixed_rtt),
          callback_timer(
              loop.timers(), [](void* self) { static_cast<State*>(self)->run_callbacks(); }, this),
          watch_timer(loop.timers(), [](void* self) { static_cast<State*>(self)->watch(); }, this) {}
    ~State() override { *alive = false; }

    void on_clear_to_send() override { writer->pump(); }
    void on_injected(sdr::SendHandle& send, std::uint64_t offset, std::uint64_t length) override {
        writer->on_injected(send, offset, length);
    }
    void on_send_queue_low() override { writer->pump(); }
    void on_receive_progress(sdr::MessageSlot& slot) override {
        last_heard = loop.now();
        reader->on_progress(slot);
        arm_watch();
    }
    void on_datagram(std::span<const std::byte> datagram) override;
    void on_queue_pair_error(const Error& reason) override { fail_all(reason); }

    void fail_all(const Error& error);
    void abort_and_tell(const Error& error);
    void defer(std::function<void()> callback) {
        callbacks.push_back(std::move(callback));
        if (!callback_timer.armed()) callback_timer.arm(loop.now());
    }
    void run_callbacks();
    void arm_watch();
    void watch();
    bool waiting() const { return writer->outstanding() || reader->partly_received() || config.keepalive > Duration{}; }

    Loop& loop;
    ConnectionConfig config;
    RoundTrip round_trip;
    ConnectionCounters counters;
    std::unique_ptr<Coding> coding;    // null unless the scheme is coded
    std::unique_ptr<TailCoding> tail;  // null unless it is `auto`
    std::unique_ptr<sdr::QueuePair> queue_pair;
    // Before the queue pair is destroyed they give back their handles: declared after it.
    std::unique_ptr<Writer> writer;
    std::unique_ptr<Reader> reader;
    std::vector<std::function<void()>> callbacks;
    std::function<void(const Error&)> failure_callback;
    std::optional<Error> error;
    bool carries_payload = true;
    Timer callback_timer, watch_timer;
    TimePoint last_heard, waiting_since, last_said;
    bool was_waiting = false;
    Ack ack;
    std::shared_ptr<bool> alive = std::make_shared<bool>(true);
};

void Connection::State::on_datagram(std::span<const std::byte> datagram) {
    last_heard = loop.now();
    if (error) return;
    if (datagram.empty()) {
        ++counters.malformed;
        return;
    }
    switch (static_cast<DatagramKind>(datagram[0])) {
        case DatagramKind::kAck:
            if (decode_ack(datagram, ack)) {
                ++counters.acks_received;
                if (!writer->on_ack(ack)) ++counters.malformed;
                return;
            }
            break;
        case DatagramKind::kProbe:
            if (const std::uint32_t id = decode_probe(datagram); id != 0) {
                ++counters.probes_received;
                reader->on_probe(id);
                return;
            }
            break;
        case DatagramKind::kAbort:
            if (Error reason; decode_abort(datagram, reason)) {
                fail_all({ErrorCode::kPeerGone, "the peer gave up: " + reason.message});
                return;
            }
            break;
    }
    ++counters.malformed;
}

void Connection::State::fail_all(const Error& reason) {
    if (error) return;
    error = reason;
    watch_timer.disarm();
    writer->fail(reason);
    reader->fail(reason);
    defer([this] {
        if (failure_callback) failure_callback(*error);
    });
}

void Connection::State::abort_and_tell(const Error& reason) {
    if (error) return;
    std::vector<std::byte> datagram;
    encode_abort(reason, datagram);
    for (int i = 0; i < kAbortRepeats; ++i) queue_pair->send_datagram(datagram);
    fail_all(reason);
}

void Connection::State::run_callbacks() {
    const auto still_here = alive;  // a callback may destroy the connection
    while (!callbacks.empty()) {
        auto batch = std::move(callbacks);
        callbacks.clear();
        for (auto& callback : batch) {
            callback();
            if (!*still_here) return;
        }
    }
}

void Connection::State::arm_watch() {
    if (error || !waiting()) {
        was_waiting = false;
        return;
    }
    if (!was_waiting) {
        was_waiting = true;
        waiting_since = loop.now();
    }
    if (!watch_timer.armed()) {
        Duration interval = std::max(config.peer_timeout / 8, Duration::from_milliseconds(1));
        if (config.keepalive > Duration{}) interval = std::min(interval, config.keepalive);
        if (writer->next_write_deadline() < loop.now() + interval)
            interval = std::max(writer->next_write_deadline() - loop.now(), Duration{});
        watch_timer.arm(loop.now() + interval);
    }
}

void Connection::State::watch() {
    const TimePoint now = loop.now();
    if (writer->next_write_deadline() <= now) {
        abort_and_tell({ErrorCode::kTimeout,
                        fmt::format("a Write was not done within {}", format_duration(config.write_timeout))});
        return;
    }
    if (was_waiting && now - std::max(last_heard, waiting_since) >= config.peer_timeout) {
        abort_and_tell({ErrorCode::kPeerGone,
                        fmt::format("the peer has not been heard for {}", format_duration(config.peer_timeout))});
        return;
    }
    if (config.keepalive > Duration{} && now - last_said >= config.keepalive) {
        last_said = now;
        writer->send_probe();
    }
    arm_watch();
}

Connection::Connection() = default;
Connection::~Connection() = default;

Result<std::unique_ptr<Connection>> Connection::create(Loop& loop, sdr::Wire& wire,
                                                       const sdr::QueuePairConfig& queue_pair_config,
                                                       const ConnectionConfig& config) {
    if (!(config.rto_rtts > 0 && config.rto_rtts <= 1000))
        return fail(ErrorCode::kInvalidArgument,
                    "a retransmission timeout of {} round trips is not usable: 0 < rto <= 1000", config.rto_rtts);
    if (config.initial_rtt < Duration{} || config.peer_timeout <= Duration{})
        return fail(ErrorCode::kInvalidArgument,
                    "the initial round trip must not be negative and the peer timeout must be positive");
    if (config.fixed_rtt && config.initial_rtt <= Duration{})
        return fail(ErrorCode::kInvalidArgument, "a fixed round trip must be positive");
    if (wire.limits().max_datagram_bytes <= AckEncoder::kMinDatagramBytes)
        return fail(ErrorCode::kUnsupported, "the wire carries datagrams of {} bytes, acknowledgements need {}",
                    wire.limits().max_datagram_bytes, AckEncoder::kMinDatagramBytes + 1);
    auto connection = std::unique_ptr<Connection>(new Connection);
    connection->state_ = std::make_unique<State>(loop, config);
    State& state = *connection->state_;
    sdr::QueuePairConfig pair_config = queue_pair_config;
    if (config.scheme.coded()) {
        auto coding =
            Coding::create(config.scheme, queue_pair_config.payload_bytes, queue_pair_config.packets_per_chunk);
        if (!coding) return propagate(coding);
        state.coding = std::move(*coding);
        // For a small message that of its parity is the larger of the two.
        pair_config.max_message_bytes =
            std::max(pair_config.max_message_bytes, state.coding->parity_bytes(pair_config.max_message_bytes));
    }
    if (config.scheme.kind == Scheme::Kind::kAuto) {
        state.tail =
            std::make_unique<TailCoding>(queue_pair_config.payload_bytes, queue_pair_config.layout.max_packets());
        pair_config.max_message_bytes =
            std::max(pair_config.max_message_bytes, state.tail->parity_bytes(pair_config.max_message_bytes));
    }
    if (config.scheme.paired())
        pair_config.max_messages = std::min(pair_config.max_messages * 2, pair_config.layout.message_ids());
    if (config.window_bytes == 0 && pair_config.rate_limit.unlimited() && wire.limits().receive_buffer_bytes > 0)
        state.config.window_bytes =
            std::clamp<std::uint64_t>(wire.limits().receive_buffer_bytes / 4, 64u << 10, 4u << 20);
    auto queue_pair = sdr::QueuePair::create(loop, wire, pair_config, &state);
    if (!queue_pair) return propagate(queue_pair);
    state.queue_pair = std::move(*queue_pair);
    state.carries_payload = wire.limits().carries_payload;
    state.last_heard = loop.now();
    const auto defer = [&state](std::function<void()> callback) { state.defer(std::move(callback)); };
    const auto abort = [&state](const Error& error) { state.abort_and_tell(error); };
    state.writer = std::make_unique<Writer>(Writer::Environment{loop, *state.queue_pair, state.config, state.round_trip,
                                                                state.counters, state.coding.get(), state.tail.get(),
                                                                defer, abort});
    state.reader = std::make_unique<Reader>(Reader::Environment{loop, *state.queue_pair, state.config, state.round_trip,
                                                                state.counters, state.coding.get(), state.tail.get(),
                                                                queue_pair_config.max_message_bytes, defer, abort});
    state.arm_watch();
    return connection;
}

Status Connection::write(const std::byte* data, std::uint64_t length, WriteCallback done,
                         std::optional<std::uint32_t> immediate) {
    if (state_->error)
        return std::unexpected(Error{ErrorCode::kClosed, "the connection has failed: " + state_->error->message});
    if (data == nullptr && length > 0 && state_->carries_payload)
        return fail(ErrorCode::kInvalidArgument, "a Write of {} bytes from a null pointer", length);
    state_->writer->write(data, length, std::move(done), immediate);
    state_->arm_watch();
    return {};
}

Result<ReceiveId> Connection::receive(std::byte* buffer, std::uint64_t length, ReceiveCallback done,
                                      bool want_immediate) {
    if (state_->error)
        return std::unexpected(Error{ErrorCode::kClosed, "the connection has failed: " + state_->error->message});
    if (buffer == nullptr && length > 0 && state_->carries_payload)
        return fail(ErrorCode::kInvalidArgument, "a receive of {} bytes into a null pointer", length);
    return state_->reader->receive(buffer, length, std::move(done), want_immediate);
}

Status Connection::finish_early(ReceiveId id) { return state_->reader->finish_early(id); }

void Connection::open_slots(ReceiveId id,
                            const std::function<void(std::uint64_t, const sdr::MessageSlot&)>& visit) const {
    state_->reader->open_slots(id, visit);
}

std::uint64_t Connection::writes_outstanding() const { return state_->writer->writes_outstanding(); }
void Connection::abort(const Error& error) { state_->abort_and_tell(error); }
void Connection::on_failure(std::function<void(const Error&)> callback) {
    state_->failure_callback = std::move(callback);
}
bool Connection::failed() const { return state_->error.has_value(); }
Duration Connection::round_trip() const { return state_->round_trip.smoothed(); }
ConnectionCounters Connection::counters() const { return state_->counters; }
sdr::QueuePair& Connection::queue_pair() { return *state_->queue_pair; }
const ConnectionConfig& Connection::config() const { return state_->config; }

}  // namespace farhaul::reliable
