// POSIX access control lists: their form in extended attributes, and what the kernel expects a file system to do with
// them (fs/posix_acl.c has the same algorithms). Checking permissions is the client kernel's part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <vector>

namespace farhaul::backend::memory {

struct AclEntry {
    std::uint16_t tag = 0;   ///< AclTag
    std::uint16_t perm = 0;  ///< rwx
    std::uint32_t id = 0;    ///< of kUser and kGroup; otherwise ~0
};

/// In the order that the attribute demands: owner, users, group, groups, mask, others.
using Acl = std::vector<AclEntry>;

/// From the value of system.posix_acl_*: a valid list, empty if it has no entries; EINVAL, or EOPNOTSUPP for another
/// version.
std::expected<Acl, int> parse_acl(std::span<const std::byte> value);
std::vector<std::byte> format_acl(const Acl& acl);

/// The permissions (0777) that the list comes down to in st_mode, and whether they say everything that it does.
struct AclMode {
    std::uint32_t permissions = 0;
    bool complete = false;
};
AclMode mode_of(const Acl& acl);

/// chmod(2) of something that has the list.
void change_mode(Acl& acl, std::uint32_t permissions);

/// Something with `permissions` is made below a directory with this default list: the permissions that it gets, and its
/// own access list unless the permissions say it all.
struct Inherited {
    std::uint32_t permissions = 0;
    std::optional<Acl> access;
};
Inherited inherit(const Acl& default_acl, std::uint32_t permissions);

}  // namespace farhaul::backend::memory
