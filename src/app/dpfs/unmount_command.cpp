// `dpfs unmount`: so that one need not know how a mount of one's own is taken away without being root.
#include <memory>
#include <string>

#include <fmt/format.h>

#include "app/commands.hpp"
#include "app/dpfs/commands.hpp"
#include "hal/dev_fuse/attach.hpp"

namespace farhaul::app::dpfs {

namespace {

int unmount(const std::string& path, bool lazily) {
    const auto mountpoint = hal::resolve_mountpoint(path);
    const auto say = [](const std::string& message) {
        fmt::print(stderr, "dpfs unmount: {}\n", message);
        return kExitFailure;
    };
    if (!mountpoint) return say(mountpoint.error().message);
    const auto entry = hal::mounted_on(*mountpoint);
    if (!entry) return say(fmt::format("nothing is mounted on {}", *mountpoint));
    if (entry->type != "fuse.dpfs")
        return say(fmt::format("{} is a mount of type {}, not of dpfs; use umount(8)", *mountpoint, entry->type));
    const auto detached = hal::detach_mount(*mountpoint, lazily);
    if (detached) return kExitOk;
    return say(detached.error().message +
               (detached.error().code == ErrorCode::kRetry ? "; see fuser -m, or use --lazy" : ""));
}

}  // namespace

void add_unmount_command(CLI::App& app, int& exit_code) {
    auto* command =
        app.add_subcommand("unmount", "Unmount, by which the server ends as well (umount(8) does the same)");
    command->alias("umount");
    auto mountpoint = std::make_shared<std::string>();
    auto lazily = std::make_shared<bool>(false);
    command->add_option("mountpoint", *mountpoint, "The mount")->type_name("MOUNTPOINT")->required();
    command->add_flag("-l,--lazy", *lazily, "Also if it is in use: it goes when the last file is closed");
    command->footer("Examples:\n  dpfs unmount /mnt");
    command->callback([mountpoint, lazily, &exit_code] { exit_code = unmount(*mountpoint, *lazily); });
}

}  // namespace farhaul::app::dpfs
