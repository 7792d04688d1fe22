#include "hal/dev_fuse/device_queue.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>
#include <utility>

#include <sys/epoll.h>

#include "base/log.hpp"
#include "hal/dev_fuse/interrupter.hpp"

namespace farhaul::hal {

namespace {

constexpr std::size_t kPage = 4096;
constexpr auto kNoOffset = static_cast<std::uint64_t>(-1);

/// The queue whose thread this is.
thread_local const void* this_queue = nullptr;

/// Lets read(2) return with EINTR, and does nothing else.
constexpr int kWakeSignal = SIGURG;

void install_wake_signal() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action{};
        action.sa_handler = [](int) {};
        ::sigaction(kWakeSignal, &action, nullptr);
    });
}

}  // namespace

Result<std::unique_ptr<DeviceQueue>> DeviceQueue::create(Service& service, io::UniqueFd polled, io::UniqueFd waiting,
                                                         unsigned slots) {
    std::unique_ptr<DeviceQueue> queue(new DeviceQueue(service, std::move(polled), std::move(waiting), slots));
    if (!queue->memory_)
        return fail(ErrorCode::kRetry, "no memory for {} requests of {} bytes", slots, queue->payload_size_);
    // For each slot a read or a write, for the fetch a poll, and as much again for the file system.
    auto ring = io::Ring::create(2 * slots + 16);
    if (!ring && ring.error().code != ErrorCode::kUnsupported) return propagate(ring);
    if (ring) {
        queue->ring_ = std::move(*ring);
    } else {
        log().info("{}", ring.error().message);
    }
    install_wake_signal();
    return queue;
}

DeviceQueue::DeviceQueue(Service& service, io::UniqueFd polled, io::UniqueFd waiting, unsigned slots)
    : service_(service), polled_(std::move(polled)), waiting_(std::move(waiting)) {
    // Beside data, a request carries at most an extended attribute of 64 KiB or two paths; and the kernel asks for a
    // page more than max_write.
    payload_size_ = std::max<std::size_t>(service.session.options().max_write, 128 * 1024) + kPage;
    memory_ = Pages::map(payload_size_ * slots);
    if (!memory_) return;
    returned_.reserve(slots);
    for (unsigned i = 0; i < slots; ++i) {
        auto slot = std::make_unique<Slot>();
        slot->queue = this;
        slot->payload = memory_.data() + i * payload_size_;
        slot->done = [](io::Operation* operation, std::int32_t result) {
            auto& self = *static_cast<Slot*>(operation);
            if (self.state == Slot::State::kReading) {
                self.queue->received(self, result);
            } else {
                self.queue->replied(self, result);
            }
        };
        free_.push_back(slot.get());
        slots_.push_back(std::move(slot));
    }
}

DeviceQueue::~DeviceQueue() = default;

bool DeviceQueue::over() const {
    return service_.ended.load(std::memory_order_relaxed) || service_.stop.load(std::memory_order_relaxed);
}

void DeviceQueue::run() {
    this_queue = this;
    {
        const std::scoped_lock lock(mutex_);
        thread_ = ::pthread_self();
        running_ = true;
    }
    sigset_t wakes;
    ::sigemptyset(&wakes);
    ::sigaddset(&wakes, kWakeSignal);
    ::pthread_sigmask(SIG_UNBLOCK, &wakes, nullptr);
    while (!over()) {
        if (ring_ == nullptr) {
            serve_without_ring();
        } else if (quiet()) {
            serve_plainly();
        } else {
            serve_by_ring();
        }
    }
    finish();
    this_queue = nullptr;
    // On this thread, which owns it.
    std::unique_ptr<io::Ring> ring;
    const std::scoped_lock lock(mutex_);
    running_ = false;
    ring = std::move(ring_);
    finished_.store(true);
}

void DeviceQueue::wake() {
    const std::scoped_lock lock(mutex_);
    slot_returned_.notify_all();
    if (!running_) return;
    if (ring_) ring_->wake();
    ::pthread_kill(thread_, kWakeSignal);
}

