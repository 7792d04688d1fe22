#include "backend/memory/directory.hpp"

#include <cassert>

namespace farhaul::backend::memory {

Inode* Directory::find(std::string_view name) const {
    const auto found = names_.find(name);
    return found == names_.end() ? nullptr : items_.find(found->second)->second.inode;
}

void Directory::add(std::string_view name, Inode& inode) {
    const std::uint64_t cookie = next_cookie_++;
    const auto item = items_.emplace_hint(items_.end(), cookie, Item{std::string(name), &inode});
    names_.emplace(item->second.name, cookie);
}

void Directory::remove(std::string_view name) {
    const auto found = names_.find(name);
    assert(found != names_.end());
    const std::uint64_t cookie = found->second;
    names_.erase(found);  // first: its key lies in the item
    items_.erase(cookie);
}

void Directory::replace(std::string_view name, Inode& inode) {
    const auto found = names_.find(name);
    assert(found != names_.end());
    items_.find(found->second)->second.inode = &inode;
}

void Directory::rename(std::string_view name, std::string_view new_name) {
    const auto found = names_.find(name);
    assert(found != names_.end());
    const std::uint64_t cookie = found->second;
    names_.erase(found);
    Item& item = items_.find(cookie)->second;
    item.name = new_name;
    names_.emplace(item.name, cookie);
}

}  // namespace farhaul::backend::memory
