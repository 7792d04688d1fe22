#include "collective/ring.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace farhaul::collective {
namespace {

constexpr std::uint32_t kMostRanks = 65536;
constexpr std::uint64_t kLeastSegment = 4096;

}  // namespace

Result<std::unique_ptr<Ring>> Ring::create(Loop& loop, std::unique_ptr<reliable::Connection> left,
                                           std::unique_ptr<reliable::Connection> right, const RingConfig& config) {
    if (config.ranks < 1 || config.ranks > kMostRanks || config.rank >= config.ranks)
        return farhaul::fail(ErrorCode::kInvalidArgument, "rank {} of {}: ranks count from 0, and there are at most {}",
                             config.rank, config.ranks, kMostRanks);
    if (config.segment_bytes < kLeastSegment || config.segment_bytes % 8 != 0)
        return farhaul::fail(ErrorCode::kInvalidArgument,
                             "segments of {} bytes: a multiple of 8, at least {}, is needed", config.segment_bytes,
                             kLeastSegment);
    const bool alone = config.ranks == 1;
    if (alone != (left == nullptr) || alone != (right == nullptr))
        return farhaul::fail(ErrorCode::kInvalidArgument, "a ring of {} has {} connections", config.ranks,
                             alone ? "no" : "two");
    std::unique_ptr<Ring> ring(new Ring(loop, std::move(left), std::move(right), config));
    if (!alone)
        if (Status listening = ring->listen(); !listening) return propagate(listening);
    return ring;
}

Ring::Ring(Loop& loop, std::unique_ptr<reliable::Connection> left, std::unique_ptr<reliable::Connection> right,
           const RingConfig& config)
    : loop_(loop),
      config_(config),
      report_timer_(
          loop.timers(), [](void* self) { static_cast<Ring*>(self)->report(); }, this),
      reduce_timer_(
          loop.timers(), [](void* self) { static_cast<Ring*>(self)->on_reduced(); }, this),
      linger_(
          loop.timers(), [](void* self) { static_cast<Ring*>(self)->on_linger(); }, this),
      left_(std::move(left)),
      right_(std::move(right)) {}

Ring::~Ring() = default;

Status Ring::listen() {
    left_->on_failure([this](const Error& error) { on_left_failure(error); });
    right_->on_failure([this](const Error& error) { on_right_failure(error); });
    auto news = right_->receive(
        news_.data(), news_.size(), [this](Result<reliable::ReceiveResult> result) { on_bad_news(result); }, true);
    if (!news) return propagate(news);
    return {};
}

// --- an operation ---

Status Ring::prepare(const Collective& collective) {
    if (error_) return std::unexpected(*error_);
    if (prepared_) return farhaul::fail(ErrorCode::kRetry, "another operation of this ring has not been released yet");
    if (collective.kind == Kind::kBroadcast && collective.root >= config_.ranks)
        return farhaul::fail(ErrorCode::kInvalidArgument, "there is no rank {} in a ring of {}", collective.root,
                             config_.ranks);
    const std::uint64_t element = size_of(collective.type);
    if (collective.count > ~std::uint64_t{0} / 2 / element)
        return farhaul::fail(ErrorCode::kInvalidArgument, "{} elements are more than memory can hold",
                             collective.count);
    collective_ = collective;
    schedule_ = Schedule::make(collective.kind, collective.count, element, config_.rank, config_.ranks, collective.root,
                               config_.segment_bytes);
    received_.assign(schedule_.receives.size(), false);
    posted_ = complete_ = written_ = acknowledged_ = 0;
    prepared_ = true;
    started_ = done_told_ = false;
    slot_bytes_ = 0;
    for (const Schedule::Receive& receive : schedule_.receives)
        if (receive.combine) slot_bytes_ = std::max(slot_bytes_, receive.range.length);
    slots_.resize(slot_bytes_ == 0 ? 0 : std::max<std::uint64_t>(1, config_.scratch_bytes / slot_bytes_));
    post_receives();
    return {};
}

