#include "io/ring.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace farhaul::io {

namespace {

// Best first; kernels before 6.1 know fewer flags and answer EINVAL. With DEFER_TASKRUN the kernel finishes operations
// only when the owner asks, which saves interrupting it; it ties the ring to the thread that enables it, therefore
// R_DISABLED.
constexpr std::array<unsigned, 3> kSetups = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL,
    0,
};

// Set in the user data of an entry that reports only failure: of its own, or for the operation that is linked to it.
constexpr std::uint64_t kQuiet = 1;

std::uint64_t address(const Operation* operation) { return reinterpret_cast<std::uint64_t>(operation); }

}  // namespace

Result<std::unique_ptr<Ring>> Ring::create(unsigned entries, bool large_entries) {
    std::unique_ptr<Ring> ring(new Ring);
    int error = 0;
    for (const unsigned setup : kSetups) {
        io_uring_params parameters{};
        parameters.flags = setup | IORING_SETUP_CLAMP | (large_entries ? IORING_SETUP_SQE128 : 0u);
        error = -::io_uring_queue_init_params(entries, &ring->ring_, &parameters);
        if (error == 0) {
            ring->made_ = true;
            ring->enabled_ = (setup & IORING_SETUP_R_DISABLED) == 0;
            if ((parameters.features & IORING_FEAT_CQE_SKIP) == 0)
                return fail(ErrorCode::kUnsupported, "io_uring of this kernel is older than Linux 5.17");
            ring->deferred_ = (setup & IORING_SETUP_DEFER_TASKRUN) != 0;
            break;
        }
        if (error != EINVAL) break;
    }
    if (error == ENOSYS || error == EPERM || error == EINVAL)
        return fail(ErrorCode::kUnsupported, "no io_uring on this kernel ({}); see the sysctl kernel.io_uring_disabled",
                    std::strerror(error));
    if (error != 0) return fail_errno(error, "cannot make an io_uring");
    ring->wake_fd_ = ::eventfd(0, EFD_CLOEXEC);
    if (ring->wake_fd_ < 0) return fail_errno(errno, "cannot make an eventfd");
    ring->wake_.done = on_wake;
    ring->wake_.ring = ring.get();
    return ring;
}

Ring::~Ring() {
    if (made_) {
        // Closing a ring does not wait for what is under way, and that writes to memory that is about to be freed.
        if (in_flight_ != 0 && owned_) {
            io_uring_sync_cancel_reg cancel{};
            cancel.flags = IORING_ASYNC_CANCEL_ANY;
            cancel.timeout = {.tv_sec = -1, .tv_nsec = -1};
            submit(0);
            ::io_uring_register_sync_cancel(&ring_, &cancel);
            // Bounded, should something not end.
            for (int i = 0; i < 100 && in_flight_ != 0; ++i) {
                __kernel_timespec limit{.tv_sec = 0, .tv_nsec = 50'000'000};
                io_uring_cqe* completion = nullptr;
                ::io_uring_submit_and_wait_timeout(&ring_, &completion, 1, &limit, nullptr);
                reap(false);
            }
        }
        ::io_uring_queue_exit(&ring_);
    }
    if (wake_fd_ >= 0) ::close(wake_fd_);
}

io_uring_sqe* Ring::next_entry() {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    while (entry == nullptr) {
        submit(0);
        entry = ::io_uring_get_sqe(&ring_);
    }
    return entry;
}

std::size_t Ring::entry_size() const {
    return (ring_.flags & IORING_SETUP_SQE128) != 0 ? 2 * sizeof(io_uring_sqe) : sizeof(io_uring_sqe);
}

io_uring_sqe* Ring::prepare(Operation& operation) {
    io_uring_sqe* entry = next_entry();
    std::memset(static_cast<void*>(entry), 0, entry_size());
    ::io_uring_sqe_set_data(entry, &operation);
    ++in_flight_;
    return entry;
}

void Ring::read(int fd, std::span<const iovec> to, std::uint64_t offset, Operation& operation) {
    io_uring_sqe* entry = prepare(operation);
    if (to.size() == 1) {
        ::io_uring_prep_read(entry, fd, to[0].iov_base, static_cast<unsigned>(to[0].iov_len), offset);
    } else {
        ::io_uring_prep_readv(entry, fd, to.data(), static_cast<unsigned>(to.size()), offset);
    }
}

