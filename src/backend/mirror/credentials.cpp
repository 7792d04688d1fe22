#include "backend/mirror/credentials.hpp"

#include <cerrno>
#include <fstream>
#include <span>

#include <linux/capability.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace farhaul::backend::mirror {

namespace {

struct Capabilities {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct data[2]{};
    bool get() { return ::syscall(SYS_capget, &header, data) == 0; }
    bool set() { return ::syscall(SYS_capset, &header, data) == 0; }
};

bool has_effective(const Capabilities& capabilities, unsigned capability) {
    return (capabilities.data[capability / 32].effective >> (capability % 32) & 1) != 0;
}

// Those of the process at its start: a thread's are put back to them.
struct Own {
    std::uint32_t uid, gid;
};
const Own& own() {
    static const Own identity{::geteuid(), ::getegid()};
    return identity;
}

// setgroups(2) of the C library is for all threads of the process; the system call is for this one.
bool set_groups(std::span<const gid_t> groups) { return ::syscall(SYS_setgroups, groups.size(), groups.data()) == 0; }

bool maps_all(const char* path) {
    std::ifstream map(path);
    std::uint64_t inside = 1, outside = 1, count = 0;
    return map >> inside >> outside >> count && inside == 0 && outside == 0 && count == UINT32_MAX;
}

}  // namespace

Privilege Privilege::of_this_thread() {
    own();
    Privilege privilege;
    Capabilities capabilities;
    if (capabilities.get())
        privilege.change_identity = has_effective(capabilities, CAP_SETUID) && has_effective(capabilities, CAP_SETGID);
    privilege.all_ids = maps_all("/proc/self/uid_map") && maps_all("/proc/self/gid_map");
    privilege.own_umask = prepare_thread();
    return privilege;
}

// Changed only when the next caller's differs: nothing but CreationScope lets this thread create something.
thread_local std::uint32_t umask_in_force = 0;

bool prepare_thread() {
    thread_local const bool own_umask = [] {
        const bool unshared = ::unshare(CLONE_FS) == 0;
        ::umask(0);
        // The daemon's own groups must not pass for the caller's.
        if (own().uid == 0) set_groups({});
        return unshared;
    }();
    return own_umask;
}

CreationScope::CreationScope(const Privilege& privilege, const Identity& identity, std::uint32_t umask) {
    umask &= 0777;
    if (prepare_thread() && umask != umask_in_force) {
        ::umask(static_cast<mode_t>(umask));
        umask_in_force = umask;
    }
    if (!privilege.change_identity) return;
    // Groups and gid first: without the uid's privileges they cannot be changed.
    if (identity.group) {
        const gid_t group = *identity.group;
        changed_groups_ = set_groups({&group, 1});
        if (!changed_groups_) error_ = errno;
    }
    if (identity.gid != own().gid) {
        ::setfsgid(identity.gid);
        changed_gid_ = true;
    }
    if (identity.uid != own().uid) {
        ::setfsuid(identity.uid);
        changed_uid_ = true;
    }
    if (privilege.all_ids) return;
    // These two report nothing but what was in force before.
    const auto in_force_gid = changed_gid_ ? static_cast<std::uint32_t>(::setfsgid(identity.gid)) : identity.gid;
    const auto in_force_uid = changed_uid_ ? static_cast<std::uint32_t>(::setfsuid(identity.uid)) : identity.uid;
    if (in_force_gid != identity.gid || in_force_uid != identity.uid) error_ = EOVERFLOW;
}

bool CreationScope::override_permissions() {
    if (!changed_uid_) return false;
    // Gone with the uid; still permitted. Comes back in full with the uid.
    Capabilities capabilities;
    if (!capabilities.get()) return false;
    constexpr unsigned kWanted[] = {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH};
    for (const unsigned capability : kWanted) {
        auto& data = capabilities.data[capability / 32];
        data.effective |= data.permitted & 1u << (capability % 32);
    }
    return capabilities.set();
}

namespace {
// Outside of a CreationScope, which puts back what it changes, a thread always has the same.
Capabilities& usual_capabilities() {
    thread_local Capabilities capabilities;
    thread_local const bool known = capabilities.get();
    if (!known) capabilities.data[0] = capabilities.data[1] = {};
    return capabilities;
}
}  // namespace

WithoutSetIdPrivilege::WithoutSetIdPrivilege() {
    Capabilities capabilities = usual_capabilities();
    without_ = !has_effective(capabilities, CAP_FSETID);
    if (without_) return;
    capabilities.data[CAP_FSETID / 32].effective &= ~(1u << CAP_FSETID % 32);
    changed_ = without_ = capabilities.set();
}

WithoutSetIdPrivilege::~WithoutSetIdPrivilege() {
    if (changed_) usual_capabilities().set();
}

CreationScope::~CreationScope() {
    const int saved = errno;
    if (changed_uid_) ::setfsuid(own().uid);
    if (changed_gid_) ::setfsgid(own().gid);
    if (changed_groups_) set_groups({});
    errno = saved;
}

}  // namespace farhaul::backend::mirror
