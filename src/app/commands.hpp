// The subcommands of `sdr`. Each file command_NAME.cpp adds one to the parser; its callback sets `exit_code`.
#pragma once

#include <CLI/CLI.hpp>

namespace farhaul::app {

/// Exit codes that scripts can rely on; every man page lists them.
enum ExitCode : int {
    kExitOk = 0,
    kExitFailure = 1,    ///< the operation failed: the message says why
    kExitUsage = 2,      ///< the command line is wrong
    kExitPeer = 3,       ///< no answer from the peer, or it vanished, within the time limit
    kExitIntegrity = 4,  ///< data arrived but its checksum is wrong
    kExitNoSpace = 5,    ///< the disk is full or a quota is used up
};

void add_link_command(CLI::App& app, int& exit_code);
void add_sim_command(CLI::App& app, int& exit_code);
void add_send_command(CLI::App& app, int& exit_code);
void add_recv_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);
void add_plan_command(CLI::App& app, int& exit_code);
void add_allreduce_command(CLI::App& app, int& exit_code);

}  // namespace farhaul::app
