// `sdr send`: files and folders to `sdr recv`.
#include <csignal>
#include <cstdio>
#include <memory>

#include <unistd.h>

#include "app/commands.hpp"
#include "app/signals.hpp"
#include "app/transfer/open_files.hpp"
#include "app/transfer/progress.hpp"
#include "app/transfer/sender.hpp"
#include "app/unit_options.hpp"

namespace farhaul::app {
namespace {

using namespace transfer;

struct SendArguments {
    std::vector<std::string> files;
    std::string to;
    std::string scheme = "auto";
    std::optional<BitRate> rate;
    std::uint64_t packet_bytes = 0;
    std::uint64_t chunk_bytes = 64u << 10;
    std::uint64_t memory = kDefaultMemory;
    double rto_rtts = 3;
    Duration timeout = Duration::from_milliseconds(10'000);
    std::uint32_t channels = 1;
    bool no_checksum = false;
    bool json = false;
    bool quiet = false;
};

int say_error(const char* command, const Error& error) {
    fmt::print(stderr, "{}: {}\n", command, error.message);
    return exit_code_of(error.code);
}

int run_send(const SendArguments& arguments) {
    auto scheme = reliable::parse_scheme(arguments.scheme);
    if (!scheme) return say_error("sdr send", scheme.error()), kExitUsage;
    auto peer = udp::parse_address(arguments.to, udp::AddressUse::kConnect);
    if (!peer) {
        say_error("sdr send", peer.error());
        return peer.error().code == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailure;
    }
    allow_many_files();
    auto roots = walk_roots(arguments.files);
    if (!roots) return say_error("sdr send", roots.error());

    const bool chosen = !arguments.rate;
    SenderOptions options;
    options.peer = *peer;
    options.rate = arguments.rate.value_or(default_rate(*peer));
    options.timeout = arguments.timeout;
    options.channels = arguments.channels;
    options.checksum = !arguments.no_checksum;
    const Window window = choose_window(options.rate, peer->is_loopback(), arguments.memory);
    const SourceTotals totals = count_tree(*roots);
    options.offer = {.scheme = *scheme,
                     .payload_bytes = static_cast<std::uint32_t>(arguments.packet_bytes),
                     .chunk_bytes = static_cast<std::uint32_t>(arguments.chunk_bytes),
                     .block_bytes = window.block_bytes,
                     .blocks = window.blocks,
                     .rto_rtts = arguments.rto_rtts,
                     .total_files = totals.files,
                     .total_bytes = totals.bytes};

    auto loop = udp::RealLoop::create();
    if (!loop) return say_error("sdr send", loop.error());
    const bool talk = !arguments.quiet && !arguments.json;
    ProgressLine line(talk);
    std::unique_ptr<Sender> sender;
    const Signals signals(**loop, [&](int) {
        if (sender) sender->interrupt();
    });
    std::uint64_t done = 0;
    const std::string label =
        roots->size() == 1 ? printable(roots->front().name) : fmt::format("{} files", totals.files);
    struct Redraw {
        udp::RealLoop& loop;
        std::function<void()> draw;
        Timer timer{loop.timers(), [](void* self) { static_cast<Redraw*>(self)->fire(); }, this};
        void fire() {
            draw();
            timer.arm(loop.now() + Duration::from_milliseconds(200));
        }
    } redraw{**loop, [&] { line.draw((*loop)->now(), label, done, totals.bytes); }};
    SenderEvents events;
    std::string warned;
    events.warning = [&](const std::string& text) {
        line.clear();
        warned = printable(text, kMaxMessageBytes);
        fmt::print(stderr, "sdr send: {}\n", warned);
    };
    events.connected = [&](const TransferReport& report) {
        if (!talk) return;
        fmt::print("sending {} in {} file{} to {}: {}, {}{}, packets of {} bytes, round trip {}\n",
                   format_size(totals.bytes), totals.files, totals.files == 1 ? "" : "s", peer->to_string(),
                   reliable::to_string(*scheme),
                   options.rate.unlimited() ? std::string("no rate limit")
                                            : format_rate(static_cast<double>(options.rate.bits_per_second())),
                   chosen ? peer->is_loopback() ? " (loopback; set --rate if the path leaves this host)"
                                                : " (nothing adapts to the link: set --rate to your share of it)"
                          : "",
                   report.payload_bytes, format_duration(report.round_trip));
        std::fflush(stdout);
        if (line.active()) redraw.fire();
    };
    events.progress = [&](std::uint64_t bytes) { done = std::min(bytes, totals.bytes); };
    sender = std::make_unique<Sender>(**loop, options, *roots, events);
    const TransferReport report = sender->run();
    line.clear();
    if (report.exit_code != kExitOk && !report.message.empty() && report.message != warned)
        fmt::print(stderr, "sdr send: {}\n", report.message);
    if (arguments.json)
        fmt::print("{}\n", to_json(report, true));
    else if (!arguments.quiet && (report.exit_code == kExitOk || report.files > 0))
        fmt::print("{}\n", to_line(report, true));
    return report.exit_code;
}

}  // namespace

void add_send_command(CLI::App& app, int& exit_code) {
    auto* command = app.add_subcommand("send", "Send files and folders to `sdr recv`");
    auto arguments = std::make_shared<SendArguments>();
    command->add_option("FILE", arguments->files, "Files and folders to send")->required();
    command->add_option("--to", arguments->to, "Where `sdr recv` listens: HOST or HOST:PORT (port 18520)")
        ->required()
        ->type_name("HOST:PORT");
    command->add_option("--scheme", arguments->scheme, "How losses are repaired: " + reliable::scheme_names())
        ->capture_default_str();
    add_checked_option(
        command, "--rate",
        [arguments](const std::string& text) -> Status {
            auto rate = parse_rate(text);
            if (!rate) return propagate(rate);
            arguments->rate = *rate;
            return {};
        },
        "RATE",
        "Most bits per second on the wire, headers included; 0 = as fast as it goes. Default: 1G, no limit on "
        "loopback");
    add_checked_option(
        command, "--mtu",
        [arguments](const std::string& text) -> Status {
            auto size = parse_size(text);
            if (!size) return propagate(size);
            if (*size != 0 && (*size < 64 || *size > udp::kMaxPayloadBytes))
                return fail(ErrorCode::kInvalidArgument, "a packet carries 64 to {} bytes", udp::kMaxPayloadBytes);
            arguments->packet_bytes = *size;
            return {};
        },
        "SIZE",
        "Most payload bytes per packet; the path is probed, and less is used if it carries less. Default: what the "
        "path carries");
    add_checked_option(
        command, "--chunk",
        [arguments](const std::string& text) -> Status {
            auto size = parse_size(text);
            if (!size) return propagate(size);
            if (*size < 64 || *size > (16u << 20))
                return fail(ErrorCode::kInvalidArgument, "a chunk is 64 bytes to 16 MiB");
            arguments->chunk_bytes = *size;
            return {};
        },
        "SIZE", "Bytes per bit of the completion bitmap, rounded down to whole packets (1 to 64). Default: 64KiB");
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
        "SIZE", "Most bytes in flight, and of memory for them. Default: 256MiB, less at low rates");
    number_within(command->add_option("--rto", arguments->rto_rtts, "Retransmission timeout in round trips (gbn, sr)")
                      ->check(CLI::Range(1.0, 100.0))
                      ->capture_default_str(),
                  1, 100);
    add_checked_option(
        command, "--timeout",
        [arguments](const std::string& text) -> Status {
            auto time = parse_duration(text);
            if (!time) return propagate(time);
            if (*time < Duration::from_milliseconds(100)) return fail(ErrorCode::kInvalidArgument, "at least 100ms");
            arguments->timeout = *time;
            return {};
        },
        "TIME", "Without a sign of life for so long, the receiver is gone. Default: 10s");
    command->add_option("--channels", arguments->channels, "Sockets to spread packets over")
        ->check(CLI::Range(1u, udp::kMaxChannels))
        ->capture_default_str();
    command->add_flag("--no-checksum", arguments->no_checksum,
                      "No checksum per packet, if the receiver agrees; SHA-256 of each file stays");
    command->add_flag("--json", arguments->json, "One line of JSON at the end, nothing else on standard output");
    command->add_flag("-q,--quiet", arguments->quiet, "Say nothing but errors and warnings");
    command->footer(
        "Examples:\n  sdr send data.tar --to host --rate 500M\n  sdr send photos notes.txt --to [2001:db8::1]:18520 "
        "--scheme sr\n\n"
        "Nothing adapts to the link: set --rate to your share of it.\n"
        "Exit status: 0 all stored; 1 something was not sent or stored; 2 wrong command line; 3 no receiver, or it "
        "vanished; 4 checksum wrong; "
        "5 no space at the receiver.");
    command->callback([arguments, &exit_code] { exit_code = run_send(*arguments); });
}

}  // namespace farhaul::app