// ---- The plain way.

bool DeviceQueue::quiet() const { return free_.size() == slots_.size() && ring_->idle(); }

void DeviceQueue::serve_plainly() {
    plainly_ = true;
    Slot& slot = take_free(waiting_.get());
    const ssize_t size = ::readv(waiting_.get(), slot.transfer.data(), static_cast<int>(slot.transfer.size()));
    received(slot, size < 0 ? -errno : static_cast<std::int32_t>(size));
}

void DeviceQueue::serve_without_ring() {
    {
        std::unique_lock lock(mutex_);
        slot_returned_.wait(lock, [this] { return !free_.empty() || !returned_.empty() || over(); });
    }
    take_back();
    if (!free_.empty() && !over()) serve_plainly();
}

// ---- By ring.

bool DeviceQueue::may_leave_ring() const {
    return calm_ >= kCalm && free_.size() + reads_under_way_ + replies_under_way_ == slots_.size();
}

void DeviceQueue::serve_by_ring() {
    plainly_ = false;
    const bool leave = may_leave_ring();
    if (!leave) {
        fetch();
    } else if (!leaving_) {
        cancel_reads();
        leaving_ = true;
    }
    ++rounds_;
    const unsigned replies = std::exchange(replies_queued_, 0);
    // The kernel takes a reply while it is submitted; only while a read waits is there something else to wait for.
    ring_->submit_and_reap(true, reads_under_way_ != 0 && !leave ? replies : 0);
    take_back();
}

void DeviceQueue::fetch() {
    if (reads_under_way_ != 0 || free_.empty()) return;  // one fetch at a time
    extra_reads_ = rounds_ <= 1 ? std::min(2 * extra_reads_ + 1, kMostExtraReads) : extra_reads_ / 2;
    rounds_ = 0;
    leaving_ = false;

    Slot& first = take_free(polled_.get());
    ring_->read_when(EPOLLIN | EPOLLEXCLUSIVE, polled_.get(), first.transfer, first);
    for (unsigned i = 0; i < extra_reads_ && !free_.empty(); ++i) {
        Slot& slot = take_free(polled_.get());
        ring_->read(polled_.get(), slot.transfer, kNoOffset, slot);
    }
}

void DeviceQueue::cancel_reads() {
    for (const auto& slot : slots_)
        if (slot->state == Slot::State::kReading) ring_->cancel(*slot);
}

// ---- Either way.

DeviceQueue::Slot& DeviceQueue::take_free(int device) {
    Slot& slot = *free_.back();
    free_.pop_back();
    slot.state = Slot::State::kReading;
    slot.device = device;
    slot.transfer = {iovec{slot.header.data(), kHeaderSize}, iovec{slot.payload, payload_size_}};
    ++reads_under_way_;
    return slot;
}

void DeviceQueue::received(Slot& slot, std::int32_t result) {
    --reads_under_way_;
    if (result < static_cast<std::int32_t>(sizeof(fuse_in_header))) {
        slot.state = Slot::State::kFree;
        free_.push_back(&slot);
        return receive_failed(result);
    }
    const auto size = static_cast<std::size_t>(result);
    slot.state = Slot::State::kServed;
    slot.in = {iovec{slot.header.data(), std::min(size, kHeaderSize)},
               iovec{slot.payload, size - std::min(size, kHeaderSize)}};
    slot.out = {iovec{&slot.reply, sizeof(slot.reply)}, iovec{slot.payload, payload_size_}};
    slot.prepare(std::span(slot.in).first(size > kHeaderSize ? 2 : 1), slot.out, ring_.get());
    service_.session.handle(slot);
    // On this thread the state is changed by nobody else.
    calm_ = slot.state == Slot::State::kServed ? 0 : std::min(calm_ + 1, kCalm);
}

