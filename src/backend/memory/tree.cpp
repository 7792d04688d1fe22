#include "backend/memory/tree.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace farhaul::backend::memory {

namespace {

std::uint64_t inodes_of(const MemoryOptions& options) {
    if (options.max_inodes != 0) return options.max_inodes;
    return std::max<std::uint64_t>(options.size / kPageSize, 1024);
}

}  // namespace

Tree::Tree(const MemoryOptions& options, WallClock clock)
    : timeout_(options.timeout),
      clock_(std::move(clock)),
      pages_(options.size / kPageSize),
      inode_space_(std::min<std::uint64_t>(inodes_of(options), UINT64_MAX / kInodeSpace) * kInodeSpace) {
    auto root = std::make_shared<Inode>(fuse::kRootNode, S_IFDIR, pages_);
    root->permissions = options.mode & 07777;
    root->uid = options.uid;
    root->gid = options.gid;
    root->nlink = 2;
    root->size = 2 * kEntrySize;
    root->atime = root->mtime = root->ctime = root->btime = clock_();
    root->parent = root.get();
    root->entries = std::make_unique<Directory>();
    inode_space_.take(kInodeSpace);
    inodes_.emplace(root->id, std::move(root));
}

Answer<Inode*> Tree::find_locked(NodeId node) const {
    const auto found = inodes_.find(node);
    if (found == inodes_.end()) return std::unexpected(ESTALE);
    return found->second.get();
}

Answer<Inode*> Tree::find_directory(NodeId node) const {
    auto inode = find_locked(node);
    if (inode && !(*inode)->is_directory()) return std::unexpected(ENOTDIR);
    return inode;
}

Answer<Inode*> Tree::find_live_directory(NodeId node) const {
    auto inode = find_directory(node);
    if (inode && (*inode)->parent == nullptr) return std::unexpected(ENOENT);
    return inode;
}

Answer<InodePointer> Tree::find(NodeId node) const {
    const std::scoped_lock lock(mutex_);
    const auto inode = find_locked(node);
    if (!inode) return std::unexpected(inode.error());
    return (*inode)->shared_from_this();
}

fuse::Entry Tree::entry_of(Inode& inode) {
    ++inode.lookups;
    const std::shared_lock lock(inode.mutex);
    return {.node = inode.id,
            .generation = 1,  // numbers are not used twice
            .attributes = inode.attributes(),
            .attribute_timeout = timeout_,
            .entry_timeout = timeout_};
}

Answer<fuse::Entry> Tree::lookup(NodeId parent, std::string_view name) {
    const std::scoped_lock lock(mutex_);
    // "." is how a client that exports the file system asks for any node.
    if (name == ".") {
        const auto inode = find_locked(parent);
        if (!inode) return std::unexpected(inode.error());
        return entry_of(**inode);
    }
    const auto directory = find_directory(parent);
    if (!directory) return std::unexpected(directory.error());
    if (name == "..") {
        if ((*directory)->parent == nullptr) return std::unexpected(ENOENT);
        return entry_of(*(*directory)->parent);
    }
    if (name.size() > kLongestName) return std::unexpected(ENAMETOOLONG);
    Inode* inode = (*directory)->entries->find(name);
    if (inode == nullptr) {
        fuse::Entry none;
        none.entry_timeout = timeout_;
        return none;
    }
    return entry_of(*inode);
}

void Tree::end_if_unused(Inode& inode, Ended& ended) {
    if (inode.nlink != 0 || inode.lookups != 0 || inode.opens != 0) return;
    std::uint64_t space = kInodeSpace;
    {
        const std::scoped_lock lock(inode.mutex);  // whoever still works on it finds it empty of xattrs
        for (const auto& [name, value] : inode.xattrs) space += xattr_space(name, value.size());
        inode.xattrs.clear();
        inode.ended = true;
        pages_.give_back(std::exchange(inode.target_pages, 0));
    }
    inode_space_.give_back(space);
    const auto found = inodes_.find(inode.id);
    ended.push_back(std::move(found->second));
    inodes_.erase(found);
}

void Tree::forget(NodeId node, std::uint64_t count) {
    Ended ended;
    const std::scoped_lock lock(mutex_);
    const auto inode = find_locked(node);
    if (!inode) return;
    (*inode)->lookups -= std::min((*inode)->lookups, count);
    end_if_unused(**inode, ended);
}

void Tree::forget_all() {
    Ended ended;
    const std::scoped_lock lock(mutex_);
    std::vector<Inode*> nameless;
    for (auto& [id, inode] : inodes_) {
        inode->lookups = inode->opens = 0;
        if (inode->nlink == 0) nameless.push_back(inode.get());
    }
    for (Inode* inode : nameless) end_if_unused(*inode, ended);
}

Answer<InodePointer> Tree::open(NodeId node) {
    const std::scoped_lock lock(mutex_);
    const auto inode = find_locked(node);
    if (!inode) return std::unexpected(inode.error());
    ++(*inode)->opens;
    return (*inode)->shared_from_this();
}

void Tree::close(Inode& inode) {
    Ended ended;
    const std::scoped_lock lock(mutex_);
    if (inode.opens == 0) return;  // destroy() came first
    --inode.opens;
    end_if_unused(inode, ended);
}

fuse::FileSystemStatistics Tree::statistics() const {
    fuse::FileSystemStatistics statistics;
    statistics.blocks = pages_.limit();
    statistics.blocks_free = statistics.blocks_available = pages_.limit() - pages_.used();
    statistics.files = inode_space_.limit() / kInodeSpace;
    statistics.files_free = (inode_space_.limit() - inode_space_.used()) / kInodeSpace;
    statistics.block_size = statistics.fragment_size = kPageSize;
    statistics.name_length = kLongestName;
    return statistics;
}

}  // namespace farhaul::backend::memory
