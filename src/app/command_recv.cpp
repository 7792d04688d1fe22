// `sdr recv`: takes files and folders from `sdr send`.
#include <csignal>
#include <cstdio>
#include <memory>

#include "app/commands.hpp"
#include "app/signals.hpp"
#include "app/transfer/open_files.hpp"
#include "app/transfer/progress.hpp"
#include "app/transfer/receiver.hpp"
#include "app/unit_options.hpp"

namespace farhaul::app {
namespace {

using namespace transfer;

struct RecvArguments {
    std::string listen = ":18520";
    std::string out = ".";
    std::uint64_t memory = kDefaultMemory;
    Duration timeout = Duration::from_milliseconds(10'000);
    std::uint32_t channels = 1;
    std::uint32_t max_transfers = 16;
    bool no_clobber = false;
    bool no_sync = false;
    bool once = false;
    bool json = false;
    bool quiet = false;
};

int run_recv(const RecvArguments& arguments) {
    auto address = udp::parse_address(arguments.listen, udp::AddressUse::kListen);
    if (!address) {
        fmt::print(stderr, "sdr recv: {}\n", address.error().message);
        return address.error().code == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailure;
    }
    // A file that outgrows a limit is an error to report, not a reason to die.
    std::signal(SIGXFSZ, SIG_IGN);
    allow_many_files();
    auto loop = udp::RealLoop::create();
    if (!loop) {
        fmt::print(stderr, "sdr recv: {}\n", loop.error().message);
        return kExitFailure;
    }
    const bool talk = !arguments.quiet && !arguments.json;
    ProgressLine line(talk);
    std::unique_ptr<Receiver> receiver;
    bool stopping = false;
    int exit_code = kExitOk;
    const Signals signals(**loop, [&](int) {
        stopping = true;
        if (receiver) receiver->interrupt();
    });
    ReceiverOptions options;
    options.listen = *address;
    options.sink = {.folder = arguments.out, .replace = !arguments.no_clobber, .sync = !arguments.no_sync};
    options.memory = arguments.memory;
    options.timeout = arguments.timeout;
    options.channels = arguments.channels;
    options.max_transfers = arguments.max_transfers;
    options.once = arguments.once;

    ReceiverEvents events;
    events.started = [&](const std::string& peer, const Offer& offer) {
        if (!talk) return;
        line.clear();
        line.reset();
        fmt::print("receiving {} in {} file{} from {} by {}\n", format_size(offer.total_bytes), offer.total_files,
                   offer.total_files == 1 ? "" : "s", peer, reliable::to_string(offer.scheme));
        std::fflush(stdout);
    };
    events.warning = [&](const std::string& text) {
        line.clear();
        fmt::print(stderr, "sdr recv: {}\n", printable(text, kMaxMessageBytes));
    };
    TimePoint drawn;
    events.progress = [&](std::uint64_t done, std::uint64_t total) {
        if (!line.active() || (*loop)->now() - drawn < Duration::from_milliseconds(200)) return;
        drawn = (*loop)->now();
        line.draw(drawn, receiver->transfers() == 1 ? "receiving" : fmt::format("{} transfers", receiver->transfers()),
                  done, total);
    };
    events.ended = [&](const TransferReport& report) {
        line.clear();
        if (report.exit_code != kExitOk)
            fmt::print(stderr, "sdr recv: transfer from {} failed: {}\n", report.peer,
                       printable(report.message, kMaxMessageBytes));
        if (arguments.json)
            fmt::print("{}\n", to_json(report, false));
        else if (talk && (report.exit_code == kExitOk || report.files > 0))
            fmt::print("{}\n", to_line(report, false));
        std::fflush(stdout);
        if (arguments.once) {
            exit_code = report.exit_code;
            stopping = true;
        }
    };
    receiver = std::make_unique<Receiver>(**loop, options, events);
    if (auto status = receiver->listen(); !status) {
        fmt::print(stderr, "sdr recv: {}\n", status.error().message);
        return kExitFailure;
    }
    // Scripts wait for this line.
    if (arguments.json)
        fmt::print("{{\"listening\":\"{}\"}}\n", receiver->local_address().to_string());
    else if (!arguments.quiet)
        fmt::print("listening on {}, files go to {}\n", receiver->local_address().to_string(), arguments.out);
    std::fflush(stdout);
    (*loop)->run_until([&] { return stopping && receiver->transfers() == 0; });
    line.clear();
    receiver.reset();
    return exit_code;
}

}  // namespace

void add_recv_command(CLI::App& app, int& exit_code) {
    auto* command = app.add_subcommand("recv", "Receive files and folders from `sdr send`");
    auto arguments = std::make_shared<RecvArguments>();
    command
        ->add_option("--listen", arguments->listen,
                     "ADDRESS:PORT to listen on; :PORT is every address, port 0 a free one")
        ->type_name("ADDRESS:PORT")
        ->capture_default_str();
    command->add_option("-o,--out", arguments->out, "Folder to put files into")
        ->type_name("DIR")
        ->capture_default_str();
    add_checked_option(
        command, "--memory,--window",
        [arguments](const std::string& text) -> Status {
            auto size = parse_size(text);
            if (!size) return propagate(size);
            if (*size < 2 * kMinBlockBytes)
                return fail(ErrorCode::kInvalidArgument, "at least {}", format_size(2 * kMinBlockBytes));
            arguments->memory = *size;
            return {};
        },
        "SIZE", "Most memory per transfer for data on its way to the disk. Default: 256MiB");
    add_checked_option(
        command, "--timeout",
        [arguments](const std::string& text) -> Status {
            auto time = parse_duration(text);
            if (!time) return propagate(time);
            if (*time < Duration::from_milliseconds(100)) return fail(ErrorCode::kInvalidArgument, "at least 100ms");
            arguments->timeout = *time;
            return {};
        },
        "TIME", "Without a sign of life for so long, a sender is gone. Default: 10s");
    command->add_option("--channels", arguments->channels, "Most sockets to spread packets over")
        ->check(CLI::Range(1u, udp::kMaxChannels))
        ->capture_default_str();
    command->add_option("--max-transfers", arguments->max_transfers, "Transfers at once; further senders are refused")
        ->check(CLI::Range(1u, 1000u))
        ->capture_default_str();
    command->add_flag("--no-clobber", arguments->no_clobber, "Keep files that exist: the new ones fail");
    command->add_flag("--no-sync", arguments->no_sync,
                      "Do not wait until data is on the disk before a file gets its name");
    command->add_flag("--once", arguments->once, "Exit after the first transfer, with its exit status");
    command->add_flag("--json", arguments->json, "One line of JSON per transfer, nothing else on standard output");
    command->add_flag("-q,--quiet", arguments->quiet, "Say nothing but errors and warnings");
    command->footer(
        "Examples:\n  sdr recv --out /srv/in\n  sdr recv --listen 192.0.2.1:18520 --out . --once\n\n"
        "Anyone who can reach the port can store files in the folder: listen on a trusted network.\n"
        "Exit status: 0 ended by a signal or, with --once, stored; 1 failed; 2 wrong command line; 3 the sender "
        "vanished; 4 checksum wrong; 5 no space.");
    command->callback([arguments, &exit_code] { exit_code = run_recv(*arguments); });
}

}  // namespace farhaul::app