void DeviceQueue::receive_failed(std::int32_t result) {
    switch (-result) {
        case EAGAIN:     // another thread was faster
        case EINTR:      //
        case ENOENT:     // the caller was interrupted before the request was read
        case ECANCELED:  // the poll failed, or we stop
            return;
        case ENODEV:  // unmounted
            service_.unmounted.store(true);
            return service_.connection_ended();
        case ECONNABORTED:  // given up by the administrator
            return service_.connection_ended();
        default:
            log().error("reading from /dev/fuse: {}; the mount ends",
                        result < 0 ? std::strerror(-result) : "short request");
            return service_.connection_failed();
    }
}

void DeviceQueue::Slot::complete(std::size_t reply_size) {
    transfer = {iovec{&reply, sizeof(reply)}, iovec{payload, reply_size - std::min(reply_size, sizeof(reply))}};
    const std::span<const iovec> list = std::span(transfer).first(reply_size > sizeof(reply) ? 2 : 1);
    const bool own = this_queue == queue;
    if (own && reply_size != 0 && !queue->plainly_) {
        state = State::kWriting;
        ++queue->replies_under_way_;
        // After the reply to INIT there is something to do at once: nothing else may come before it is done.
        if (opcode() != FUSE_INIT) ++queue->replies_queued_;
        return queue->ring_->write(device, list, kNoOffset, 0, *this);
    }
    if (reply_size != 0) {
        const ssize_t written = ::writev(device, list.data(), static_cast<int>(list.size()));
        if (written < 0) queue->reply_failed(*this, errno);
    }
    if (own) return queue->release(*this);
    DeviceQueue& owner = *queue;
    // Under the lock: once the owner has taken the slot back, it may end.
    const std::scoped_lock lock(owner.mutex_);
    owner.returned_.push_back(this);
    owner.slot_returned_.notify_one();
    if (owner.ring_) owner.ring_->wake();
}

void DeviceQueue::replied(Slot& slot, std::int32_t result) {
    --replies_under_way_;
    if (result < 0) reply_failed(slot, -result);
    release(slot);
}

void DeviceQueue::reply_failed(Slot& slot, int error) {
    // ENOENT: the request has ended, its caller was killed. ENODEV, EPERM, ECONNABORTED: so has the mount.
    if (error == ENOENT || error == ENODEV || error == EPERM || error == ECONNABORTED || error == ENOTCONN) return;
    // Refused as malformed, which leaves the caller waiting; so it gets an answer that cannot be refused.
    log().error("the kernel refused the reply to a request ({}, {} bytes): {}", slot.opcode(), slot.reply.len,
                std::strerror(error));
    const fuse_out_header refusal{.len = sizeof(refusal), .error = -EIO, .unique = slot.reply.unique};
    [[maybe_unused]] const ssize_t written = ::write(slot.device, &refusal, sizeof(refusal));
}

void DeviceQueue::release(Slot& slot) {
    const bool was_init = slot.opcode() == FUSE_INIT;
    slot.state = Slot::State::kFree;
    free_.push_back(&slot);
    if (was_init && service_.session.initialized()) service_.initialized();
}

void DeviceQueue::take_back() {
    std::vector<Slot*> returned;
    {
        const std::scoped_lock lock(mutex_);
        returned.swap(returned_);
    }
    for (Slot* slot : returned) release(*slot);
}

void DeviceQueue::finish() {
    plainly_ = true;
    // What a fetch finds still is served still.
    if (reads_under_way_ != 0) cancel_reads();
    while (reads_under_way_ != 0) ring_->submit_and_reap(true);
    Interrupter interrupter;
    while (free_.size() != slots_.size()) {
        for (const auto& slot : slots_)
            if (slot->state == Slot::State::kServed) interrupter.interrupt(service_.session, slot->unique());
        if (ring_) {
            ring_->submit_and_reap(true);
        } else {
            std::unique_lock lock(mutex_);
            slot_returned_.wait(lock, [this] { return !returned_.empty(); });
        }
        take_back();
    }
}

}  // namespace farhaul::hal
