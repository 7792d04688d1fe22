// The program `sdr`: global options, the list of subcommands, and what a wrong command line is answered with.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "app/commands.hpp"
#include "app/nearest.hpp"
#include "base/log.hpp"

namespace {

constexpr const char* kExamples = R"(Examples:
  sdr recv --listen :18520 --out /srv/in          # on the receiving host
  sdr send data.tar --to host:18520 --scheme sr   # on the sending host
  sdr link --help                                 # an emulated long link to try it over
  sdr sim --size 128MiB --rate 400G --rtt 25ms --loss 1e-4 --scheme sr

`sdr COMMAND --help` explains a command; the manual is sdr(1).
Exit status: 0 done, 1 failed, 2 wrong command line, 3 no peer, 4 checksum wrong, 5 no space.
Environment: FARHAUL_LOG=trace|debug|info|warn|error|off)";

void add_log_level(CLI::App& app) {
    app.add_option_function<std::string>(
           "--log-level",
           [](const std::string& level) {
               if (!farhaul::set_log_level(level))
                   throw CLI::ValidationError(
                       "--log-level", "'" + level + "' is not a level: use trace, debug, info, warn, error or off");
           },
           "What is logged to stderr: trace, debug, info, warn (default), error, off")
        ->type_name("LEVEL");
}

/// The command that the user was addressing: the innermost one that was parsed.
const CLI::App& addressed(const CLI::App& app) {
    const auto parsed = app.get_subcommands();
    return parsed.empty() ? app : addressed(*parsed.back());
}

/// Says what is wrong with the command line and what was probably meant.
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
            meant = farhaul::app::nearest(word, known);
            message = fmt::format("unknown option '{}'", word);
        } else if (at_top) {
            for (const CLI::App* candidate : app.get_subcommands({})) known.push_back(candidate->get_name());
            meant = farhaul::app::nearest(unknown.front(), known);
            message = fmt::format("unknown command '{}'", unknown.front());
        } else {
            message = fmt::format("unexpected argument '{}'", unknown.front());
        }
    }
    if (!meant.empty()) message += fmt::format("; did you mean '{}'?", meant);
    fmt::print(stderr, "{}: {}\nTry '{} --help'.\n", name, message, name);
}

int run(int argc, char** argv) {
    CLI::App app{"Reliable transfers over long lossy links, by software-defined reliability", "sdr"};
    app.footer(kExamples);
    app.set_version_flag("--version", "sdr " FARHAUL_VERSION);
    app.require_subcommand(1);

    int exit_code = farhaul::app::kExitOk;
    farhaul::app::add_send_command(app, exit_code);
    farhaul::app::add_recv_command(app, exit_code);
    farhaul::app::add_bench_command(app, exit_code);
    farhaul::app::add_link_command(app, exit_code);
    farhaul::app::add_sim_command(app, exit_code);
    farhaul::app::add_plan_command(app, exit_code);
    farhaul::app::add_allreduce_command(app, exit_code);
    add_log_level(app);
    for (CLI::App* command : app.get_subcommands({})) add_log_level(*command);

    if (argc <= 1) {
        fmt::print(stderr, "{}", app.help());
        return farhaul::app::kExitUsage;
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
            app.exit(error);  // --help, --version
        } else {
            explain(app, error);
            return farhaul::app::kExitUsage;
        }
    }
    return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
    // A reader of our output, or a peer, that goes away is an error to report (EPIPE), not a reason to vanish.
    std::signal(SIGPIPE, SIG_IGN);
    int exit_code = farhaul::app::kExitFailure;
    try {
        exit_code = run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "sdr: %s\n", error.what());
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        std::perror("sdr: writing to standard output");
        if (exit_code == farhaul::app::kExitOk) exit_code = farhaul::app::kExitFailure;
    }
    return exit_code;
}
