// Record locks (fcntl) and whole-file locks (flock), with waiting.
//
// As in Linux' fs/locks.c: an owner never conflicts with itself; a new record lock replaces what the same owner has
// there, splitting and merging ranges; a flock that changes its type gives the old one up first and may lose it. A
// request that has to wait queues behind the file; whenever something on that file is given up, the queue is tried
// again in order.
//
// Deadlock: before a record lock waits, the owners that stand in its way are followed to what they wait for in turn, on
// any file; if that leads back to the asking owner, it gets EDEADLK. The same check is made again when the queue is
// tried and the request still has to wait, because by then others may stand in its way. Locks of open file descriptions
// (F_OFD_*) cannot be told from those of processes here, so they get EDEADLK too, where Linux would let them wait for
// ever.
//
// A lock belongs to a lock owner and was taken through an open file: it ends when the owner closes any descriptor of
// the inode (flush), and at the latest when that open file ends (release).
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "fuse/request.hpp"

namespace farhaul::backend::memory {

class Locks {
 public:
    explicit Locks(std::uint64_t limit) : limit_(limit) {}

    /// What is in the way of `asked`, first come first; type F_UNLCK if nothing is.
    fuse::FileLock test(fuse::NodeId node, std::uint64_t owner, const fuse::FileLock& asked) const;

    struct Asked {
        fuse::NodeId node = 0;
        fuse::Handle handle = 0;
        std::uint64_t owner = 0;
        fuse::FileLock lock;
        bool flock = false;
        bool wait = false;
    };
    /// Replies to `request`, now or, if it has to wait, later; and to others that can go on.
    void set(fuse::Request& request, const Asked& asked);
    /// EINTR for the waiting request `unique`; false: none waits.
    bool interrupt(std::uint64_t unique);

    /// The record locks of `owner` on the inode end.
    void drop_owner(fuse::NodeId node, std::uint64_t owner);
    /// The flock of `owner` on the inode ends.
    void drop_flock(fuse::NodeId node, std::uint64_t owner);
    /// All that was taken through `handle` ends, waiting requests with EBADF.
    void drop_handle(fuse::NodeId node, fuse::Handle handle);
    /// Everything ends, waiting requests with ENOTCONN.
    void clear();

 private:
    struct Range {
        std::uint64_t start;
        std::uint64_t end;  // inclusive
        std::uint32_t type;
        std::uint32_t pid;
        fuse::Handle handle;
    };
    struct Holder {
        std::uint64_t owner;
        std::vector<Range> ranges;  // sorted, apart from each other
    };
    struct Waiter {
        fuse::Request* request;
        std::uint64_t unique;
        Asked asked;
    };
    struct File {
        std::vector<Holder> records;  // in the order in which they came, as F_GETLK shows it
        std::vector<Holder> flocks;   // one range each
        std::list<Waiter> waiters;
        bool unused() const { return records.empty() && flocks.empty() && waiters.empty(); }
    };
    /// Replies that are due; sent when mutex_ is free again.
    struct Reply {
        fuse::Request* request;
        int error;
    };
    using Replies = std::vector<Reply>;
    static void send(const Replies& replies);

    // With mutex_ held.
    static std::vector<std::uint64_t> blockers(const File& file, const Asked& asked);
    bool deadlocks(const File& file, const Asked& asked) const;
    /// 0: done. EAGAIN: something is in the way. ENOLCK.
    int try_set(File& file, const Asked& asked);
    int set_record(File& file, const Asked& asked);
    int set_flock(File& file, const Asked& asked);
    void enqueue(File& file, fuse::Request& request, const Asked& asked);
    std::list<Waiter>::iterator dequeue(File& file, std::list<Waiter>::iterator waiter);
    /// Something was given up or taken: who waits is looked at again.
    void retry(File& file, Replies& replies);
    template <typename Drop>
    void drop(fuse::NodeId node, Drop&& drop);
    void drop_holder(std::vector<Holder>& holders, std::uint64_t owner);

    const std::uint64_t limit_;
    mutable std::mutex mutex_;
    std::map<fuse::NodeId, File> files_;
    std::uint64_t held_ = 0;                                      // ranges
    std::multimap<std::uint64_t, const Waiter*> waiting_owners_;  // of record locks: whom a deadlock may lead through
    std::map<std::uint64_t, fuse::NodeId> waiting_requests_;      // by unique
};

}  // namespace farhaul::backend::memory
