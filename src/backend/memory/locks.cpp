#include "backend/memory/locks.hpp"

#include <algorithm>
#include <cerrno>
#include <set>

#include <fcntl.h>

namespace farhaul::backend::memory {

namespace {

bool overlap(std::uint64_t a_start, std::uint64_t a_end, std::uint64_t b_start, std::uint64_t b_end) {
    return a_start <= b_end && b_start <= a_end;
}

/// Overlap, or touch.
bool adjoin(std::uint64_t a_start, std::uint64_t a_end, std::uint64_t b_start, std::uint64_t b_end) {
    return (b_end == UINT64_MAX || a_start <= b_end + 1) && (a_end == UINT64_MAX || b_start <= a_end + 1);
}

bool types_conflict(std::uint32_t a, std::uint32_t b) { return a == F_WRLCK || b == F_WRLCK; }

}  // namespace

void Locks::send(const Replies& replies) {
    for (const Reply& reply : replies) {
        if (reply.error == 0) {
            reply.request->reply_ok();
        } else {
            reply.request->reply_error(reply.error);
        }
    }
}

fuse::FileLock Locks::test(fuse::NodeId node, std::uint64_t owner, const fuse::FileLock& asked) const {
    const std::scoped_lock lock(mutex_);
    const auto file = files_.find(node);
    if (file != files_.end() && asked.type != F_UNLCK) {
        for (const Holder& holder : file->second.records) {
            if (holder.owner == owner) continue;
            for (const Range& range : holder.ranges) {
                if (types_conflict(range.type, asked.type) && overlap(range.start, range.end, asked.start, asked.end))
                    return {.start = range.start, .end = range.end, .type = range.type, .pid = range.pid};
            }
        }
    }
    return {.start = asked.start, .end = asked.end, .type = F_UNLCK, .pid = 0};
}

std::vector<std::uint64_t> Locks::blockers(const File& file, const Asked& asked) {
    std::vector<std::uint64_t> owners;
    if (asked.lock.type == F_UNLCK) return owners;
    for (const Holder& holder : asked.flock ? file.flocks : file.records) {
        if (holder.owner == asked.owner) continue;
        const bool blocks = std::ranges::any_of(holder.ranges, [&](const Range& range) {
            return types_conflict(range.type, asked.lock.type) &&
                   overlap(range.start, range.end, asked.lock.start, asked.lock.end);
        });
        if (blocks) owners.push_back(holder.owner);
    }
    return owners;
}

bool Locks::deadlocks(const File& file, const Asked& asked) const {
    std::vector<std::uint64_t> to_visit = blockers(file, asked);
    std::set<std::uint64_t> visited;
    while (!to_visit.empty()) {
        const std::uint64_t owner = to_visit.back();
        to_visit.pop_back();
        if (owner == asked.owner) return true;
        if (!visited.insert(owner).second) continue;
        const auto [first, last] = waiting_owners_.equal_range(owner);
        for (auto it = first; it != last; ++it) {
            const Asked& waiting = it->second->asked;
            const auto next = blockers(files_.at(waiting.node), waiting);
            to_visit.insert(to_visit.end(), next.begin(), next.end());
        }
    }
    return false;
}

void Locks::drop_holder(std::vector<Holder>& holders, std::uint64_t owner) {
    const auto holder = std::ranges::find(holders, owner, &Holder::owner);
    if (holder == holders.end()) return;
    held_ -= holder->ranges.size();
    holders.erase(holder);
}

int Locks::set_record(File& file, const Asked& asked) {
    if (!blockers(file, asked).empty()) return EAGAIN;
    auto holder = std::ranges::find(file.records, asked.owner, &Holder::owner);
    const bool known = holder != file.records.end();
    if (!known && asked.lock.type == F_UNLCK) return 0;
    Range fresh{asked.lock.start, asked.lock.end, asked.lock.type, asked.lock.pid, asked.handle};
    std::vector<Range> ranges;
    const std::size_t before = known ? holder->ranges.size() : 0;
    for (std::size_t i = 0; i < before; ++i) {
        const Range& old = holder->ranges[i];
        if (old.type == fresh.type) {
            if (adjoin(old.start, old.end, asked.lock.start, asked.lock.end)) {
                fresh.start = std::min(fresh.start, old.start);
                fresh.end = std::max(fresh.end, old.end);
            } else {
                ranges.push_back(old);
            }
            continue;
        }
        if (!overlap(old.start, old.end, asked.lock.start, asked.lock.end)) {
            ranges.push_back(old);
            continue;
        }
        if (old.start < asked.lock.start) {
            ranges.push_back(old);
            ranges.back().end = asked.lock.start - 1;
        }
        if (old.end > asked.lock.end) {
            ranges.push_back(old);
            ranges.back().start = asked.lock.end + 1;
        }
    }
    if (fresh.type != F_UNLCK) ranges.insert(std::ranges::upper_bound(ranges, fresh.start, {}, &Range::start), fresh);
    if (ranges.size() > before && held_ + (ranges.size() - before) > limit_) return ENOLCK;
    held_ = held_ - before + ranges.size();
    if (ranges.empty()) {
        file.records.erase(holder);
    } else if (known) {
        holder->ranges = std::move(ranges);
    } else {
        file.records.push_back({.owner = asked.owner, .ranges = std::move(ranges)});
    }
    return 0;
}

int Locks::set_flock(File& file, const Asked& asked) {
    const auto holder = std::ranges::find(file.flocks, asked.owner, &Holder::owner);
    if (holder != file.flocks.end() && holder->ranges.front().type == asked.lock.type) return 0;
    drop_holder(file.flocks, asked.owner);
    if (asked.lock.type == F_UNLCK) return 0;
    if (!blockers(file, asked).empty()) return EAGAIN;
    if (held_ >= limit_) return ENOLCK;
    ++held_;
    file.flocks.push_back(
        {.owner = asked.owner,
         .ranges = {{asked.lock.start, asked.lock.end, asked.lock.type, asked.lock.pid, asked.handle}}});
    return 0;
}

int Locks::try_set(File& file, const Asked& asked) {
    return asked.flock ? set_flock(file, asked) : set_record(file, asked);
}

void Locks::enqueue(File& file, fuse::Request& request, const Asked& asked) {
    file.waiters.push_back({.request = &request, .unique = request.unique(), .asked = asked});
    const Waiter& waiter = file.waiters.back();
    if (!asked.flock) waiting_owners_.emplace(asked.owner, &waiter);
    waiting_requests_[waiter.unique] = asked.node;
}

std::list<Locks::Waiter>::iterator Locks::dequeue(File& file, std::list<Waiter>::iterator waiter) {
    const auto [first, last] = waiting_owners_.equal_range(waiter->asked.owner);
    for (auto it = first; it != last; ++it) {
        if (it->second == &*waiter) {
            waiting_owners_.erase(it);
            break;
        }
    }
    waiting_requests_.erase(waiter->unique);
    return file.waiters.erase(waiter);
}

void Locks::retry(File& file, Replies& replies) {
    // Again after a success: it may have turned a lock of the same owner into a weaker one.
    for (bool progress = true; progress;) {
        progress = false;
        for (auto waiter = file.waiters.begin(); waiter != file.waiters.end();) {
            int error = try_set(file, waiter->asked);
            if (error == EAGAIN && !waiter->asked.flock && deadlocks(file, waiter->asked)) error = EDEADLK;
            if (error == EAGAIN) {
                ++waiter;
                continue;
            }
            progress |= error == 0;
            replies.push_back({waiter->request, error});
            waiter = dequeue(file, waiter);
        }
    }
}

void Locks::set(fuse::Request& request, const Asked& asked) {
    if (asked.lock.start > asked.lock.end ||
        (asked.lock.type != F_RDLCK && asked.lock.type != F_WRLCK && asked.lock.type != F_UNLCK))
        return request.reply_error(EINVAL);
    Replies replies;
    {
        const std::scoped_lock lock(mutex_);
        File& file = files_[asked.node];
        int error = try_set(file, asked);
        bool waits = false;
        if (error == EAGAIN && asked.wait) {
            if (!asked.flock && deadlocks(file, asked)) {
                error = EDEADLK;
            } else {
                waits = true;
            }
        }
        if (!waits) replies.push_back({&request, error});
        retry(file, replies);
        // Last in the queue, and behind the others that its own giving up let go on.
        if (waits) {
            error = try_set(file, asked);
            if (error == EAGAIN) {
                enqueue(file, request, asked);
            } else {
                replies.push_back({&request, error});
            }
        }
        if (file.unused()) files_.erase(asked.node);
    }
    send(replies);
}

bool Locks::interrupt(std::uint64_t unique) {
    Replies replies;
    {
        const std::scoped_lock lock(mutex_);
        const auto waiting = waiting_requests_.find(unique);
        if (waiting == waiting_requests_.end()) return false;
        const fuse::NodeId node = waiting->second;
        File& file = files_.at(node);
        const auto waiter = std::ranges::find(file.waiters, unique, &Waiter::unique);
        if (waiter == file.waiters.end()) return false;
        replies.push_back({waiter->request, EINTR});
        dequeue(file, waiter);
        if (file.unused()) files_.erase(node);
    }
    send(replies);
    return true;
}

template <typename Drop>
void Locks::drop(fuse::NodeId node, Drop&& drop) {
    Replies replies;
    {
        const std::scoped_lock lock(mutex_);
        const auto found = files_.find(node);
        if (found == files_.end()) return;
        File& file = found->second;
        drop(file, replies);
        retry(file, replies);
        if (file.unused()) files_.erase(found);
    }
    send(replies);
}

void Locks::drop_owner(fuse::NodeId node, std::uint64_t owner) {
    drop(node, [&](File& file, Replies&) { drop_holder(file.records, owner); });
}

void Locks::drop_flock(fuse::NodeId node, std::uint64_t owner) {
    drop(node, [&](File& file, Replies&) { drop_holder(file.flocks, owner); });
}

void Locks::drop_handle(fuse::NodeId node, fuse::Handle handle) {
    drop(node, [&](File& file, Replies& replies) {
        for (auto* holders : {&file.records, &file.flocks}) {
            for (Holder& holder : *holders)
                held_ -= std::erase_if(holder.ranges, [&](const Range& range) { return range.handle == handle; });
            std::erase_if(*holders, [](const Holder& holder) { return holder.ranges.empty(); });
        }
        for (auto waiter = file.waiters.begin(); waiter != file.waiters.end();) {
            if (waiter->asked.handle != handle) {
                ++waiter;
                continue;
            }
            replies.push_back({waiter->request, EBADF});
            waiter = dequeue(file, waiter);
        }
    });
}

void Locks::clear() {
    Replies replies;
    {
        const std::scoped_lock lock(mutex_);
        for (auto& [node, file] : files_) {
            for (const Waiter& waiter : file.waiters) replies.push_back({waiter.request, ENOTCONN});
        }
        waiting_owners_.clear();
        waiting_requests_.clear();
        files_.clear();
        held_ = 0;
    }
    send(replies);
}

}  // namespace farhaul::backend::memory
