// Locks of clients on the host's files, so that clients and local processes exclude each other.
//
// Record locks: each lock owner gets an open file description of its own per inode, with OFD locks (F_OFD_SETLK) on it;
// closing it ends them all. flock(2) goes to the descriptor of the client's open file. Who waits is tried again by one
// thread, after 1 ms, then twice as long each time up to 20 ms, and at once when a lock ends here: the kernel tells
// nobody when another process' lock ends, and no thread that serves requests may block.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backend/mirror/open_file.hpp"
#include "fuse/file_system.hpp"

namespace farhaul::backend::mirror {

/// The record locks of one inode, by owner. Under the inode's mutex.
class InodeLocks {
 public:
    struct Range {
        std::uint64_t start, end;  // inclusive
        std::uint32_t type;
    };
    struct Owner {
        Fd fd;
        std::uint32_t pid = 0;
        fuse::Handle handle = 0;    // through which it locked last
        std::vector<Range> ranges;  // what the client holds, for F_GETLK's pid
        void note(const fuse::FileLock& lock);
    };
    std::unordered_map<std::uint64_t, Owner> owners;
};

/// One attempt of fcntl(F_OFD_SETLK) for the owner; `path`: a descriptor of the inode. 0 or an errno, EAGAIN if it is
/// taken.
int set_record_lock(Inode& inode, int path, const fuse::LockRequest& request);
/// Fills `lock` with what stands in its way, or F_UNLCK.
int get_record_lock(Inode& inode, int path, std::uint64_t owner, fuse::FileLock& lock);
/// Ends all record locks of the owner. Did it have any?
bool drop_record_locks(Inode& inode, std::uint64_t owner);
/// Ends the record locks that were set through an open file, when it is released. Those of a process (F_SETLK) have
/// ended with a FLUSH by then; what is left are OFD locks, of whose end the client says nothing else.
bool drop_record_locks_of(Inode& inode, fuse::Handle handle);
int set_flock(int fd, std::uint32_t type);

class LockWaiters {
 public:
    /// `attempt(lock)`: 0, EAGAIN or another errno.
    struct Waiter {
        fuse::Request* request;
        fuse::LockRequest lock;
        FilePtr file;
    };
    using Attempt = int (*)(void* context, const Waiter& waiter);
    LockWaiters(Attempt attempt, void* context) : attempt_(attempt), context_(context) {}
    ~LockWaiters();

    void wait(Waiter waiter);
    /// Something was unlocked here.
    void wake();
    /// Ends one with EINTR. False: nobody of that name waits.
    bool interrupt(std::uint64_t unique);
    void interrupt_all();

 private:
    struct Entry {
        Waiter waiter;
        std::chrono::steady_clock::time_point next;
        std::chrono::milliseconds backoff;
    };
    void run();

    const Attempt attempt_;
    void* const context_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::list<Entry> entries_;
    bool woken_ = false;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace farhaul::backend::mirror
