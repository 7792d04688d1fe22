// The host's file handles as strings: the handle's type, then its bytes. They never reach the client.
#pragma once

#include <string>

#include "backend/mirror/fd.hpp"

namespace farhaul::backend::mirror {

/// Of `name` in `directory`, not following a symlink, or of `directory` itself if the name is empty. Empty: there is
/// none.
std::string file_handle_of(int directory, const char* name);
/// An O_PATH descriptor; `mount`: an open file or directory of the same mount. -1 and errno.
int open_file_handle(int mount, const std::string& handle);
/// Does the kernel let us use handles of this file system? `fd`: O_PATH of a directory.
bool can_use_file_handles(int fd);

}  // namespace farhaul::backend::mirror