void Ring::start(std::function<void(Status)> done, std::function<void()> released) {
    done_ = std::move(done);
    released_ = std::move(released);
    started_ = true;
    // What ended it meanwhile, or that there is nothing to do, is told from the loop.
    if (error_ || !prepared_) report_timer_.arm(loop_.now());
    pump();
    check_done();
}

std::optional<std::size_t> Ring::free_slot(std::uint64_t bytes) {
    for (std::size_t i = 0; i < slots_.size(); ++i)
        if (!slots_[i].used) {
            slots_[i].used = true;
            if (collective_.buffer != nullptr && slots_[i].bytes.size() < bytes) slots_[i].bytes.resize(slot_bytes_);
            return i;
        }
    return std::nullopt;
}

void Ring::post_receives() {
    while (posted_ < schedule_.receives.size() && !error_) {
        const Schedule::Receive& receive = schedule_.receives[posted_];
        std::size_t slot = kNoSlot;
        std::byte* into = collective_.buffer == nullptr ? nullptr : collective_.buffer + receive.range.offset;
        if (receive.combine) {
            const auto free = free_slot(receive.range.length);
            if (!free) return;  // until one is
            slot = *free;
            if (into != nullptr) into = slots_[slot].bytes.data();
        }
        auto posted = left_->receive(into, receive.range.length,
                                     [this, number = posted_, slot](Result<reliable::ReceiveResult> result) {
                                         on_received(number, slot, result);
                                     });
        if (!posted) return on_left_failure(posted.error());
        ++posted_;
    }
}

void Ring::on_received(std::uint64_t receive, std::size_t slot, const Result<reliable::ReceiveResult>& result) {
    if (error_) return;
    if (!result) return on_left_failure(result.error());
    const std::uint64_t expected = schedule_.receives[receive].range.length;
    if (result->length != expected) {
        const std::uint32_t left = (config_.rank + config_.ranks - 1) % config_.ranks;
        fail({ErrorCode::kProtocol,
              fmt::format(
                  "rank {} sent {} bytes where {} belong: do all ranks run the same operation on the same count?", left,
                  result->length, expected)},
             config_.rank);
        return;
    }
    if (slot != kNoSlot && config_.reduce_bytes_per_second > 0) {
        const auto cost = Duration::from_seconds(static_cast<double>(expected) / config_.reduce_bytes_per_second);
        reducer_free_ = std::max(reducer_free_, loop_.now()) + cost;
        reductions_.push_back({receive, slot, reducer_free_});
        reduce_timer_.arm_no_later_than(reducer_free_);
        return;
    }
    finish_receive(receive, slot);
}

void Ring::on_reduced() {
    while (!reductions_.empty() && reductions_.front().ends <= loop_.now()) {
        const Reduction reduction = reductions_.front();
        reductions_.pop_front();
        if (!error_) finish_receive(reduction.receive, reduction.slot);
    }
    if (!reductions_.empty()) reduce_timer_.arm(reductions_.front().ends);
}

void Ring::finish_receive(std::uint64_t receive, std::size_t slot) {
    const Range range = schedule_.receives[receive].range;
    if (slot != kNoSlot) {
        if (collective_.buffer != nullptr)
            reduce(collective_.type, collective_.operation, collective_.buffer + range.offset,
                   slots_[slot].bytes.data(), range.length / size_of(collective_.type));
        slots_[slot].used = false;
    }
    received_[receive] = true;
    ++complete_;
    post_receives();
    pump();
    check_done();
}

void Ring::pump() {
    if (!started_ || error_) return;
    while (written_ < schedule_.writes.size() &&
           (written_ < schedule_.ready_writes || received_[written_ - schedule_.ready_writes])) {
        const Range range = schedule_.writes[written_];
        ++written_;
        Status written = right_->write(collective_.buffer == nullptr ? nullptr : collective_.buffer + range.offset,
                                       range.length, [this](Status status) {
                                           if (error_) return;
                                           if (!status) return on_right_failure(status.error());
                                           ++acknowledged_;
                                           check_done();
                                       });
        if (!written) return on_right_failure(written.error());
    }
}

