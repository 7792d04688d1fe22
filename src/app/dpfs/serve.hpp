// The life of a mount: opens the source, mounts, answers `dpfs stat`, and unmounts when told to.
#pragma once

#include "app/dpfs/mount_plan.hpp"

namespace farhaul::app::dpfs {

/// Returns when the mount has ended: by SIGINT, SIGTERM or SIGHUP, or because somebody unmounted it (both kExitOk).
/// Otherwise says on stderr why not. Not in the foreground, it forks, and the parent exits when the files are there.
int serve(MountPlan plan, bool foreground);

}  // namespace farhaul::app::dpfs
