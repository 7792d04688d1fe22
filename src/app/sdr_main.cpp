// The program `sdr`: global options, the list of subcommands, and what a wrong command line is answered with.
#include "app/command_line.hpp"
#include "app/commands.hpp"

namespace {

constexpr const char* kExamples = R"(Examples:
  sdr recv --listen :18520 --out /srv/in          # on the receiving host
  sdr send data.tar --to host:18520 --scheme sr   # on the sending host
  sdr link --help                                 # an emulated long link to try it over
  sdr sim --size 128MiB --rate 400G --rtt 25ms --loss 1e-4 --scheme sr

`sdr COMMAND --help` explains a command; the manual is sdr(1).
Exit status: 0 done, 1 failed, 2 wrong command line, 3 no peer, 4 checksum wrong, 5 no space.
Environment: FARHAUL_LOG=trace|debug|info|warn|error|off)";

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
    farhaul::app::add_log_level(app);

    return farhaul::app::parse_and_run(app, argc, argv, exit_code);
}

}  // namespace

int main(int argc, char** argv) { return farhaul::app::guarded_main("sdr", argc, argv, run); }
