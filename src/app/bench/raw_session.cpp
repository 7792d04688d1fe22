#include "app/bench/raw_session.hpp"

#include <algorithm>

#include "base/bytes.hpp"

namespace farhaul::app::bench {
namespace {

// Datagrams: kind (1 byte), then for kAsk the number of messages sent (8), for kFigures 5 numbers (8 each) and `final`
// (1).
enum Kind : std::uint8_t { kAsk = 1, kFigures = 2 };
constexpr Duration kTick = Duration::from_milliseconds(20);
constexpr std::size_t kMostCompletions = 4u << 20;

}  // namespace

RawSession::RawSession(udp::RealLoop& loop, udp::Connected connected, const Plan& plan, bool client, Duration timeout)
    : loop_(loop),
      connected_(std::move(connected)),
      plan_(plan),
      client_(client),
      timeout_(timeout),
      patience_(connected_.round_trip * 2 + Duration::from_milliseconds(20)),
      reap_timer_(
          loop.timers(), [](void* self) { static_cast<RawSession*>(self)->reap(); }, this),
      tick_timer_(loop.timers(), [](void* self) { static_cast<RawSession*>(self)->tick(); }, this) {}

Result<std::unique_ptr<Session>> RawSession::make(udp::RealLoop& loop, udp::Connected connected, const Plan& plan,
                                                  bool client, Duration timeout) {
    std::unique_ptr<RawSession> session(new RawSession(loop, std::move(connected), plan, client, timeout));
    const auto& c = session->connected_;
    auto queue_pair = sdr::QueuePair::create(
        loop, *c.wire, queue_pair_config(plan, c.parameters, c.round_trip, timeout), session.get());
    if (!queue_pair) return propagate(queue_pair);
    session->queue_pair_ = std::move(*queue_pair);
    session->memory_.assign(region_bytes(plan), std::byte{0x5a});
    session->slots_ = std::max<std::uint64_t>(1, session->memory_.size() / plan.bytes);
    session->progressed_ = loop.now();
    if (!client) {
        session->post_receives();
        session->tick_timer_.arm(loop.now() + kTick);
    }
    return session;
}

std::byte* RawSession::slot_memory(std::uint64_t number) { return memory_.data() + number % slots_ * plan_.bytes; }

// --- sending ---

void RawSession::start() {
    running_ = true;
    pump();
    tick_timer_.arm(loop_.now() + kTick);
}

void RawSession::pump() {
    if (!client_ || !running_ || error_) return;
    while (sends_.size() < plan_.depth && more() && queue_pair_->can_start_send()) {
        auto send = queue_pair_->start_send({.immediate = {}, .length = plan_.bytes});
        if (!send) {
            if (send.error().code != ErrorCode::kRetry && !error_) error_ = send.error();
            return;
        }
        std::byte* message = slot_memory(sent_);
        if (plan_.validate) fill_pattern({message, plan_.bytes}, sent_);
        ++sent_;
        sends_.push_back(*send);
        Status status = queue_pair_->continue_send(**send, 0, message, plan_.bytes);
        if (status) status = queue_pair_->end_send(**send);
        if (!status && !error_) error_ = status.error();
    }
}

void RawSession::reap() {
    while (!sends_.empty() && queue_pair_->injected(*sends_.front())) {
        queue_pair_->release_send(*sends_.front());
        sends_.pop_front();
    }
    pump();
}

void RawSession::tick() {
    tick_timer_.arm(loop_.now() + kTick);
    if (client_) {
        reap();
        if (more() || !sends_.empty() || error_ || told_.final) return;
        if (!asking_) {
            asking_ = true;
            asked_since_ = loop_.now();
        }
        if (loop_.now() - asked_since_ > timeout_) {
            error_ = Error{ErrorCode::kPeerGone, "the server does not tell its figures"};
            return;
        }
        std::vector<std::byte> ask;
        ByteWriter w(ask);
        w.write(static_cast<std::uint8_t>(kAsk));
        w.write(sent_);
        queue_pair_->send_datagram(ask);
        return;
    }
    // Messages that lost packets never fill: give up on those that later ones have overtaken, and at the end on all
    // that are missing.
    if (loop_.now() - progressed_ < patience_) return;
    std::size_t last_whole = 0;
    for (std::size_t i = 0; i < posted_.size(); ++i)
        if (!posted_[i].open || posted_[i].slot->packet_horizon() > 0) last_whole = i + 1;
    const std::uint64_t taken = complete_ + incomplete_;
    if (announced_ && *announced_ > taken) {
        std::size_t missing = static_cast<std::size_t>(*announced_ - taken);
        for (std::size_t i = 0; i < posted_.size() && missing > 0; ++i)
            if (posted_[i].open) last_whole = std::max(last_whole, i + 1), --missing;
    }
    for (std::size_t i = 0; i < last_whole && i < posted_.size(); ++i)
        if (posted_[i].open) complete(i, false);
    progressed_ = loop_.now();
    post_receives();
}

// --- receiving ---

void RawSession::post_receives() {
    while (!posted_.empty() && !posted_.front().open) posted_.pop_front();
    while (!error_ && posted_.size() < plan_.depth) {
        auto slot = queue_pair_->post_receive(slot_memory(next_number_), plan_.bytes);
        if (!slot) {
            if (slot.error().code != ErrorCode::kRetry && !error_) error_ = slot.error();
            return;
        }
        posted_.push_back({*slot, next_number_++, true});
    }
}

void RawSession::complete(std::size_t position, bool whole) {
    Posted& posted = posted_[position];
    posted.open = false;
    queue_pair_->complete_receive(*posted.slot);
    if (!whole) {
        ++incomplete_;
        return;
    }
    ++complete_;
    if (plan_.validate && !check_pattern({slot_memory(posted.number), plan_.bytes}, posted.number)) ++invalid_;
    last_ = udp::RealLoop::clock();
    if (completions_.size() < kMostCompletions) completions_.push_back((last_ - first_).nanoseconds());
}

void RawSession::on_receive_progress(sdr::MessageSlot& slot) {
    if (client_) return;
    if (first_ == TimePoint{}) first_ = udp::RealLoop::clock();
    progressed_ = loop_.now();
    if (!slot.complete()) return;
    for (std::size_t i = 0; i < posted_.size(); ++i)
        if (posted_[i].open && posted_[i].slot == &slot) {
            complete(i, true);
            break;
        }
    post_receives();
}

void RawSession::on_datagram(std::span<const std::byte> datagram) {
    ByteReader r(datagram);
    const auto kind = r.read<std::uint8_t>();
    if (kind == kAsk && !client_) {
        const auto sent = r.read<std::uint64_t>();
        if (!r.ok()) return;
        announced_ = sent;
        const Figures f = figures();
        std::vector<std::byte> out;
        ByteWriter w(out);
        w.write(static_cast<std::uint8_t>(kFigures));
        for (const std::uint64_t value : {f.complete, f.incomplete, f.invalid, f.nanoseconds, f.peak_nanoseconds})
            w.write(value);
        w.write(static_cast<std::uint8_t>(f.final));
        queue_pair_->send_datagram(out);
    } else if (kind == kFigures && client_) {
        Figures f;
        for (std::uint64_t* value : {&f.complete, &f.incomplete, &f.invalid, &f.nanoseconds, &f.peak_nanoseconds})
            *value = r.read<std::uint64_t>();
        f.final = r.read<std::uint8_t>() == 1;
        if (!r.ok()) return;
        asked_since_ = loop_.now();
        told_ = f;
    }
}

RawSession::Figures RawSession::figures() const {
    Figures f{complete_, incomplete_, invalid_, 0, 0, false};
    if (complete_ > 0) f.nanoseconds = static_cast<std::uint64_t>((last_ - first_).nanoseconds());
    // Told as the time for `depth` messages.
    const std::size_t window = peak_window(completions_.size(), plan_.depth);
    for (std::size_t i = window; i < completions_.size(); ++i) {
        const auto span = static_cast<std::uint64_t>(completions_[i] - completions_[i - window]) * plan_.depth / window;
        if (f.peak_nanoseconds == 0 || span < f.peak_nanoseconds) f.peak_nanoseconds = span;
    }
    f.final = announced_ && complete_ + incomplete_ >= *announced_;
    return f;
}

bool RawSession::done() const { return error_.has_value() || (client_ && told_.final); }

BandwidthRow RawSession::row() const {
    const Figures f = client_ ? told_ : figures();
    BandwidthRow row;
    row.bytes = plan_.bytes;
    row.iterations = f.complete;
    row.seconds = static_cast<double>(f.nanoseconds) * 1e-9;
    row.incomplete = f.incomplete;
    row.invalid = f.invalid;
    row.packets_sent = queue_pair_->counters().packets_sent;
    if (f.peak_nanoseconds > 0)
        row.peak_bits_per_second = static_cast<double>(plan_.depth) * static_cast<double>(plan_.bytes) * 8e9 /
                                   static_cast<double>(f.peak_nanoseconds);
    return row;
}

}  // namespace farhaul::app::bench
