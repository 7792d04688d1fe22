#include "backend/mirror/locks.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>

namespace farhaul::backend::mirror {

namespace {

constexpr std::uint64_t kEndOfFile = INT64_MAX;

struct flock flock_of(const fuse::FileLock& lock) {
    struct flock out{};
    out.l_type = static_cast<short>(lock.type);
    out.l_whence = SEEK_SET;
    out.l_start = static_cast<off_t>(lock.start);
    out.l_len = lock.end >= kEndOfFile ? 0 : static_cast<off_t>(lock.end - lock.start + 1);
    return out;
}

int open_for_locks(int path, Fd& fd) {
    fd.reset(reopen(path, O_RDWR | O_CLOEXEC | O_NOCTTY));
    // A read lock needs no more than that.
    if (!fd && (errno == EACCES || errno == EROFS || errno == ETXTBSY || errno == EPERM))
        fd.reset(reopen(path, O_RDONLY | O_CLOEXEC | O_NOCTTY));
    return fd ? 0 : errno;
}

}  // namespace

void InodeLocks::Owner::note(const fuse::FileLock& lock) {
    std::vector<Range> kept;
    for (const Range& range : ranges) {
        if (range.end < lock.start || range.start > lock.end) {
            kept.push_back(range);
            continue;
        }
        if (range.start < lock.start) kept.push_back({range.start, lock.start - 1, range.type});
        if (range.end > lock.end) kept.push_back({lock.end + 1, range.end, range.type});
    }
    if (lock.type != F_UNLCK) kept.push_back({lock.start, lock.end, lock.type});
    ranges = std::move(kept);
    if (lock.type != F_UNLCK) pid = lock.pid;
}

int set_record_lock(Inode& inode, int path, const fuse::LockRequest& request) {
    const fuse::FileLock& lock = request.lock;
    const std::scoped_lock guard(inode.mutex);
    if (inode.locks == nullptr) {
        if (lock.type == F_UNLCK) return 0;
        inode.locks = std::make_unique<InodeLocks>();
    }
    auto& owners = inode.locks->owners;
    auto found = owners.find(request.owner);
    if (found == owners.end()) {
        if (lock.type == F_UNLCK) return 0;
        Fd fd;
        if (const int error = open_for_locks(path, fd); error != 0) return error;
        found = owners.try_emplace(request.owner).first;
        found->second.fd = std::move(fd);
    }
    InodeLocks::Owner& owner = found->second;
    struct flock native = flock_of(lock);
    const int error = ::fcntl(owner.fd.get(), F_OFD_SETLK, &native) == 0 ? 0 : errno;
    if (error == 0) {
        owner.note(lock);
        owner.handle = request.handle;
    }
    if (owner.ranges.empty()) owners.erase(found);
    inode.has_locks.store(!owners.empty(), std::memory_order_release);
    return error == EACCES ? EAGAIN : error;
}

int get_record_lock(Inode& inode, int path, std::uint64_t owner_id, fuse::FileLock& lock) {
    const std::scoped_lock guard(inode.mutex);
    int fd = -1;
    Fd opened;
    if (inode.locks != nullptr) {
        if (const auto found = inode.locks->owners.find(owner_id); found != inode.locks->owners.end())
            fd = found->second.fd.get();
    }
    if (fd < 0) {
        if (const int error = open_for_locks(path, opened); error != 0) return error;
        fd = opened.get();
    }
    struct flock native = flock_of(lock);
    if (::fcntl(fd, F_OFD_GETLK, &native) != 0) return errno;
    const auto type = static_cast<std::uint32_t>(native.l_type);
    if (type == F_UNLCK) {
        lock.type = F_UNLCK;
        return 0;
    }
    const auto start = static_cast<std::uint64_t>(native.l_start);
    lock = {.start = start,
            .end = native.l_len == 0 ? kEndOfFile : start + static_cast<std::uint64_t>(native.l_len) - 1,
            .type = type,
            .pid = native.l_pid > 0 ? static_cast<std::uint32_t>(native.l_pid) : 0};
    // OFD locks have no process; ours we know.
    if (native.l_pid < 0 && inode.locks != nullptr) {
        for (const auto& [id, owner] : inode.locks->owners) {
            if (id != owner_id && std::ranges::any_of(owner.ranges, [&](const InodeLocks::Range& range) {
                    return range.start <= start && start <= range.end && range.type == type;
                }))
                lock.pid = owner.pid;
        }
    }
    return 0;
}

bool drop_record_locks(Inode& inode, std::uint64_t owner) {
    if (!inode.has_locks.load(std::memory_order_acquire)) return false;
    const std::scoped_lock guard(inode.mutex);
    if (inode.locks == nullptr || inode.locks->owners.erase(owner) == 0) return false;
    inode.has_locks.store(!inode.locks->owners.empty(), std::memory_order_release);
    return true;
}

bool drop_record_locks_of(Inode& inode, fuse::Handle handle) {
    if (!inode.has_locks.load(std::memory_order_acquire)) return false;
    const std::scoped_lock guard(inode.mutex);
    if (inode.locks == nullptr) return false;
    auto& owners = inode.locks->owners;
    const auto ended = std::erase_if(owners, [&](const auto& owner) { return owner.second.handle == handle; });
    inode.has_locks.store(!owners.empty(), std::memory_order_release);
    return ended != 0;
}

int set_flock(int fd, std::uint32_t type) {
    const int operation = type == F_UNLCK ? LOCK_UN : type == F_RDLCK ? LOCK_SH : LOCK_EX;
    return ::flock(fd, operation | LOCK_NB) == 0 ? 0 : errno;
}

// ---- Waiters.

LockWaiters::~LockWaiters() {
    interrupt_all();
    {
        const std::scoped_lock lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void LockWaiters::wait(Waiter waiter) {
    const std::scoped_lock lock(mutex_);
    constexpr std::chrono::milliseconds kFirst{1};
    entries_.push_back({std::move(waiter), std::chrono::steady_clock::now() + kFirst, kFirst});
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.notify_all();
}

void LockWaiters::wake() {
    const std::scoped_lock lock(mutex_);
    if (entries_.empty()) return;
    woken_ = true;
    changed_.notify_all();
}

bool LockWaiters::interrupt(std::uint64_t unique) {
    std::list<Entry> ended;
    {
        const std::scoped_lock lock(mutex_);
        const auto found =
            std::ranges::find_if(entries_, [&](const Entry& e) { return e.waiter.request->unique() == unique; });
        if (found == entries_.end()) return false;
        ended.splice(ended.end(), entries_, found);
    }
    ended.front().waiter.request->reply_error(EINTR);
    return true;
}

void LockWaiters::interrupt_all() {
    std::list<Entry> ended;
    {
        const std::scoped_lock lock(mutex_);
        ended.swap(entries_);
    }
    for (Entry& entry : ended) entry.waiter.request->reply_error(EINTR);
}

void LockWaiters::run() {
    constexpr std::chrono::milliseconds kLongest{20};
    std::unique_lock lock(mutex_);
    while (!stop_) {
        if (entries_.empty()) {
            changed_.wait(lock);
            continue;
        }
        const auto soonest = std::ranges::min_element(entries_, {}, &Entry::next)->next;
        if (!woken_) changed_.wait_until(lock, soonest);
        const bool all = std::exchange(woken_, false);
        const auto now = std::chrono::steady_clock::now();
        // Attempts are short and take no lock of ours: held across them, so that interrupt() finds each or its reply.
        std::list<std::pair<Entry, int>> ended;
        for (auto it = entries_.begin(); it != entries_.end();) {
            const auto entry = it++;
            if (!all && entry->next > now) continue;
            const int error = attempt_(context_, entry->waiter);
            if (error == EAGAIN) {
                entry->backoff = std::min(entry->backoff * 2, kLongest);
                entry->next = now + entry->backoff;
                continue;
            }
            ended.emplace_back(std::move(*entry), error);
            entries_.erase(entry);
        }
        if (ended.empty()) continue;
        lock.unlock();
        for (auto& [entry, error] : ended) {
            if (error == 0) {
                entry.waiter.request->reply_ok();
            } else {
                entry.waiter.request->reply_error(error);
            }
        }
        ended.clear();
        lock.lock();
    }
}

}  // namespace farhaul::backend::mirror
