// A thread's io_uring. The thread that owns a ring queues operations, and one system call, submit_and_wait(), starts
// all of them and collects what has ended; so a thread that serves requests pays one system call per batch, whatever
// the requests need.
//
// A ring is used by its own thread only, apart from wake(). Completions are called from within reap(), on that thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include <liburing.h>
#include <sys/uio.h>

#include "base/result.hpp"

namespace farhaul::io {

/// An operation under way. Embed it in what it belongs to; it must stay until `done` was called, which happens exactly
/// once.
struct Operation {
    /// `result` as the system call's: what it returned, or a negative errno.
    void (*done)(Operation* operation, std::int32_t result) = nullptr;
};

class Ring {
 public:
    /// `entries`: operations that can be queued before a submission. `large_entries`: 128-byte submission entries
    /// (needed for FUSE over io_uring). Fails with kUnsupported where the kernel has no io_uring or forbids it.
    static Result<std::unique_ptr<Ring>> create(unsigned entries, bool large_entries = false);
    /// On the thread that owned it.
    ~Ring();
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    // The lists must stay until `done`. Offset -1: the file's own position (pipes, sockets, /dev/fuse).
    void read(int fd, std::span<const iovec> to, std::uint64_t offset, Operation& operation);
    /// `flags`: RWF_* of pwritev2(2).
    void write(int fd, std::span<const iovec> from, std::uint64_t offset, int flags, Operation& operation);
    void fsync(int fd, bool data_only, Operation& operation);
    /// Any other: an empty submission entry to fill in (prep functions of liburing), already tied to `operation`: set
    /// its user_data no more. Never nullptr: when the queue is full, what is queued is submitted first.
    io_uring_sqe* prepare(Operation& operation);
    /// A read of something that can be polled, started when `events` (EPOLL*, also EPOLLEXCLUSIVE) are there. Of
    /// several readers only one gets what is there: on a non-blocking file, the others end with EAGAIN.
    void read_when(std::uint32_t events, int fd, std::span<const iovec> to, Operation& operation);
    /// Asks for an early end of an operation: `done` is called all the same, with ECANCELED unless it had ended before.
    void cancel(Operation& operation);
    /// Gives up an operation that cannot be cancelled (a command to a file): it ends with the ring, `done` is not
    /// called, nothing but the ring's destruction may follow.
    void abandon(Operation&) { --in_flight_; }

    /// Operations queued since the last submission.
    unsigned queued() const { return io_uring_sq_ready(&ring_); }
    /// Operations whose `done` was not called yet. A ring that is destroyed cancels what it can and waits for the rest,
    /// so that no buffer is written to afterwards, but calls nobody: whose completions matter drains the ring first.
    unsigned in_flight() const { return in_flight_; }
    /// Nothing is queued or under way.
    bool idle() const { return queued() == 0 && in_flight_ == (wake_armed_ ? 1u : 0u); }
    /// Submits what is queued and waits until something has ended, somebody has called wake(), or a signal came; `wait`
    /// false: does not wait. Then calls the completions, at most a queue full of them. Returns how many were called.
    /// `besides`: so many of what is queued end at once and are not worth returning for: it waits for one completion
    /// more. Only if something else is under way that will end by itself.
    unsigned submit_and_reap(bool wait, unsigned besides = 0);
    /// From any thread: lets the owner return from submit_and_reap(). Wake-ups are not counted, only remembered.
    void wake();

 private:
    Ring() = default;
    void arm_wake();
    static void on_wake(Operation* operation, std::int32_t result);
    io_uring_sqe* next_entry();
    std::size_t entry_size() const;
    io_uring_sqe* quiet_entry(const Operation* of);
    void submit(unsigned wait_for);
    unsigned reap(bool call);

    io_uring ring_{};
    bool made_ = false;
    bool owned_ = false;     // something was submitted
    bool enabled_ = false;   // the thread that submits first is the owner
    bool deferred_ = false;  // the kernel's share of completions runs only while the owner is in a system call
    unsigned in_flight_ = 0;
    struct Wake : Operation {
        Ring* ring = nullptr;
        std::uint64_t value = 0;
    } wake_;
    int wake_fd_ = -1;
    bool wake_armed_ = false;
    std::atomic<bool> wake_pending_{false};
};

}  // namespace farhaul::io
