// `dpfs stat`: asks the daemons of this user and prints what they have counted.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "app/commands.hpp"
#include "app/dpfs/commands.hpp"
#include "app/unit_options.hpp"
#include "base/units.hpp"
#include "daemon/control_socket.hpp"
#include "hal/dev_fuse/attach.hpp"

namespace farhaul::app::dpfs {

namespace {

using nlohmann::json;

struct Arguments {
    std::string mountpoint;
    bool all = false;
    bool as_json = false;
    bool watch = false;
    Duration interval = Duration::from_seconds(1);
};

/// Of the daemons that were asked for, in the order of their mountpoints.
std::vector<json> ask(const std::string& mountpoint) {
    std::map<std::string, json> found;
    for (const std::string& text : daemon::ask_all()) {
        json document = json::parse(text, nullptr, false);
        if (document.is_discarded() || !document.is_object()) continue;
        const std::string where = document.value("mountpoint", "");
        if (mountpoint.empty() || where == mountpoint)
            found.emplace(where + '\0' + std::to_string(document.value("pid", 0)), std::move(document));
    }
    std::vector<json> documents;
    for (auto& [key, document] : found) documents.push_back(std::move(document));
    return documents;
}

std::string time_text(double seconds) { return seconds <= 0 ? "-" : format_duration(Duration::from_seconds(seconds)); }

std::string uptime_text(double seconds) {
    const auto whole = static_cast<long>(seconds);
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

/// `before`: what the same daemon said `seconds` ago; then requests and bytes are per second.
void print(const json& document, const json* before, double seconds) {
    fmt::print(
        "{}  {}  {}, {} threads{}, up {}, pid {}{}\n", document.value("mountpoint", ""), document.value("source", ""),
        document.value("transport", ""), document.value("threads", 0),
        document.value("passthrough", false) ? ", reads and writes may pass by (passthrough)" : "",
        uptime_text(document.value("uptime_seconds", 0.0)), document.value("pid", 0),
        document.value("malformed", 0) != 0 ? fmt::format(", {} malformed", document.value("malformed", 0)) : "");
    const bool rates = before != nullptr && seconds > 0;
    fmt::print("  {:<16} {:>12} {:>8} {:>14} {:>14} {:>10} {:>10} {:>10}\n", "operation",
               rates ? "requests/s" : "requests", "errors", rates ? "written/s" : "written", rates ? "read/s" : "read",
               "p50", "p99", "p99.9");
    const json operations = document.value("operations", json::object());
    const json old_operations = rates ? before->value("operations", json::object()) : json::object();
    for (const auto& [name, counters] : operations.items()) {
        const json old = old_operations.value(name, json::object());
        const auto figure = [&](const char* key) {
            const double now = counters.value(key, 0.0) - old.value(key, 0.0);
            return rates ? now / seconds : now;
        };
        const json latency = counters.value("latency_seconds", json::object());
        fmt::print("  {:<16} {:>12.0f} {:>8} {:>14} {:>14} {:>10} {:>10} {:>10}\n", name, figure("requests"),
                   counters.value("errors", 0ull), format_size(static_cast<std::uint64_t>(figure("bytes_in"))),
                   format_size(static_cast<std::uint64_t>(figure("bytes_out"))), time_text(latency.value("p50", 0.0)),
                   time_text(latency.value("p99", 0.0)), time_text(latency.value("p999", 0.0)));
    }
}

int show(const Arguments& arguments) {
    std::string mountpoint;
    if (!arguments.mountpoint.empty()) {
        const auto resolved = hal::resolve_mountpoint(arguments.mountpoint);
        mountpoint = resolved ? *resolved : arguments.mountpoint;
    }
    std::map<std::string, json> before;
    for (bool first = true;; first = false) {
        const auto documents = ask(mountpoint);
        if (documents.empty()) {
            if (!first) return kExitOk;  // it was unmounted while we watched
            if (mountpoint.empty()) {
                if (arguments.as_json) fmt::print("[]\n");
                fmt::print(stderr, "dpfs stat: no mounts of this user\n");
                return arguments.all ? kExitOk : kExitFailure;
            }
            fmt::print(stderr, "dpfs stat: no dpfs of this user is mounted on {}; dpfs stat --all shows what is\n",
                       mountpoint);
            return kExitFailure;
        }
        if (arguments.as_json) {
            if (mountpoint.empty()) {
                fmt::print("{}\n", json(documents).dump());
            } else {
                fmt::print("{}\n", documents.front().dump());
            }
        } else {
            if (arguments.watch && ::isatty(STDOUT_FILENO) != 0) fmt::print("\x1b[H\x1b[2J");
            for (const json& document : documents) {
                const std::string key = document.value("mountpoint", "") + std::to_string(document.value("pid", 0));
                const auto old = before.find(key);
                const double elapsed = old == before.end() ? 0
                                                           : document.value("uptime_seconds", 0.0) -
                                                                 old->second.value("uptime_seconds", 0.0);
                print(document, old == before.end() ? nullptr : &old->second, elapsed);
                before[key] = document;
            }
        }
        if (!arguments.watch) return kExitOk;
        if (std::fflush(stdout) != 0) return kExitFailure;
        const auto nanoseconds = arguments.interval.nanoseconds();
        const timespec pause{.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
        ::nanosleep(&pause, nullptr);
    }
}

}  // namespace

void add_stat_command(CLI::App& app, int& exit_code) {
    auto* command = app.add_subcommand("stat", "Print what mounts have counted: requests, errors, bytes, latencies");
    auto arguments = std::make_shared<Arguments>();
    auto* one = command->add_option("mountpoint", arguments->mountpoint, "One mount (default: all of this user's)")
                    ->type_name("MOUNTPOINT");
    command->add_flag("--all", arguments->all, "All mounts of this user; none is no error")->excludes(one);
    command->add_flag("--json", arguments->as_json, "One JSON document, or an array of them without MOUNTPOINT");
    command->add_flag("--watch", arguments->watch, "Again every second, as rates, until the mount is gone");
    add_checked_option(
        command, "-i,--interval",
        [arguments](const std::string& text) -> Status {
            auto interval = parse_duration(text);
            if (!interval) return propagate(interval);
            if (*interval < Duration::from_milliseconds(10))
                return fail(ErrorCode::kInvalidArgument, "an interval is at least 10ms");
            arguments->interval = *interval;
            arguments->watch = true;
            return {};
        },
        "TIME", "As --watch, but so often");
    command->footer(R"(Examples:
  dpfs stat /mnt
  dpfs stat /mnt -i 5s
  dpfs stat --all --json | jq '.[].operations.read')");
    command->callback([arguments, &exit_code] { exit_code = show(*arguments); });
}

}  // namespace farhaul::app::dpfs