void Ring::write(int fd, std::span<const iovec> from, std::uint64_t offset, int flags, Operation& operation) {
    io_uring_sqe* entry = prepare(operation);
    if (from.size() == 1) {
        ::io_uring_prep_write(entry, fd, from[0].iov_base, static_cast<unsigned>(from[0].iov_len), offset);
    } else {
        ::io_uring_prep_writev(entry, fd, from.data(), static_cast<unsigned>(from.size()), offset);
    }
    entry->rw_flags = flags;
}

io_uring_sqe* Ring::quiet_entry(const Operation* of) {
    io_uring_sqe* entry = next_entry();
    std::memset(static_cast<void*>(entry), 0, entry_size());
    entry->user_data = address(of) | kQuiet;
    return entry;
}

void Ring::read_when(std::uint32_t events, int fd, std::span<const iovec> to, Operation& operation) {
    // A link ends with the submission.
    if (::io_uring_sq_space_left(&ring_) < 2) submit(0);
    io_uring_sqe* poll = quiet_entry(&operation);
    ::io_uring_prep_poll_add(poll, fd, events);
    poll->flags |= IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS;
    read(fd, to, static_cast<std::uint64_t>(-1), operation);
}

void Ring::cancel(Operation& operation) {
    for (const std::uint64_t data : {address(&operation) | kQuiet, address(&operation)}) {
        io_uring_sqe* entry = quiet_entry(nullptr);
        ::io_uring_prep_cancel64(entry, data, 0);
        entry->flags |= IOSQE_CQE_SKIP_SUCCESS;
    }
}

void Ring::fsync(int fd, bool data_only, Operation& operation) {
    ::io_uring_prep_fsync(prepare(operation), fd, data_only ? IORING_FSYNC_DATASYNC : 0u);
}

void Ring::submit(unsigned wait_for) {
    owned_ = true;
    if (!enabled_) {
        enabled_ = true;
        // liburing 2.3 declares io_uring_enable_rings() and does not export it.
        ::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
    }
    // Errors need no care: EINTR is a signal; on EAGAIN, EBUSY (no memory, completions to be reaped first) the entries
    // stay queued and go out with the next call.
    if (wait_for != 0) {
        ::io_uring_submit_and_wait(&ring_, wait_for);
    } else if (deferred_) {
        ::io_uring_submit_and_get_events(&ring_);
    } else {
        ::io_uring_submit(&ring_);
    }
}

unsigned Ring::reap(bool call) {
    // Taken off the queue one by one: a completion may queue operations, and submit when the queue is full.
    unsigned limit = ::io_uring_cq_ready(&ring_);
    unsigned called = 0;
    io_uring_cqe* completion = nullptr;
    while (limit-- > 0 && ::io_uring_peek_cqe(&ring_, &completion) == 0) {
        const std::uint64_t data = completion->user_data;
        auto* operation = reinterpret_cast<Operation*>(data & ~kQuiet);
        const std::int32_t result = completion->res;
        ::io_uring_cqe_seen(&ring_, completion);
        // A poll that failed is reported instead of the read that was linked to it.
        if (operation == nullptr) continue;
        if (in_flight_ != 0) --in_flight_;  // what was abandoned may end all the same
        if (operation == &wake_) {
            on_wake(operation, result);
            continue;
        }
        ++called;
        if (call) operation->done(operation, result);
    }
    return called;
}

unsigned Ring::submit_and_reap(bool wait, unsigned besides) {
    if (!wake_armed_) arm_wake();
    // What has ended already is worth no wait.
    const bool ready = ::io_uring_cq_ready(&ring_) != 0;
    if (wait || !ready || queued() != 0) submit(wait && !ready ? 1 + besides : 0);
    return reap(true);
}

void Ring::arm_wake() {
    wake_armed_ = true;
    ::io_uring_prep_read(prepare(wake_), wake_fd_, &wake_.value, sizeof(wake_.value), 0);
}

void Ring::on_wake(Operation* operation, std::int32_t) {
    Ring& ring = *static_cast<Wake*>(operation)->ring;
    ring.wake_armed_ = false;
    // From here on, a wake() writes again; what was handed over before it is seen by the owner, who looks after
    // reaping.
    ring.wake_pending_.store(false, std::memory_order_seq_cst);
}

void Ring::wake() {
    if (wake_pending_.exchange(true, std::memory_order_seq_cst)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof(one));
}

}  // namespace farhaul::io
