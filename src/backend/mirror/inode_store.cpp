#include "backend/mirror/inode_store.hpp"

#include <cerrno>
#include <utility>
#include <vector>

#include <linux/openat2.h>
#include <sys/syscall.h>

#include "backend/mirror/file_handle.hpp"
#include "backend/mirror/locks.hpp"

namespace farhaul::backend::mirror {

int stat_fd(int fd, struct statx& stat) {
    return ::statx(fd, "", AT_EMPTY_PATH | AT_STATX_SYNC_AS_STAT, kStatMask, &stat) == 0 ? 0 : errno;
}

int open_path_beneath(int directory, const char* name) {
    open_how how{};
    how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS;
    return static_cast<int>(::syscall(SYS_openat2, directory, name, &how, sizeof(how)));
}

Inode::Inode() = default;

Inode::~Inode() {
    const int fd = fd_.load(std::memory_order_relaxed);
    if (fd >= 0) {
        ::close(fd);
        if (counted_in_ != nullptr) counted_in_->pinned_.fetch_sub(1, std::memory_order_relaxed);
    }
    // A chain of places may be as long as a path is deep: taken apart here, not by recursion.
    InodePtr parent = std::move(parent_);
    while (parent != nullptr && parent.use_count() == 1) parent = std::exchange(parent->parent_, nullptr);
}

// ---- Inode numbers.

std::uint64_t InodeNumbers::shown(std::uint64_t dev, std::uint64_t ino) {
    const bool fits = ino >> kIndexShift == 0;
    {
        const std::shared_lock lock(mutex_);
        const auto device = devices_.find(dev);
        if (device != devices_.end() && fits && device->second < kTableIndex)
            return device->second << kIndexShift | ino;
        if (const auto known = table_.find({dev, ino, 0}); known != table_.end()) return known->second;
    }
    const std::scoped_lock lock(mutex_);
    const std::uint64_t index = devices_.try_emplace(dev, devices_.size()).first->second;
    if (fits && index < kTableIndex) return index << kIndexShift | ino;
    return table_.try_emplace({dev, ino, 0}, kTableIndex << kIndexShift | (table_.size() + 1)).first->second;
}

// ---- The store.

InodeStore::InodeStore(Fd root, const struct statx& stat, Options options) : options_(options) {
    root_ = std::make_shared<Inode>();
    root_->id = fuse::kRootNode;
    root_->key = key_of(stat);
    root_->type = stat.stx_mode & S_IFMT;
    root_->shown = numbers_.shown(root_->key.dev, root_->key.ino);
    root_->birth = stat.stx_btime;
    root_->fd_ = root.release();
    clear();
}

InodeStore::~InodeStore() {
    for (Shard& shard : shards_) {
        shard.by_key.clear();
        shard.by_id.clear();
    }
}

void InodeStore::clear() {
    for (Shard& shard : shards_) {
        std::unordered_map<InodeKey, InodePtr, InodeKeyHash> by_key;
        std::unordered_map<fuse::NodeId, InodePtr> by_id;
        const std::scoped_lock lock(shard.mutex);
        // Destroyed after the lock is gone: closing may take a while.
        by_key.swap(shard.by_key);
        by_id.swap(shard.by_id);
    }
    Shard& by_key = shards_[shard_of(root_->key)];
    {
        const std::scoped_lock lock(by_key.mutex);
        by_key.by_key.emplace(root_->key, root_);
    }
    const std::scoped_lock lock(shards_[root_->id % kShards].mutex);
    shards_[root_->id % kShards].by_id.emplace(root_->id, root_);
}

std::size_t InodeStore::known() {
    std::size_t count = 0;
    for (Shard& shard : shards_) {
        const std::scoped_lock lock(shard.mutex);
        count += shard.by_id.size();
    }
    return count;
}

InodePtr InodeStore::find(fuse::NodeId id) {
    if (id == fuse::kRootNode) return root_;
    Shard& shard = shards_[id % kShards];
    const std::scoped_lock lock(shard.mutex);
    const auto found = shard.by_id.find(id);
    return found == shard.by_id.end() ? nullptr : found->second;
}

void InodeStore::add_lookup(Inode& inode) {
    const std::scoped_lock lock(shards_[inode.id % kShards].mutex);
    ++inode.lookups_;
}

void InodeStore::forget(fuse::NodeId id, std::uint64_t count) {
    if (id == fuse::kRootNode) return;
    InodePtr gone;  // destroyed without the lock
    Shard& shard = shards_[id % kShards];
    const std::scoped_lock lock(shard.mutex);
    const auto found = shard.by_id.find(id);
    if (found == shard.by_id.end()) return;
    Inode& inode = *found->second;
    inode.lookups_ -= std::min(count, inode.lookups_);
    if (inode.lookups_ != 0) return;
    gone = std::move(found->second);
    shard.by_id.erase(found);
    // Its number may belong to another inode by now.
    if (const auto keyed = shard.by_key.find(gone->key); keyed != shard.by_key.end() && keyed->second == gone)
        shard.by_key.erase(keyed);
}

std::shared_ptr<Mount> InodeStore::mount_of(std::uint64_t id, int fd, std::uint32_t type) {
    const std::scoped_lock lock(mounts_mutex_);
    std::weak_ptr<Mount>& known = mounts_[id];
    if (auto mount = known.lock()) return mount;
    // The first that is seen of a mount is its root; anything that can be opened without side effects will do.
    if (type != S_IFDIR && type != S_IFREG) return nullptr;
    auto mount = std::make_shared<Mount>();
    mount->fd.reset(reopen(fd, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!mount->fd) return nullptr;
    known = mount;
    return mount;
}

bool InodeStore::is_same(Inode& known, const std::string& handle, const struct statx& stat) const {
    if (known.fd_.load(std::memory_order_acquire) >= 0) return true;
    if (known.type != (stat.stx_mode & S_IFMT)) return false;
    if (!known.handle_.empty()) return known.handle_ == handle;
    return known.birth.tv_sec == stat.stx_btime.tv_sec && known.birth.tv_nsec == stat.stx_btime.tv_nsec;
}

void InodeStore::set_place(Inode& inode, const InodePtr& directory, const char* name) {
    if (name == nullptr || !by_place(inode)) return;
    InodePtr old;
    const std::scoped_lock lock(inode.mutex);
    old = std::exchange(inode.parent_, directory);
    inode.name_ = name;
}

void InodeStore::moved(const InodePtr& directory, int directory_fd, const char* name) {
    if (!some_unpinned_.load(std::memory_order_relaxed)) return;
    struct statx stat;
    if (::statx(directory_fd, name, AT_SYMLINK_NOFOLLOW, kStatMask, &stat) != 0) return;
    const InodeKey key = key_of(stat);
    InodePtr inode;
    {
        Shard& shard = shards_[shard_of(key)];
        const std::scoped_lock lock(shard.mutex);
        if (const auto found = shard.by_key.find(key); found != shard.by_key.end()) inode = found->second;
    }
    if (inode != nullptr && inode != directory) set_place(*inode, directory, name);
}

void InodeStore::losing(int directory_fd, const char* name) {
    if (!some_unpinned_.load(std::memory_order_relaxed)) return;
    struct statx stat;
    if (::statx(directory_fd, name, AT_SYMLINK_NOFOLLOW, kStatMask, &stat) != 0) return;
    if (stat.stx_nlink > 1 && (stat.stx_mode & S_IFMT) != S_IFDIR) return;
    InodePtr inode;
    {
        const InodeKey key = key_of(stat);
        Shard& shard = shards_[shard_of(key)];
        const std::scoped_lock lock(shard.mutex);
        if (const auto found = shard.by_key.find(key); found != shard.by_key.end()) inode = found->second;
    }
    if (inode == nullptr || inode->fd_.load(std::memory_order_acquire) >= 0) return;
    // Of a regular file too: what it is open with may be closed before the client forgets it.
    Fd fd(open_path_beneath(directory_fd, name));
    struct statx again;
    if (!fd || stat_fd(fd.get(), again) != 0 || !(key_of(again) == inode->key)) return;
    const std::string handle = inode->handle_.empty() ? std::string() : file_handle_of(fd.get(), "");
    if (!is_same(*inode, handle, again)) return;
    const std::scoped_lock lock(inode->mutex);
    if (inode->fd_.load(std::memory_order_acquire) >= 0) return;
    inode->counted_in_ = this;
    pinned_.fetch_add(1, std::memory_order_relaxed);
    inode->fd_.store(fd.release(), std::memory_order_release);
}

int InodeStore::look_up(const InodePtr& directory, int directory_fd, const char* name, InodePtr& inode,
                        struct statx& stat) {
    if (::statx(directory_fd, name, AT_SYMLINK_NOFOLLOW | AT_STATX_SYNC_AS_STAT, kStatMask, &stat) != 0) return errno;
    // One system call for what is known already: a pinned inode's number is not used again.
    const InodeKey key = key_of(stat);
    Shard& shard = shards_[shard_of(key)];
    InodePtr known;
    {
        const std::scoped_lock lock(shard.mutex);
        if (const auto found = shard.by_key.find(key); found != shard.by_key.end()) {
            if (found->second->fd_.load(std::memory_order_acquire) >= 0) {
                inode = found->second;
                ++inode->lookups_;
                return 0;
            }
            known = found->second;
        }
    }
    if (known != nullptr) {
        const std::string handle = known->handle_.empty() ? std::string() : file_handle_of(directory_fd, name);
        if (is_same(*known, handle, stat)) {
            const std::scoped_lock lock(shard.mutex);
            const auto found = shard.by_key.find(key);
            if (found != shard.by_key.end() && found->second == known) {
                ++known->lookups_;
                inode = std::move(known);
            }
        }
        if (inode != nullptr) {
            set_place(*inode, directory, name);
            return 0;
        }
    }
    Fd fd(open_path_beneath(directory_fd, name));
    if (!fd) return errno;
    return enter(std::move(fd), directory, name, inode, stat);
}

int InodeStore::enter(Fd fd, const InodePtr& directory, const char* name, InodePtr& inode, struct statx& stat) {
    if (const int error = stat_fd(fd.get(), stat); error != 0) return error;
    enter_known(std::move(fd), directory, name, inode, stat);
    return 0;
}

void InodeStore::enter_known(Fd fd, const InodePtr& directory, const char* name, InodePtr& inode,
                             const struct statx& stat) {
    const InodeKey key = key_of(stat);
    auto fresh = std::make_shared<Inode>();
    fresh->key = key;
    fresh->type = stat.stx_mode & S_IFMT;
    fresh->shown = numbers_.shown(key.dev, key.ino);
    fresh->birth = stat.stx_btime;
    fresh->submount = options_.announce_submounts && fresh->is_directory() && directory != nullptr &&
                      (key.mount != directory->key.mount || key.dev != directory->key.dev);
    const bool room = pinned_.fetch_add(1, std::memory_order_relaxed) < options_.max_pinned;
    if (!room && options_.use_handles) {
        fresh->handle_ = file_handle_of(fd.get(), "");
        if (!fresh->handle_.empty()) fresh->mount_ = mount_of(key.mount, fd.get(), fresh->type);
        if (fresh->mount_ == nullptr) fresh->handle_.clear();
    }
    // Without a name there is no place: pinned whatever the limit says, as is anything in "always" without a handle.
    if (room || (fresh->handle_.empty() && (name == nullptr || options_.max_pinned == 0))) {
        fresh->fd_ = fd.release();
        fresh->counted_in_ = this;
    } else {
        pinned_.fetch_sub(1, std::memory_order_relaxed);
        some_unpinned_.store(true, std::memory_order_relaxed);
        set_place(*fresh, directory, name);
    }

    InodePtr replaced;  // destroyed without the lock, as is a `fresh` that is not needed
    const std::size_t number = shard_of(key);
    Shard& shard = shards_[number];
    std::string handle = fresh->handle_;
    {
        std::unique_lock lock(shard.mutex);
        if (const auto found = shard.by_key.find(key); found != shard.by_key.end()) {
            InodePtr known = found->second;
            if (!known->handle_.empty() && handle.empty()) {
                lock.unlock();
                const int own = fresh->fd_.load(std::memory_order_relaxed);
                handle = file_handle_of(own >= 0 ? own : fd.get(), "");
                lock.lock();
            }
            const auto again = shard.by_key.find(key);
            if (again != shard.by_key.end() && again->second == known && is_same(*known, handle, stat)) {
                ++known->lookups_;
                inode = std::move(known);
                lock.unlock();
                return set_place(*inode, directory, name);
            }
        }
        // 1 is the root's; the numbers of shard 1 begin with 65.
        fresh->id = shard.next++ * kShards + number;
        fresh->lookups_ = 1;
        shard.by_id.emplace(fresh->id, fresh);
        InodePtr& keyed = shard.by_key[key];
        replaced = std::exchange(keyed, fresh);
    }
    inode = std::move(fresh);
}

// ---- Descriptors.

int InodeStore::open_by_handle(const Inode& inode, Fd& to) const {
    to.reset(open_file_handle(inode.mount_->fd.get(), inode.handle_));
    if (!to) return errno;
    struct stat stat;
    if (::fstat(to.get(), &stat) != 0) return errno;
    return (stat.st_mode & S_IFMT) == inode.type ? 0 : ESTALE;
}

int InodeStore::open_by_place(Inode& inode, Fd& to) {
    // Up to something that has a descriptor or a handle, then down again with one descriptor at a time.
    struct Step {
        InodePtr parent;
        std::string name;
        Inode* inode;
    };
    std::vector<Step> steps;
    Inode* at = &inode;
    do {
        constexpr std::size_t kDeepest = 1 << 16;  // places that lead in a circle
        if (steps.size() == kDeepest) return ESTALE;
        Step step;
        {
            const std::scoped_lock lock(at->mutex);
            step = {at->parent_, at->name_, at};
        }
        if (step.parent == nullptr) return ESTALE;
        at = step.parent.get();
        steps.push_back(std::move(step));
    } while (by_place(*at));
    PathFd current;
    if (const int error = path(*at, current); error != 0) return error;
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
        Fd next(open_path_beneath(current.get(), step->name.c_str()));
        if (!next) return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? ESTALE : errno;
        struct statx stat;
        if (const int error = stat_fd(next.get(), stat); error != 0) return error;
        if (!(key_of(stat) == step->inode->key) || !is_same(*step->inode, step->inode->handle_, stat)) return ESTALE;
        if (step + 1 == steps.rend()) {
            to = std::move(next);
            return 0;
        }
        current.own(std::move(next));
    }
    return ESTALE;
}

int InodeStore::path(Inode& inode, PathFd& to) {
    const int fd = inode.fd_.load(std::memory_order_acquire);
    if (fd >= 0) {
        to.borrow(fd);
        return 0;
    }
    if (inode.handle_.empty()) {
        const std::scoped_lock lock(inode.mutex);
        for (const Inode::Use& use : inode.uses_) {
            if (auto keeper = use.file.lock()) {
                to.borrow(use.fd, std::move(keeper));
                return 0;
            }
        }
    }
    Fd opened;
    const int error = inode.handle_.empty() ? open_by_place(inode, opened) : open_by_handle(inode, opened);
    if (error == 0) to.own(std::move(opened));
    return error;
}

void InodeStore::opened(Inode& inode, std::shared_ptr<const void> file, int fd) {
    if (!by_place(inode)) return;
    const std::scoped_lock lock(inode.mutex);
    std::erase_if(inode.uses_, [](const Inode::Use& use) { return use.file.expired(); });
    inode.uses_.push_back({std::move(file), fd});
}

}  // namespace farhaul::backend::mirror
