#include "app/command_line.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "app/commands.hpp"
#include "app/nearest.hpp"
#include "base/log.hpp"

namespace farhaul::app {

namespace {

/// The command that the user was addressing: the innermost one that was parsed.
const CLI::App& addressed(const CLI::App& app) {
    const auto parsed = app.get_subcommands();
    return parsed.empty() ? app : addressed(*parsed.back());
}

}  // namespace

void add_log_level(CLI::App& app) {
    const auto add = [](CLI::App& to) {
        to.add_option_function<std::string>(
              "--log-level",
              [](const std::string& level) {
                  if (!set_log_level(level))
                      throw CLI::ValidationError(
                          "--log-level", "'" + level + "' is not a level: use trace, debug, info, warn, error or off");
              },
              "What is logged to stderr: trace, debug, info, warn (default), error, off")
            ->type_name("LEVEL");
    };
    add(app);
    for (CLI::App* command : app.get_subcommands({})) add(*command);
}

void explain(const CLI::App& app, const CLI::ParseError& error) {
    const CLI::App& command = addressed(app);
    const std::string name = &command == &app ? app.get_name() : app.get_name() + " " + command.get_name();
    // An unknown word explains an error better than what it led to: "--schem sr" leaves other options looking wrong or
    // missing.
    std::string message = error.what();
    std::string meant;
    const auto unknown = command.remaining();
    if (!unknown.empty()) {
        const auto is_option = [](const std::string& word) { return word.starts_with("-"); };
        const bool at_top = &command == &app;
        // At the top, what follows an unknown command belongs to it.
        const auto option =
            at_top && !is_option(unknown.front()) ? unknown.end() : std::ranges::find_if(unknown, is_option);
        std::vector<std::string> known;
        if (option != unknown.end()) {
            const std::string word = option->substr(0, option->find('='));
            for (const CLI::Option* candidate : command.get_options()) {
                for (const auto& long_name : candidate->get_lnames()) known.push_back("--" + long_name);
            }
            meant = nearest(word, known);
            message = fmt::format("unknown option '{}'", word);
        } else if (at_top) {
            for (const CLI::App* candidate : app.get_subcommands({})) known.push_back(candidate->get_name());
            meant = nearest(unknown.front(), known);
            message = fmt::format("unknown command '{}'", unknown.front());
        } else {
            message = fmt::format("unexpected argument '{}'", unknown.front());
        }
    }
    if (!meant.empty()) message += fmt::format("; did you mean '{}'?", meant);
    fmt::print(stderr, "{}: {}\nTry '{} --help'.\n", name, message, name);
}

int parse_and_run(CLI::App& app, int argc, char** argv, const int& exit_code) {
    if (argc <= 1) {
        fmt::print(stderr, "{}", app.help());
        return kExitUsage;
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
            app.exit(error);  // --help, --version
        } else {
            explain(app, error);
            return kExitUsage;
        }
    }
    return exit_code;
}

int guarded_main(const char* program, int argc, char** argv, int (*body)(int argc, char** argv)) {
    // A reader of our output, or a peer, that goes away is an error to report (EPIPE), not a reason to vanish.
    std::signal(SIGPIPE, SIG_IGN);
    int exit_code = kExitFailure;
    try {
        exit_code = body(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", program, error.what());
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        std::fprintf(stderr, "%s: writing to standard output: %s\n", program, std::strerror(errno));
        if (exit_code == kExitOk) exit_code = kExitFailure;
    }
    return exit_code;
}

}  // namespace farhaul::app