void Ring::check_done() {
    if (!started_ || error_) return;
    const bool result = complete_ == schedule_.receives.size();
    // A rank that only sends (a broadcast's root) is done when the data is out of its hands.
    const bool sent = acknowledged_ == schedule_.writes.size();
    if (result && (sent || (!done_told_ && !schedule_.receives.empty()))) report_timer_.arm_no_later_than(loop_.now());
}

void Ring::report() {
    if (!started_) return;
    if (error_ || !prepared_) {
        started_ = prepared_ = false;
        if (done_told_) return;
        done_told_ = true;
        const Error error = error_.value_or(Error{ErrorCode::kInvalidArgument, "nothing was prepared"});
        if (auto done = std::move(done_)) done(std::unexpected(error));
        return;
    }
    const bool sent = acknowledged_ == schedule_.writes.size();
    if (sent) started_ = prepared_ = false;
    const auto released = sent ? std::exchange(released_, {}) : std::function<void()>{};
    if (!std::exchange(done_told_, true))
        if (const auto done = std::exchange(done_, {})) done({});
    if (released) released();
}

// --- when someone is gone ---

Error Ring::gone(std::uint32_t rank, const Error& error) const {
    return {error.code == ErrorCode::kClosed ? ErrorCode::kPeerGone : error.code,
            fmt::format("rank {} is gone: {}", rank, error.message)};
}

void Ring::on_left_failure(const Error& error) {
    if (error_ || left_gone_) return;
    left_gone_ = gone((config_.rank + config_.ranks - 1) % config_.ranks, error);
    if (config_.ranks == 2) return fail(*left_gone_, (config_.rank + 1) % 2);  // nobody else could tell
    linger_.arm(loop_.now() + kLinger);
}

void Ring::on_right_failure(const Error& error) {
    const std::uint32_t right = (config_.rank + 1) % config_.ranks;
    fail(gone(right, error), right);
}

void Ring::on_bad_news(const Result<reliable::ReceiveResult>& result) {
    if (error_) return;
    if (!result) return on_right_failure(result.error());
    const std::uint32_t culprit = result->immediate.value_or(config_.ranks);
    if (culprit >= config_.ranks || culprit == config_.rank) {
        const std::uint32_t right = (config_.rank + 1) % config_.ranks;
        fail({ErrorCode::kProtocol,
              fmt::format("rank {} says that rank {} of {} is gone", right, culprit, config_.ranks)},
             right);
        return;
    }
    fail({ErrorCode::kPeerGone, fmt::format("rank {} is gone: its neighbours lost it", culprit)}, culprit);
}

void Ring::on_linger() {
    if (!error_ && left_gone_) {
        const std::uint32_t left = (config_.rank + config_.ranks - 1) % config_.ranks;
        fail(*left_gone_, left);
    }
}

void Ring::abort(const Error& error) { fail(error, config_.rank); }

void Ring::fail(const Error& error, std::uint32_t culprit) {
    if (error_) return;
    error_ = error;
    linger_.disarm();
    if (config_.ranks > 1) tell_left(culprit);
    if (started_) report_timer_.arm(loop_.now());
}

void Ring::tell_left(std::uint32_t culprit) {
    const std::uint32_t left = (config_.rank + config_.ranks - 1) % config_.ranks;
    if (left == culprit || left_->failed()) return;
    linger_.arm(loop_.now() + kLinger);
    // Nothing can be done about an error here: the left neighbour will notice by itself.
    if (!left_->write(nullptr, 0, [this](const Status&) { linger_.disarm(); }, culprit)) linger_.disarm();
}

}  // namespace farhaul::collective
