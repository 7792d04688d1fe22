// What the programs' command lines have in common.
#pragma once

#include <CLI/CLI.hpp>

namespace farhaul::app {

/// --log-level on the program and on each of its commands.
void add_log_level(CLI::App& app);

/// Says on stderr what is wrong with the command line and what was probably meant.
void explain(const CLI::App& app, const CLI::ParseError& error);

/// Parses and runs a command: its exit code, or what a wrong command line is answered with. `exit_code`: set by
/// commands.
int parse_and_run(CLI::App& app, int argc, char** argv, const int& exit_code);

/// The program: runs `body`, which returns the exit code; errors that it throws, and those of writing to stdout, are
/// reported and become kExitFailure.
int guarded_main(const char* program, int argc, char** argv, int (*body)(int argc, char** argv));

}  // namespace farhaul::app
