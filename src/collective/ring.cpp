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
      most_slots_(std::max<std::uint64_t>(1, config.scratch_bytes / config.segment_bytes)),
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

// --- operations ---

Status Ring::prepare(const Collective& collective) {
    if (error_) return std::unexpected(*error_);
    if (running_.size() >= kMostOperations)
        return farhaul::fail(ErrorCode::kRetry, "{} operations of this ring are queued already", running_.size());
    if (collective.kind == Kind::kBroadcast && collective.root >= config_.ranks)
        return farhaul::fail(ErrorCode::kInvalidArgument, "there is no rank {} in a ring of {}", collective.root,
                             config_.ranks);
    const std::uint64_t element = size_of(collective.type);
    if (collective.count > ~std::uint64_t{0} / 2 / element)
        return farhaul::fail(ErrorCode::kInvalidArgument, "{} elements are more than memory can hold",
                             collective.count);
    auto running = std::make_unique<Running>();
    running->collective = collective;
    running->schedule = Schedule::make(collective.kind, collective.count, element, config_.rank, config_.ranks,
                                       collective.root, config_.segment_bytes);
    running->received.assign(running->schedule.receives.size(), false);
    running_.push_back(std::move(running));
    post_receives();
    if (error_) return std::unexpected(*error_);
    return {};
}

void Ring::start(std::function<void(Status)> done, std::function<void()> released) {
    const auto next = std::ranges::find_if(running_, [](const auto& running) { return !running->started; });
    if (next == running_.end()) {
        // Nothing was prepared, or the ring failed before it could be: told from the loop like everything else.
        running_.push_back(std::make_unique<Running>());
        running_.back()->started = true;
        running_.back()->done = [this, done = std::move(done)](Status) {
            done(std::unexpected(error_.value_or(Error{ErrorCode::kInvalidArgument, "no operation was prepared"})));
        };
        report_timer_.arm(loop_.now());
        return;
    }
    Running& running = **next;
    running.done = std::move(done);
    running.released = std::move(released);
    running.started = true;
    if (error_) report_timer_.arm(loop_.now());
    pump();
    check(running);
}

std::optional<std::size_t> Ring::free_slot(const Collective& collective, std::uint64_t bytes) {
    std::size_t i = 0;
    while (i < slots_.size() && slots_[i].used) ++i;
    if (i == most_slots_) return std::nullopt;
    if (i == slots_.size()) slots_.emplace_back();
    slots_[i].used = true;
    if (collective.buffer != nullptr && slots_[i].bytes.size() < bytes) slots_[i].bytes.resize(bytes);
    return i;
}

void Ring::post_receives() {
    // In the order in which the left neighbour writes: an operation's after all of those before it.
    for (std::size_t i = 0; i < running_.size() && !error_; ++i)
        if (!post(*running_[i])) return;
}

bool Ring::post(Running& running) {
    while (running.posted < running.schedule.receives.size()) {
        const Schedule::Receive& receive = running.schedule.receives[running.posted];
        std::byte* into =
            running.collective.buffer == nullptr ? nullptr : running.collective.buffer + receive.range.offset;
        std::size_t slot = kNoSlot;
        if (receive.combine) {
            const auto free = free_slot(running.collective, receive.range.length);
            if (!free) return false;  // until one is
            slot = *free;
            if (into != nullptr) into = slots_[slot].bytes.data();
        }
        auto posted =
            left_->receive(into, receive.range.length,
                           [this, &running, number = running.posted, slot](Result<reliable::ReceiveResult> result) {
                               on_received(running, number, slot, result);
                           });
        if (!posted) {
            on_left_failure(posted.error());
            return false;
        }
        ++running.posted;
    }
    return true;
}

void Ring::on_received(Running& running, std::uint64_t receive, std::size_t slot,
                       const Result<reliable::ReceiveResult>& result) {
    if (error_) return;
    if (!result) return on_left_failure(result.error());
    const std::uint64_t expected = running.schedule.receives[receive].range.length;
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
        reductions_.push_back({&running, receive, slot, reducer_free_});
        reduce_timer_.arm_no_later_than(reducer_free_);
        return;
    }
    finish_receive(running, receive, slot);
}

void Ring::on_reduced() {
    while (!reductions_.empty() && reductions_.front().ends <= loop_.now()) {
        const Reduction reduction = reductions_.front();
        reductions_.pop_front();
        if (!error_) finish_receive(*reduction.running, reduction.receive, reduction.slot);
    }
    if (!reductions_.empty()) reduce_timer_.arm(reductions_.front().ends);
}

void Ring::finish_receive(Running& running, std::uint64_t receive, std::size_t slot) {
    const Range range = running.schedule.receives[receive].range;
    if (slot != kNoSlot) {
        const Collective& collective = running.collective;
        if (collective.buffer != nullptr)
            reduce(collective.type, collective.operation, collective.buffer + range.offset, slots_[slot].bytes.data(),
                   range.length / size_of(collective.type));
        slots_[slot].used = false;
    }
    running.received[receive] = true;
    ++running.complete;
    post_receives();
    pump();
    check(running);
}

void Ring::pump() {
    for (std::size_t i = 0; i < running_.size(); ++i) {
        Running& running = *running_[i];
        const Schedule& schedule = running.schedule;
        while (running.written < schedule.writes.size()) {
            if (error_ || !running.started) return;
            if (running.written >= schedule.ready_writes && !running.received[running.written - schedule.ready_writes])
                return;
            const Range range = schedule.writes[running.written];
            ++running.written;
            const std::byte* from =
                running.collective.buffer == nullptr ? nullptr : running.collective.buffer + range.offset;
            Status written = right_->write(from, range.length, [this, &running](Status status) {
                if (error_) return;
                if (!status) return on_right_failure(status.error());
                ++running.acknowledged;
                check(running);
            });
            if (!written) return on_right_failure(written.error());
        }
    }
}

void Ring::check(const Running& running) {
    if (!running.started || error_ || !running.has_result()) return;
    // A rank that only sends (a broadcast's root) is done when the data is out of its hands.
    const bool waits_for_acks = running.told || running.schedule.receives.empty();
    if (!waits_for_acks || running.is_sent()) report_timer_.arm_no_later_than(loop_.now());
}

void Ring::report() {
    std::vector<std::function<void()>> calls;
    for (auto& running : running_) {
        if (!running->started || (!error_ && !running->has_result())) continue;
        const bool ended = error_ || running->is_sent();
        if (!ended && running->schedule.receives.empty()) continue;
        if (!running->told && running->done)
            calls.push_back([done = std::move(running->done),
                             status = error_ ? Status(std::unexpected(*error_)) : Status()] { done(status); });
        running->told = true;
        if (!error_ && ended && running->released) calls.push_back(std::move(running->released));
    }
    std::erase_if(running_, [this](const auto& running) {
        return running->told && (error_ ? running->posted == 0 : running->is_sent());
    });
    for (const auto& call : calls) call();
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
    report_timer_.arm(loop_.now());
}

void Ring::tell_left(std::uint32_t culprit) {
    const std::uint32_t left = (config_.rank + config_.ranks - 1) % config_.ranks;
    if (left == culprit || left_->failed()) return;
    linger_.arm(loop_.now() + kLinger);
    // Nothing can be done about an error here: the left neighbour will notice by itself.
    if (!left_->write(nullptr, 0, [this](const Status&) { linger_.disarm(); }, culprit)) linger_.disarm();
}

}  // namespace farhaul::collective
