// The files under a temporary name that a receiver writes to: `.NAME.farhaul-XXXXXXXX.part`.
//
// Whoever writes one holds an flock on it for as long as it is open. The kernel drops the lock when the process ends,
// however it ends, so a part file whose lock can be taken belongs to nobody. A new part file is not locked for a
// moment: its maker checks that it still has its name once it has the lock. File systems without locks keep what is
// stale.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace farhaul::app::transfer {

/// A fresh one, with `name` cut so that the whole is a legal name.
std::string part_name(std::string_view name);
bool is_part_name(std::string_view name);

/// For the maker of a part file: false when somebody took it for a stale one, so that it must not be used.
bool lock_part(int fd);

/// Removes this user's part files that nobody writes to in `folder`; with `depth` > 0 also in the folders inside it,
/// that many levels down, on the same file system and never through symbolic links. `most_entries`: gives up after it
/// has seen so many names. Returns how many files were removed.
std::size_t remove_stale_parts(int folder, std::size_t depth, std::size_t most_entries);

}  // namespace farhaul::app::transfer
