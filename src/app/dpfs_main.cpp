// The program `dpfs`: the list of its subcommands, and the names and forms by which mount(8) calls it.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "app/command_line.hpp"
#include "app/commands.hpp"
#include "app/dpfs/commands.hpp"

namespace {

constexpr const char* kExamples = R"(Examples:
  dpfs mount mirror:/srv/data /mnt       # a directory of this host
  dpfs mount memory:size=1GiB /mnt -f    # a file system in memory, until Ctrl-C
  dpfs stat /mnt                         # what it has done so far
  dpfs unmount /mnt
  mount -t fuse.dpfs mirror:/srv/data /mnt -o ro

`dpfs COMMAND --help` explains a command; the manual is dpfs(1).
Exit status: 0 done, 1 failed, 2 wrong command line.
Environment: FARHAUL_LOG=trace|debug|info|warn|error|off, FARHAUL_RUN_DIR (folder of the statistics sockets))";

int run(int argc, char** argv) {
    namespace dpfs = farhaul::app::dpfs;
    const std::string_view path = argc > 0 ? argv[0] : "dpfs";
    const std::string_view name = path.substr(path.rfind('/') + 1);
    if (name == "mount.dpfs" || name == "mount.fuse.dpfs") return dpfs::run_mount_helper(argv[0], argc, argv);

    CLI::App app{"File systems of any kind, served to this host's kernel", "dpfs"};
    app.footer(kExamples);
    app.set_version_flag("--version", "dpfs " FARHAUL_VERSION);
    app.require_subcommand(1);
    int exit_code = farhaul::app::kExitOk;
    dpfs::add_mount_command(app, exit_code);
    dpfs::add_stat_command(app, exit_code);
    dpfs::add_unmount_command(app, exit_code);
    farhaul::app::add_log_level(app);

    // mount.fuse(8) calls `dpfs SOURCE MOUNTPOINT -o OPTIONS`; no command has a colon in its name.
    if (argc >= 3 && argv[1][0] != '-' && std::string_view(argv[1]).find(':') != std::string_view::npos)
        return dpfs::run_mount_helper("dpfs", argc, argv);
    return farhaul::app::parse_and_run(app, argc, argv, exit_code);
}

}  // namespace

int main(int argc, char** argv) { return farhaul::app::guarded_main("dpfs", argc, argv, run); }
