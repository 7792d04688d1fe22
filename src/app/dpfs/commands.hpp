// The subcommands of `dpfs`. Each file NAME_command.cpp adds one to the parser; its callback sets `exit_code`
// (app/commands.hpp lists the codes).
#pragma once

#include <CLI/CLI.hpp>

namespace farhaul::app::dpfs {

void add_mount_command(CLI::App& app, int& exit_code);
void add_unmount_command(CLI::App& app, int& exit_code);
void add_stat_command(CLI::App& app, int& exit_code);

/// As mount(8) calls its helpers: SOURCE MOUNTPOINT [-sfnvwr] [-N NAMESPACE] [-o OPTIONS] [-t TYPE].
int run_mount_helper(const char* name, int argc, char** argv);

}  // namespace farhaul::app::dpfs
