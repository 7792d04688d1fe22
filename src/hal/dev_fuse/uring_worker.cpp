#include "hal/dev_fuse/uring_worker.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include <sched.h>

#include "base/log.hpp"
#include "hal/dev_fuse/interrupter.hpp"

namespace farhaul::hal {

namespace {

using fuse::abi::UringCommandRequest;
using fuse::abi::UringRequestHeader;

constexpr std::size_t kPage = 4096;
// io_uring's operation "pass this command to the file" and where its parts are; liburing 2.3 has no preparation for it.
constexpr std::uint8_t kCommandOpcode = IORING_OP_URING_CMD;

thread_local const void* this_worker = nullptr;

/// Header areas do not share cache lines.
constexpr std::size_t kHeaderStride = (sizeof(UringRequestHeader) + 63) / 64 * 64;

std::size_t round_up(std::size_t size) { return (size + kPage - 1) / kPage * kPage; }

/// How many CPUs the kernel could ever have: the end of the last range of "0-3,8-11".
unsigned possible_cpus() {
    std::ifstream file("/sys/devices/system/cpu/possible");
    std::string list;
    std::getline(file, list);
    const std::size_t start = list.find_last_of(",-");
    const unsigned long last = std::strtoul(list.c_str() + (start == std::string::npos ? 0 : start + 1), nullptr, 10);
    return static_cast<unsigned>(std::min(last, 8191ul)) + 1;
}

}  // namespace

std::vector<UringWorker::Share> UringWorker::shares() {
    const unsigned queues = possible_cpus();
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    std::vector<Share> shares;
    if (::sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
        for (unsigned cpu = 0; cpu < std::min<unsigned>(queues, CPU_SETSIZE); ++cpu)
            if (CPU_ISSET(cpu, &allowed)) shares.push_back({static_cast<int>(cpu), {static_cast<std::uint16_t>(cpu)}});
    }
    if (shares.empty()) shares.emplace_back();
    std::size_t next = 0;
    for (unsigned queue = 0; queue < queues; ++queue) {
        const auto has = [queue](const Share& share) {
            return std::ranges::find(share.queues, queue) != share.queues.end();
        };
        if (std::ranges::none_of(shares, has))
            shares[next++ % shares.size()].queues.push_back(static_cast<std::uint16_t>(queue));
    }
    return shares;
}

Result<std::unique_ptr<UringWorker>> UringWorker::create(Service& service, Share share, unsigned depth) {
    std::unique_ptr<UringWorker> worker(new UringWorker(service, std::move(share), depth));
    if (!worker->headers_ || !worker->payloads_)
        return fail(ErrorCode::kRetry, "no memory for {} entries of {} bytes", worker->share_.queues.size() * depth,
                    worker->payload_size_);
    auto ring = io::Ring::create(static_cast<unsigned>(2 * worker->entries_.size()) + 16, true);
    if (!ring) return propagate(ring);
    worker->ring_ = std::move(*ring);
    return worker;
}

UringWorker::UringWorker(Service& service, Share share, unsigned depth) : service_(service), share_(std::move(share)) {
    // As the kernel asks: at least max_write, max_pages pages, 8 KiB; and room for an extended attribute or two paths.
    payload_size_ = round_up(std::max<std::size_t>(service.session.options().max_write, 128 * 1024) + kPage);
    const std::size_t count = share_.queues.size() * depth;
    headers_ = Pages::map(round_up(kHeaderStride * count));
    payloads_ = Pages::map(payload_size_ * count);
    if (!headers_ || !payloads_) return;
    for (std::size_t i = 0; i < count; ++i) {
        auto entry = std::make_unique<Entry>();
        entry->worker = this;
        entry->queue = share_.queues[i / depth];
        entry->header = reinterpret_cast<UringRequestHeader*>(headers_.data() + i * kHeaderStride);
        entry->payload = payloads_.data() + i * payload_size_;
        entry->registered = {iovec{entry->header, sizeof(UringRequestHeader)}, iovec{entry->payload, payload_size_}};
        entry->done = [](io::Operation* operation, std::int32_t result) {
            auto& self = *static_cast<Entry*>(operation);
            self.worker->received(self, result);
        };
        entries_.push_back(std::move(entry));
    }
    returned_.reserve(count);
}

UringWorker::~UringWorker() = default;

void UringWorker::run(int device) {
    device_ = device;
    this_worker = this;
    if (share_.cpu >= 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(static_cast<unsigned>(share_.cpu), &one);
        // Only a matter of speed.
        if (::sched_setaffinity(0, sizeof(one), &one) != 0)
            log().info("cannot run on CPU {}: {}", share_.cpu, std::strerror(errno));
    }
    for (const auto& entry : entries_) {
        ++live_;
        entry->state = Entry::State::kLent;
        command(*entry, fuse::abi::kUringRegister);
    }
    while (live_ != 0 && !service_.ended.load(std::memory_order_relaxed) &&
           !service_.stop.load(std::memory_order_relaxed)) {
        ring_->submit_and_reap(true);
        take_back();
    }
    end_entries();
    this_worker = nullptr;
    // On this thread, which owns it.
    std::unique_ptr<io::Ring> ring;
    const std::scoped_lock lock(mutex_);
    ring = std::move(ring_);
}

void UringWorker::wake() {
    const std::scoped_lock lock(mutex_);
    if (ring_) ring_->wake();
}

void UringWorker::command(Entry& entry, std::uint32_t operation) {
    io_uring_sqe* submission = ring_->prepare(entry);
    submission->opcode = kCommandOpcode;
    submission->fd = device_;
    submission->cmd_op = operation;
    if (operation == fuse::abi::kUringRegister) {
        submission->addr = reinterpret_cast<std::uint64_t>(entry.registered.data());
        submission->len = static_cast<std::uint32_t>(entry.registered.size());
    }
    const UringCommandRequest request{.flags = 0, .commit_id = entry.commit_id, .qid = entry.queue, .padding = {}};
    std::memcpy(submission->cmd, &request, sizeof(request));
}

void UringWorker::received(Entry& entry, std::int32_t result) {
    // Once we stop, nothing new is begun: the connection ends with its last descriptor, and who waits learns it by
    // that.
    if (result == 0 && !service_.stop.load(std::memory_order_relaxed)) {
        entry.state = Entry::State::kServed;
        return serve(entry);
    }
    entry.state = Entry::State::kOver;
    --live_;
    // ENOTCONN, ECONNABORTED, ECANCELED: the connection has ended, or the entry was cancelled because we stop.
    if (result == 0 || result == -ENOTCONN || result == -ECONNABORTED || result == -ECANCELED) return;
    if (result == -EOPNOTSUPP && entry.commit_id != 0) {
        // Turned off, on and off again around INIT: the kernel took the entry and now refuses the reply; who waits for
        // it waits until the connection ends.
        service_.io_uring_failed.store(true);
        if (!service_.failed.exchange(true))
            log().error("FUSE over io_uring was turned off while it was being set up; the mount ends: mount again");
        return service_.connection_failed();
    }
    if (!service_.io_uring_failed.exchange(true))
        log().warn("FUSE over io_uring does not work ({}): requests go through /dev/fuse", std::strerror(-result));
}

void UringWorker::serve(Entry& entry) {
    UringRequestHeader& header = *entry.header;
    entry.commit_id = header.entry.commit_id;
    fuse_in_header head{};
    std::memcpy(&head, header.in_out, sizeof(head));
    const std::size_t payload = header.entry.payload_size;
    // What is neither header nor payload is the operation's own struct.
    const std::size_t body = head.len - std::min<std::size_t>(head.len, sizeof(head) + payload);
    if (head.len < sizeof(head) + payload || body > sizeof(header.op_in) || payload > payload_size_) {
        const fuse_out_header refusal{.len = sizeof(refusal), .error = -EIO, .unique = head.unique};
        std::memcpy(header.in_out, &refusal, sizeof(refusal));
        entry.reply_size = sizeof(refusal);
        return send(entry);
    }
    std::size_t pieces = 0;
    entry.in[pieces++] = iovec{header.in_out, sizeof(head)};
    if (body != 0) entry.in[pieces++] = iovec{header.op_in, body};
    if (payload != 0) entry.in[pieces++] = iovec{entry.payload, payload};
    entry.out = {iovec{header.in_out, sizeof(fuse_out_header)}, iovec{entry.payload, payload_size_}};
    entry.prepare(std::span(entry.in).first(pieces), entry.out, ring_.get());
    service_.session.handle(entry);
}

void UringWorker::Entry::complete(std::size_t size) {
    reply_size = size;
    if (this_worker == worker) return worker->send(*this);
    // Under the lock: once the worker has taken the entry back, it may end.
    const std::scoped_lock lock(worker->mutex_);
    worker->returned_.push_back(this);
    worker->ring_->wake();
}

void UringWorker::send(Entry& entry) {
    // Requests without a reply do not come this way; should one, an empty reply gives the entry back.
    if (entry.reply_size < sizeof(fuse_out_header)) {
        const fuse_out_header empty{.len = sizeof(empty), .error = 0, .unique = entry.unique()};
        std::memcpy(entry.header->in_out, &empty, sizeof(empty));
        entry.reply_size = sizeof(empty);
    }
    entry.header->entry.payload_size = static_cast<std::uint32_t>(entry.reply_size - sizeof(fuse_out_header));
    entry.state = Entry::State::kLent;
    command(entry, fuse::abi::kUringCommitAndFetch);
}

void UringWorker::take_back() {
    std::vector<Entry*> returned;
    {
        const std::scoped_lock lock(mutex_);
        returned.swap(returned_);
    }
    for (Entry* entry : returned) send(*entry);
}

void UringWorker::end_entries() {
    Interrupter interrupter;
    const auto any = [this](Entry::State state) {
        return std::ranges::any_of(entries_, [state](const auto& entry) { return entry->state == state; });
    };
    const auto finish_served = [&] {
        while (any(Entry::State::kServed)) {
            for (const auto& entry : entries_)
                if (entry->state == Entry::State::kServed) interrupter.interrupt(service_.session, entry->unique());
            ring_->submit_and_reap(true);
            take_back();
        }
    };
    finish_served();
    ring_->submit_and_reap(false);  // the last replies
    if (service_.ended.load() && !service_.failed.load()) {
        // The kernel gives all entries back; not if it was us who gave up, and others still hold the mount.
        while (live_ != 0) {
            ring_->submit_and_reap(true);
            take_back();
            finish_served();
        }
    } else {
        // Commands to a file cannot be cancelled one by one: those of lent entries end with the ring.
        for (const auto& entry : entries_)
            if (entry->state == Entry::State::kLent) ring_->abandon(*entry);
    }
}

}  // namespace farhaul::hal
