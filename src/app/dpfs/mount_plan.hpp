// What a mount's -o words mean: those of every file system (ro, nosuid, ...), those of dpfs (io_uring=, max_write=,
// ...); all others belong to the source.
#pragma once

#include <string>
#include <vector>

#include "backend/source.hpp"
#include "base/result.hpp"
#include "fuse/session.hpp"
#include "hal/dev_fuse/mount.hpp"

namespace farhaul::app::dpfs {

enum class IoUring { kAuto, kOn, kOff };

struct MountPlan {
    std::string source;
    fuse::SessionOptions session;
    hal::MountOptions mount;
    IoUring io_uring = IoUring::kAuto;
    std::vector<backend::Option> source_options;
};

/// Reads the words (`-o` may come several times). Fails with kInvalidArgument for a word that neither dpfs nor the
/// source has, naming the nearest one that exists, and for a bad value. `sloppy`: unknown words are ignored (mount -s).
Result<MountPlan> plan_mount(const std::string& source, const std::string& mountpoint,
                             const std::vector<std::string>& words, bool sloppy = false);

/// All words, for --help.
std::string describe_mount_words();

}  // namespace farhaul::app::dpfs
