// Getting a FUSE connection mounted, and taken away again: by mount(2) as root, by fusermount3(1) otherwise.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "hal/dev_fuse/mount.hpp"
#include "io/unique_fd.hpp"

namespace farhaul::hal {

/// A line of /proc/self/mountinfo.
struct MountEntry {
    std::string device_number;  ///< "0:52"
    std::string mountpoint;
    std::string type;
    std::string source;
};

/// The mounts of this process's namespace in the order in which they were made.
std::vector<MountEntry> mount_entries();
/// From the text of mountinfo; lines that make no sense are left out.
std::vector<MountEntry> parse_mountinfo(std::string_view text);
/// The topmost mount on `mountpoint`, an absolute path without links.
std::optional<MountEntry> mounted_on(const std::string& mountpoint);

/// `path` as an absolute path without links; works on a dead mount as well.
Result<std::string> resolve_mountpoint(const std::string& path);

/// Takes dead mounts of `type` off `mountpoint` (those whose server was killed: ENOTCONN). Returns how many there were.
Result<unsigned> remove_dead_mounts(const std::string& mountpoint, const std::string& type);

/// Mounts; the descriptor of /dev/fuse is non-blocking. `options.mountpoint` must be resolved.
Result<io::UniqueFd> attach_mount(const MountOptions& options);

/// Unmounts; `lazily`: also if in use (MNT_DETACH). EBUSY is told by kRetry, so that the caller can decide.
Status detach_mount(const std::string& mountpoint, bool lazily);

}  // namespace farhaul::hal
