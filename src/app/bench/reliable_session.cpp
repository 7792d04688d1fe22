#include "app/bench/reliable_session.hpp"

namespace farhaul::app::bench {
namespace {

// Completion times kept for the peak.
constexpr std::size_t kMostCompletions = 4u << 20;

}  // namespace

Result<std::unique_ptr<Session>> ReliableSession::make(udp::RealLoop& loop, udp::Connected connected, const Plan& plan,
                                                       bool client, Duration timeout, Executor* encoders) {
    std::unique_ptr<ReliableSession> session(new ReliableSession(std::move(connected), plan, client));
    const auto& c = session->connected_;
    auto config = connection_config(plan, c.round_trip, timeout, c.wire->limits().receive_buffer_bytes);
    config.executor = encoders;
    auto connection = reliable::Connection::create(
        loop, *c.wire, queue_pair_config(plan, c.parameters, c.round_trip, timeout), config);
    if (!connection) return propagate(connection);
    session->connection_ = std::move(*connection);
    session->prepare();
    return session;
}

void ReliableSession::prepare() {
    connection_->on_failure([this](const Error& error) {
        if (!error_) error_ = error;
    });
    const std::uint64_t region = region_bytes(plan_);
    slots_ = std::max<std::uint64_t>(1, region / plan_.bytes);
    if (sends_) {
        // Written once, so that pages exist and are not all the same.
        source_.assign(region, std::byte{0x5a});
    }
    if (receives_) target_.assign(region, std::byte{0});
    if (receives_)
        for (std::uint32_t i = 0; i < receives_ahead(plan_); ++i) post_receive();
    if (!client_ && !plan_.latency) start();
}

std::byte* ReliableSession::slot(std::vector<std::byte>& region, std::uint64_t number) const {
    return region.data() + number % slots_ * plan_.bytes;
}

void ReliableSession::start() {
    started_ = udp::RealLoop::clock();
    running_ = true;
    pump();
}

void ReliableSession::stop() { stopping_ = true; }

void ReliableSession::pump() {
    if (!sends_ || !running_ || error_) return;
    if (plan_.latency) {
        if (client_ && writes_ == received_ && more()) ping();
        return;
    }
    while (writes_ - acknowledged_ < plan_.depth && more()) {
        std::byte* message = slot(source_, writes_);
        if (plan_.validate) fill_pattern({message, plan_.bytes}, writes_);
        if (!write(message)) return;
    }
}

bool ReliableSession::more() const { return !stopping_ && (plan_.iterations == 0 || writes_ < plan_.iterations); }

bool ReliableSession::write(const std::byte* message) {
    ++writes_;
    auto status = connection_->write(message, plan_.bytes, [this](Status done) {
        if (!done) return;
        ++acknowledged_;
        if (!plan_.latency) note_completion();
        pump();
    });
    if (!status && !error_) error_ = status.error();
    return status.has_value();
}

void ReliableSession::ping() {
    sent_at_ = udp::RealLoop::clock();
    std::byte* message = slot(source_, writes_);
    if (plan_.validate) fill_pattern({message, plan_.bytes}, writes_);
    write(message);
}

void ReliableSession::post_receive() {
    const std::uint64_t number = posted_++;
    auto posted = connection_->receive(slot(target_, number), plan_.bytes,
                                       [this, number](Result<reliable::ReceiveResult> result) {
                                           if (result) on_received(number);
                                       });
    if (!posted && !error_) error_ = posted.error();
}

void ReliableSession::on_received(std::uint64_t number) {
    ++received_;
    if (plan_.validate && !check_pattern({slot(target_, number), plan_.bytes}, number)) ++invalid_;
    if (plan_.latency) {
        if (client_) {
            samples_.push_back((udp::RealLoop::clock() - sent_at_).nanoseconds());
            note_completion();
        } else {
            std::byte* message = slot(source_, number);
            if (plan_.validate) fill_pattern({message, plan_.bytes}, number);
            write(message);
        }
    } else if (client_) {
        note_completion();
    }
    if (!error_) post_receive();
    pump();
}

void ReliableSession::note_completion() {
    last_ = udp::RealLoop::clock();
    if (completions_.size() < kMostCompletions) completions_.push_back((last_ - started_).nanoseconds());
}

bool ReliableSession::done() const {
    if (error_) return true;
    if (!client_ || !running_ || more()) return false;
    if (plan_.latency) return received_ == writes_;
    return acknowledged_ == writes_ && (!plan_.both_ways || plan_.iterations == 0 || received_ >= plan_.iterations);
}

BandwidthRow ReliableSession::row() const {
    BandwidthRow row;
    row.bytes = plan_.bytes;
    row.iterations = client_ ? acknowledged_ + (plan_.both_ways ? received_ : 0) : received_;
    row.seconds = (last_ - started_).seconds();
    const auto counters = connection_->counters();
    row.packets_sent = counters.packets_first + counters.packets_resent;
    row.packets_resent = counters.packets_resent;
    row.invalid = invalid_;
    return row;
}

}  // namespace farhaul::app::bench
