// Acting as the caller. Identity and umask are per thread in the kernel; the calls here change those of the calling
// thread and put them back, so that other threads keep theirs.
#pragma once

#include <cerrno>
#include <cstdint>
#include <optional>

#include "fuse/types.hpp"

namespace farhaul::backend::mirror {

/// What this process is allowed to do, looked up once.
struct Privilege {
    bool change_identity = false;  ///< CAP_SETUID and CAP_SETGID
    bool all_ids = false;          ///< every uid and gid exists in this user namespace
    bool own_umask = false;        ///< threads can have a umask of their own
    static Privilege of_this_thread();
};

/// Gives the calling thread a umask of its own (0) the first time; false if that is not possible: then the process has
/// 0.
bool prepare_thread();

/// Creates as somebody. Not the caller's other groups: permission was checked by the client's kernel, so what the host
/// refuses with EACCES for lack of a group is done with CAP_DAC_OVERRIDE the second time.
class CreationScope {
 public:
    struct Identity {
        std::uint32_t uid, gid;
        std::optional<std::uint32_t> group;  ///< supplementary
    };
    /// `umask`: in force for what is created, unless the parent has a default ACL.
    CreationScope(const Privilege& privilege, const Identity& identity, std::uint32_t umask);
    ~CreationScope();
    CreationScope(const CreationScope&) = delete;
    CreationScope& operator=(const CreationScope&) = delete;
    /// Not 0: the identity cannot be taken on (not mapped in this user namespace).
    int error() const { return error_; }

    /// Calls `act`, which returns -1 and errno or anything else, once or twice.
    template <typename Act>
    auto run(Act&& act) {
        auto result = act();
        if (result < 0 && errno == EACCES && override_permissions()) result = act();
        return result;
    }

 private:
    bool override_permissions();
    bool changed_uid_ = false, changed_gid_ = false, changed_groups_ = false;
    int error_ = 0;
};

/// While it lives, this thread has no CAP_FSETID: what is written with its credentials, now or later, ends S_ISUID and
/// S_ISGID of the file.
class WithoutSetIdPrivilege {
 public:
    WithoutSetIdPrivilege();
    ~WithoutSetIdPrivilege();
    WithoutSetIdPrivilege(const WithoutSetIdPrivilege&) = delete;
    WithoutSetIdPrivilege& operator=(const WithoutSetIdPrivilege&) = delete;
    /// Whether it really has not.
    explicit operator bool() const { return without_; }

 private:
    bool changed_ = false, without_ = false;
};

}  // namespace farhaul::backend::mirror
