#include "app/bench/runner.hpp"

#include <algorithm>
#include <list>

#include "app/bench/raw_session.hpp"
#include "app/bench/reliable_session.hpp"
#include "base/log.hpp"
#include "wire/udp/worker_pool.hpp"

namespace farhaul::app::bench {

namespace {

/// A benchmark of what the host can do polls on: sleeping would be measured as latency. Below a given rate polling wins
/// nothing and takes the core from whoever shares it.
void choose_polling(udp::RealLoop& loop, const Plan& plan) {
    const bool paced = !plan.rate.unlimited() && !plan.latency;
    loop.set_busy_poll(paced ? udp::RealLoopOptions().busy_poll : Duration::from_milliseconds(2));
}

/// The threads that encode parity for all connections of an endpoint, started when first needed. They outlive the
/// sessions.
class Encoders {
 public:
    Executor* of(udp::RealLoop& loop, const Plan& plan, bool client) {
        const bool sends = client || plan.both_ways || plan.latency;
        if (plan.scheme.kind != reliable::Scheme::Kind::kAuto || !sends) return nullptr;
        if (!pool_)
            pool_ =
                std::make_unique<udp::WorkerPool>(udp::WorkerPool::default_threads(),
                                                  [&loop](std::function<void()> done) { loop.post(std::move(done)); });
        return pool_.get();
    }

 private:
    std::unique_ptr<udp::WorkerPool> pool_;
};

Result<std::unique_ptr<Session>> make_session(udp::RealLoop& loop, udp::Connected connected, const Plan& plan,
                                              bool client, Duration timeout, Encoders& encoders) {
    choose_polling(loop, plan);
    if (plan.raw) return RawSession::make(loop, std::move(connected), plan, client, timeout);
    return ReliableSession::make(loop, std::move(connected), plan, client, timeout, encoders.of(loop, plan, client));
}

}  // namespace

// --- server ---

struct Server::State {
    State(udp::RealLoop& loop_in, const EndpointOptions& options_in, std::function<void(const std::string&)> say_in)
        : loop(loop_in),
          options(options_in),
          say(std::move(say_in)),
          sweep(loop.timers(), [](void* self) { static_cast<State*>(self)->remove_ended(); }, this) {}

    udp::RequestAnswer on_request(const udp::IncomingRequest& request) const {
        auto plan = decode_plan(request.blob);
        if (!plan) return udp::RequestAnswer::refuse(plan.error().message);
        if (region_bytes(*plan) > (std::uint64_t{4} << 30))
            return udp::RequestAnswer::refuse(
                "it would need more than 4 GiB of buffers: a smaller --size or --tx-depth, or no --data_validation");
        if (sessions.size() >= 256) return udp::RequestAnswer::refuse("256 connections are open already");
        udp::ConnectParameters own = request.parameters;
        own.channels = std::min(own.channels, options.channels);
        own.checksum = !options.checksum_optional;
        return udp::RequestAnswer::accept(own);
    }
    void on_accepted(udp::Connected connected) {
        auto plan = decode_plan(connected.blob);
        if (!plan) return;
        const std::string peer = connected.peer.to_string();
        auto session = make_session(loop, std::move(connected), *plan, false, options.timeout, encoders);
        if (!session) {
            say(fmt::format("refused {}: {}", peer, session.error().message));
            return;
        }
        sessions.push_back({std::move(*session), peer, *plan});
        if (!sweep.armed()) sweep.arm(loop.now() + Duration::from_milliseconds(50));
    }
    void remove_ended() {
        for (auto s = sessions.begin(); s != sessions.end();) {
            if (!s->session->done()) {
                ++s;
                continue;
            }
            const BandwidthRow row = s->session->row();
            say(fmt::format("served {}: {} messages of {} by {}{}", s->peer, row.iterations, format_size(s->plan.bytes),
                            scheme_name(s->plan),
                            row.invalid > 0 ? fmt::format(", {} with WRONG DATA", row.invalid) : ""));
            s = sessions.erase(s);
        }
        if (!sessions.empty()) sweep.arm(loop.now() + Duration::from_milliseconds(50));
    }

    struct Entry {
        std::unique_ptr<Session> session;
        std::string peer;
        Plan plan;
    };
    udp::RealLoop& loop;
    EndpointOptions options;
    std::function<void(const std::string&)> say;
    std::unique_ptr<udp::UdpEndpoint> endpoint;
    std::unique_ptr<TcpServer> tcp;
    Encoders encoders;
    std::list<Entry> sessions;
    Timer sweep;
};

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}
Server::~Server() { state_->sessions.clear(); }

Result<std::unique_ptr<Server>> Server::open(udp::RealLoop& loop, const udp::Address& address,
                                             const EndpointOptions& options,
                                             std::function<void(const std::string&)> say) {
    auto state = std::make_unique<State>(loop, options, std::move(say));
    loop.update_now();
    auto udp_options = transfer::udp_options(options.timeout, options.channels);
    udp_options.bind = address;
    auto endpoint = udp::UdpEndpoint::open(loop, udp_options);
    if (!endpoint) return propagate(endpoint);
    state->endpoint = std::move(*endpoint);
    State* raw = state.get();
    raw->endpoint->listen([raw](const udp::IncomingRequest& request) { return raw->on_request(request); },
                          [raw](udp::Connected connected) { raw->on_accepted(std::move(connected)); });
    auto tcp = TcpServer::open(loop, address.with_port(raw->endpoint->local_address().port()));
    if (tcp)
        state->tcp = std::move(*tcp);
    else
        log().info("no TCP for --scheme tcp-*: {}", tcp.error().message);
    return std::unique_ptr<Server>(new Server(std::move(state)));
}

