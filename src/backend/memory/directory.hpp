// The entries of one directory, by name and by cookie.
//
// A cookie is the position of an entry in listings: given once, in order, never changed while the entry's name or inode
// stays, never used again. Listings go from the newest entry to the oldest, as on tmpfs. So an entry that is deleted
// moves no other one; one that is added meanwhile lies behind the reader and a listing always ends; one that is renamed
// within its directory keeps its place and is seen once; and a name whose inode is replaced keeps its place too.
//
// No lock: the tree that it is a part of has one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace farhaul::backend::memory {

struct Inode;

class Directory {
 public:
    /// Cookies of "." and "..": those of entries are above.
    static constexpr std::uint64_t kDot = 1;
    static constexpr std::uint64_t kDotDot = 2;

    struct Item {
        std::string name;
        Inode* inode;
    };

    bool empty() const { return items_.empty(); }
    std::uint64_t size() const { return items_.size(); }
    /// nullptr: there is no such name.
    Inode* find(std::string_view name) const;
    /// The name is not there yet.
    void add(std::string_view name, Inode& inode);
    // The names are there.
    void remove(std::string_view name);
    void replace(std::string_view name, Inode& inode);
    /// `new_name` is not there.
    void rename(std::string_view name, std::string_view new_name);

    /// Calls visit(cookie, item) for the entries with cookies below `cookie`, from the highest on, until it returns
    /// false.
    template <typename Visit>
    void list_below(std::uint64_t cookie, Visit&& visit) const {
        auto it = items_.lower_bound(cookie);
        while (it != items_.begin()) {
            --it;
            if (!visit(it->first, it->second)) return;
        }
    }

 private:
    std::map<std::uint64_t, Item> items_;
    std::map<std::string_view, std::uint64_t> names_;  // the names are those in items_
    std::uint64_t next_cookie_ = kDotDot + 1;
};

}  // namespace farhaul::backend::memory