const udp::Address& Server::local_address() const { return state_->endpoint->local_address(); }

// --- client ---

struct Client::State {
    udp::RealLoop& loop;
    udp::Address server;
    EndpointOptions options;
    std::unique_ptr<udp::UdpEndpoint> endpoint;
    Encoders encoders;
};

Client::Client(std::unique_ptr<State> state) : state_(std::move(state)) {}
Client::~Client() = default;

Result<std::unique_ptr<Client>> Client::open(udp::RealLoop& loop, const udp::Address& server,
                                             const EndpointOptions& options) {
    loop.update_now();
    auto endpoint = udp::UdpEndpoint::open(loop, transfer::udp_options(options.timeout, options.channels));
    if (!endpoint) return propagate(endpoint);
    return std::unique_ptr<Client>(
        new Client(std::make_unique<State>(loop, server, options, std::move(*endpoint), Encoders())));
}

Result<RunResult> Client::run(Plan plan, std::uint32_t queue_pairs, Duration duration, std::uint32_t packet_bytes) {
    State& s = *state_;
    if (duration > Duration{}) plan.iterations = 0;
    plan.queue_pairs = queue_pairs;
    udp::ConnectParameters wanted;
    wanted.payload_bytes = packet_bytes > 0 ? packet_bytes : udp::kMaxPayloadBytes;
    wanted.max_messages = kMaxDepth;
    wanted.channels = s.options.channels;
    wanted.checksum = s.options.checksum;
    std::optional<Error> error;
    std::vector<std::unique_ptr<Session>> sessions;
    RunResult result;
    s.loop.update_now();
    for (std::uint32_t i = 0; i < queue_pairs; ++i)
        s.endpoint->connect(s.server, wanted, encode(plan), [&](Result<udp::Connected> connected) {
            if (connected) {
                result.payload_bytes = connected->parameters.payload_bytes;
                result.round_trip = connected->round_trip;
                result.segmentation_offload = connected->wire->segmentation_offload();
                auto session = make_session(s.loop, std::move(*connected), plan, true, s.options.timeout, s.encoders);
                if (session)
                    sessions.push_back(std::move(*session));
                else
                    error = session.error();
            } else {
                error = connected.error();
            }
        });
    // connect() calls back once for each, at the latest after its timeout.
    s.loop.run_until([&] { return error.has_value() || sessions.size() == queue_pairs; });
    if (error) {
        // Callbacks of other connections refer to this frame: no endpoint, no callbacks.
        sessions.clear();
        s.endpoint.reset();
        return std::unexpected(*error);
    }
    const TimePoint start = udp::RealLoop::clock();
    for (const auto& session : sessions) session->start();
    const auto all_done = [&] {
        return std::ranges::all_of(sessions, [](const auto& session) { return session->done(); });
    };
    if (duration > Duration{}) {
        s.loop.run_until(all_done, duration);
        for (const auto& session : sessions) session->stop();
    }
    const bool ended = s.loop.run_until(all_done);
    if (!ended) return fail(ErrorCode::kClosed, "interrupted");
    const double wall = (udp::RealLoop::clock() - start).seconds();

    BandwidthRow& row = result.bandwidth;
    std::vector<std::int64_t> completions, samples;
    for (const auto& session : sessions) {
        if (session->error()) return std::unexpected(*session->error());
        const BandwidthRow part = session->row();
        row.iterations += part.iterations;
        const double late_seconds = plan.raw ? 0 : (session->started() - start).seconds();
        row.seconds = std::max(row.seconds, part.seconds + (queue_pairs == 1 ? 0 : late_seconds));
        row.packets_sent += part.packets_sent;
        row.packets_resent += part.packets_resent;
        row.incomplete += part.incomplete;
        row.invalid += part.invalid;
        if (queue_pairs == 1) row.peak_bits_per_second = part.peak_bits_per_second;
        // One clock for all: a peak is what they did at the same time.
        const std::int64_t late = (session->started() - start).nanoseconds();
        for (const std::int64_t at : session->completions()) completions.push_back(at + late);
        auto more = session->take_samples();
        samples.insert(samples.end(), more.begin(), more.end());
    }
    row.bytes = plan.bytes;
    if (row.seconds <= 0) row.seconds = wall;
    std::sort(completions.begin(), completions.end());
    const double told = row.peak_bits_per_second;  // by the receiver of raw messages
    fill_rates(row, completions, std::size_t{plan.depth} * queue_pairs);
    row.peak_bits_per_second = std::max(row.peak_bits_per_second, told);
    // Half of a ping-pong's round trip, as perftest reports it.
    for (auto& sample : samples) sample /= 2;
    result.latency = latency_row(plan.bytes, samples);
    return result;
}

}  // namespace farhaul::app::bench
