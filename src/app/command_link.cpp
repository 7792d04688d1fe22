// `sdr link`: a long link in real time, as a UDP relay or between two network namespaces.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include "app/commands.hpp"
#include "app/link_report.hpp"
#include "app/unit_options.hpp"
#include "base/random.hpp"
#include "link/options.hpp"
#include "link/realtime/tun_path.hpp"
#include "link/realtime/udp_relay.hpp"

namespace farhaul::app {
namespace {

constexpr const char* kExamples = R"(Examples:
  A relay: senders use port 18521 of this host instead of port 18520 of the receiver.
    sdr link --listen :18521 --to 192.0.2.7:18520 --rate 1G --rtt 25ms --loss 1e-3
  Bursts of 8 packets, then worse, then an outage of a second:
    sdr link --listen :18521 --to 127.0.0.1:18520 --loss 1e-4 --burst 8 \
             --schedule 'loss=1e-2@3s,down@7s,up@8s'
  An IP path between two network namespaces, for any program (as root):
    ip netns add left; ip netns add right
    sdr link --tun --ns-a left --ns-b right --addr-a 10.1.0.1/24 --addr-b 10.1.0.2/24 --rate 1G --rtt 25ms
    ip netns exec right iperf3 -s & ip netns exec left iperf3 -c 10.1.0.2

When forwarding has begun it prints a line `ready` (with --json on standard error). SIGINT or SIGTERM ends it
and prints what was dropped and why. "Forward" is from clients to the target, or from A to B.
Exit status: 0 ended by a signal or --duration, 1 forwarding failed, 2 wrong command line.)";

struct Arguments {
    std::string listen, target;
    bool tun = false;
    link::TunConfig a, b;
    std::uint64_t mtu = 1500;
    BitRate rate = BitRate::from_gigabits(1);
    std::optional<Duration> round_trip, delay;
    std::optional<std::uint64_t> queue;
    double loss = 0;
    std::optional<double> loss_forward, loss_backward;
    double burst = 1;
    Duration jitter;
    link::Reorder reorder;
    double duplicate = 0, corrupt = 0;
    std::uint64_t overhead = 0;
    std::vector<link::LinkChange> schedule;
    std::uint64_t seed = 1;
    Duration duration = Duration::max();
    Duration idle = Duration::from_seconds(60);
    std::optional<Duration> interval;
    bool json = false, quiet = false, normal_priority = false;
};

volatile std::sig_atomic_t g_stop = 0;

int usage_error(const std::string& message) {
    fmt::print(stderr, "sdr link: {}\nRun `sdr link --help` for options and examples.\n", message);
    return kExitUsage;
}

Duration one_way_delay(const Arguments& a) {
    if (a.delay) return *a.delay;
    return a.round_trip.value_or(Duration::from_milliseconds(25)) / 2;
}

std::uint64_t queue_bytes(const Arguments& a) {
    return a.queue ? *a.queue : link::default_queue_bytes(a.rate, one_way_delay(a) * 2);
}

Result<link::LinkPair> make_models(const Arguments& a) {
    link::LinkConfig config;
    config.rate = a.rate;
    config.delay = one_way_delay(a);
    config.queue_bytes = queue_bytes(a);
    config.jitter = a.jitter;
    config.reorder_probability = a.reorder.probability;
    config.reorder_delay = a.reorder.delay;
    config.duplicate_probability = a.duplicate;
    config.corrupt_probability = a.corrupt;
    config.overhead_bytes = static_cast<std::uint32_t>(a.overhead);
    Random seeds(a.seed);
    config.loss = {a.loss_forward.value_or(a.loss), a.burst};
    auto forward = link::LinkModel::create(config, a.schedule, seeds());
    if (!forward) return propagate(forward);
    config.loss = {a.loss_backward.value_or(a.loss), a.burst};
    auto backward = link::LinkModel::create(config, a.schedule, seeds());
    if (!backward) return propagate(backward);
    return link::LinkPair{std::move(*forward), std::move(*backward)};
}

std::string describe_link(const Arguments& a) {
    std::string text = a.rate.unlimited() ? std::string("no limit of rate")
                                          : format_rate(static_cast<double>(a.rate.bits_per_second()));
    text += fmt::format(", {} each way, ", format_duration(one_way_delay(a)));
    text += queue_bytes(a) == 0 ? std::string("no limit of queue") : "queue " + format_size(queue_bytes(a));
    text += fmt::format(", loss {}/{}", a.loss_forward.value_or(a.loss), a.loss_backward.value_or(a.loss));
    if (a.burst > 1) text += fmt::format(" in bursts of {}", a.burst);
    return text;
}

/// A link that waits for a core is a longer link. Without the right to this (root or CAP_SYS_NICE) nothing changes.
void take_priority() {
    sched_param parameters{};
    parameters.sched_priority = 1;
    static_cast<void>(::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &parameters));
}

struct Started {
    std::unique_ptr<link::Forwarder> forwarder;
    std::string where;
    DirectionNames names;
};

Result<Started> start(Arguments& a, link::LinkPair models) {
    Started s;
    if (a.tun) {
        auto path = link::TunPath::create(a.a, a.b, std::move(models));
        if (!path) return propagate(path);
        const auto end = [](const link::TunConfig& config, const link::TunDevice& device) {
            return config.network_namespace.empty() ? device.name() : config.network_namespace + ":" + device.name();
        };
        const std::string left = end(a.a, (*path)->device(0)), right = end(a.b, (*path)->device(1));
        s.where = left + " <-> " + right;
        s.names = {left + " -> " + right, right + " -> " + left};
        s.forwarder = std::move(*path);
        return s;
    }
    link::RelayConfig config;
    auto listen = link::parse_endpoint(a.listen, true);
    if (!listen) return propagate(listen);
    auto target = link::parse_endpoint(a.target, false);
    if (!target) return propagate(target);
    config.listen = *listen;
    config.target = *target;
    config.client_idle = a.idle;
    auto relay = link::UdpRelay::create(config, std::move(models));
    if (!relay) return propagate(relay);
    s.where = (*relay)->local().to_string() + " -> " + target->to_string();
    s.names = {"clients -> " + target->to_string(), target->to_string() + " -> clients"};
    s.forwarder = std::move(*relay);
    return s;
}

/// One updating line on a terminal, a line each time when an interval was asked for.
class LiveCounters {
 public:
    explicit LiveCounters(const Arguments& a)
        : terminal_(::isatty(STDERR_FILENO) == 1 && !a.json),
          on_(!a.quiet && (terminal_ || a.interval)),
          interval_(std::max(a.interval.value_or(Duration::from_seconds(1)), Duration::from_milliseconds(10))),
          next_(interval_),
          json_(a.json) {}
    Duration interval() const { return interval_; }
    void update(link::Forwarder& forwarder, Duration running) {
        if (!on_ || running < next_) return;
        next_ = running + interval_;
        auto now = forwarder.report();
        if (json_) {
            fmt::print(stderr, "{}\n", summary_json(now).dump());
        } else {
            const std::string line = live_line(before_, now);
            fmt::print(stderr, "{}{}{}", terminal_ ? "\r\x1b[K" : "", line, terminal_ ? "" : "\n");
        }
        std::fflush(stderr);
        before_ = std::move(now);
        printed_ = terminal_;
    }
    void finish() {
        if (printed_) fmt::print(stderr, "\n");
    }

 private:
    bool terminal_, on_;
    Duration interval_, next_;
    bool json_, printed_ = false;
    link::ForwarderReport before_;
};

int run(Arguments& a) {
    if (a.tun != (a.listen.empty() && a.target.empty()))
        return usage_error(a.tun ? "--tun does not go with --listen and --to"
                                 : "give --listen and --to for a relay, or --tun for a path between namespaces");
    if (!a.tun && (a.listen.empty() || a.target.empty())) return usage_error("a relay needs both --listen and --to");
    if (a.tun && a.a.network_namespace == a.b.network_namespace)
        return usage_error(
            "--tun needs two different namespaces: --ns-a, --ns-b or both (make them with `ip netns add NAME`)");
    if (a.tun) {
        a.a.mtu = a.b.mtu = static_cast<std::uint32_t>(a.mtu);
        if (a.a.addresses.empty() && a.a.name.find('%') != std::string::npos) a.a.addresses = {"10.77.0.1/24"};
        if (a.b.addresses.empty() && a.b.name.find('%') != std::string::npos) a.b.addresses = {"10.77.0.2/24"};
    }
    auto models = make_models(a);
    if (!models) return usage_error(models.error().message);

    struct sigaction action{};
    action.sa_handler = [](int) { g_stop = 1; };
    ::sigaction(SIGINT, &action, nullptr);
    ::sigaction(SIGTERM, &action, nullptr);
    auto started = start(a, std::move(*models));
    if (!started) {
        if (started.error().code == ErrorCode::kInvalidArgument) return usage_error(started.error().message);
        fmt::print(stderr, "sdr link: {}\n", started.error().message);
        return kExitFailure;
    }
    link::Forwarder& forwarder = *started->forwarder;
    if (!a.normal_priority) take_priority();
    if (!a.quiet && !a.json) fmt::print("link {}: {}\n", started->where, describe_link(a));
    std::FILE* ready = a.json ? stderr : stdout;
    fmt::print(ready, "ready\n");
    std::fflush(ready);

    LiveCounters live(a);
    Status ok;
    const link::RealClock clock;
    while (g_stop == 0 && ok) {
        const Duration running = clock.now() - TimePoint();
        if (running >= a.duration) break;
        ok = forwarder.step(std::min({Duration::from_milliseconds(50), a.duration - running, live.interval()}));
        live.update(forwarder, running);
    }
    live.finish();
    const auto report = forwarder.report();
    if (a.json)
        fmt::print("{}\n", summary_json(report).dump(2));
    else if (!a.quiet)
        fmt::print("{}", summary(report, started->names));
    std::fflush(stdout);
    if (!a.json)
        for (const auto& note : report.notes) fmt::print(stderr, "note: {}\n", note);
    if (const auto warning = keep_up_warning(report); !warning.empty()) fmt::print(stderr, "WARNING: {}\n", warning);
    if (!ok) {
        fmt::print(stderr, "sdr link: {}\n", ok.error().message);
        return kExitFailure;
    }
    return kExitOk;
}

/// An option whose text is read by one of the parse functions.
template <typename Target, typename Parse>
CLI::Option* add_parsed(CLI::App& command, const std::string& name, Target& target, Parse parse,
                        const std::string& type, const std::string& description) {
    return add_checked_option(
        &command, name,
        [&target, parse](const std::string& text) -> Status {
            auto value = parse(text);
            if (!value) return propagate(value);
            target = std::move(*value);
            return {};
        },
        type, description);
}

}  // namespace

void add_link_command(CLI::App& app, int& exit_code) {
    auto arguments = std::make_shared<Arguments>();
    Arguments& a = *arguments;
    CLI::App& command = *app.add_subcommand(
        "link", "Emulate a long link in real time: a UDP relay, or a path between two network namespaces");
    command.footer(kExamples);

    command
        .add_option("--listen", a.listen, "Relay: where clients send to; HOST:PORT or :PORT, port 0 takes a free one")
        ->type_name("HOST:PORT");
    command.add_option("--to", a.target, "Relay: where their datagrams go")->type_name("HOST:PORT");
    add_parsed(command, "--idle-timeout", a.idle, parse_duration, "TIME",
               "Relay: forget a client that was silent for so long (default 60s)");
    command.add_flag("--tun", a.tun, "Carry IP packets between two network namespaces over TUN devices (needs root)");
    command.add_option("--ns-a", a.a.network_namespace, "Network namespace of side A; without it, the current one")
        ->type_name("NAME");
    command.add_option("--ns-b", a.b.network_namespace, "Network namespace of side B; without it, the current one")
        ->type_name("NAME");
    command.add_option("--dev-a", a.a.name, "TUN device of side A; one of that name is used if it exists")
        ->type_name("DEV");
    command.add_option("--dev-b", a.b.name, "TUN device of side B; one of that name is used if it exists")
        ->type_name("DEV");
    command
        .add_option("--addr-a", a.a.addresses,
                    "Address of side A with prefix length; may be repeated (default 10.77.0.1/24)")
        ->type_name("ADDR/N")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    command
        .add_option("--addr-b", a.b.addresses,
                    "Address of side B with prefix length; may be repeated (default 10.77.0.2/24)")
        ->type_name("ADDR/N")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    command.add_option("--route-a", a.a.routes, "Destination that side A reaches over the link; may be repeated")
        ->type_name("ADDR/N")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    command.add_option("--route-b", a.b.routes, "Destination that side B reaches over the link; may be repeated")
        ->type_name("ADDR/N")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    command.add_option("--mtu", a.mtu, "MTU of the TUN devices")
        ->type_name("BYTES")
        ->default_str("1500")
        ->check(CLI::Range(576, 65535));

    add_parsed(command, "--rate", a.rate, parse_rate, "RATE", "Rate of each direction; 0: no limit (default 1G)");
    auto* rtt = add_parsed(command, "--rtt", a.round_trip, parse_duration, "TIME",
                           "Round trip: half of it each way (default 25ms)");
    add_parsed(command, "--delay", a.delay, parse_duration, "TIME", "Delay of each direction, instead of --rtt")
        ->excludes(rtt);
    add_parsed(command, "--queue", a.queue, parse_size, "SIZE",
               "Queue before the line, which drops what does not fit; 0: no limit (default: one bandwidth-delay "
               "product, at least 1MiB)");
    add_parsed(command, "--loss", a.loss, parse_probability, "P",
               "Share of packets that are lost, in both directions (default 0)");
    add_parsed(command, "--loss-ab", a.loss_forward, parse_probability, "P",
               "The same, only forward: to the target, from A to B");
    add_parsed(command, "--loss-ba", a.loss_backward, parse_probability, "P", "The same, only backward");
    add_parsed(command, "--burst", a.burst, link::parse_burst, "PACKETS",
               "Lose bursts of this mean length, with the same average loss (default 1: independent losses)");
    add_parsed(command, "--jitter", a.jitter, parse_duration, "TIME",
               "Delay each packet by a further 0 to TIME, without reordering");
    add_parsed(command, "--reorder", a.reorder, link::parse_reorder, "P:TIME",
               "Delay a share P of the packets by up to TIME, so that later ones overtake them");
    add_parsed(command, "--duplicate", a.duplicate, parse_probability, "P", "Deliver a share P of the packets twice");
    add_parsed(command, "--corrupt", a.corrupt, parse_probability, "P", "Flip a bit in a share P of the packets");
    add_parsed(command, "--overhead", a.overhead, parse_size, "BYTES",
               "Bytes that a packet occupies on the line beside the IP packet (default 0; 38 for Ethernet)")
        ->check(CLI::Range(0, 65535));
    add_parsed(command, "--schedule", a.schedule, link::parse_schedule, "LIST",
               "Changes over time: loss=P@T, loss=P/BURST@T, rate=R@T, delay=D@T, down@T, up@T, with commas between");
    whole_number(
        command.add_option("--seed", a.seed, "Seed of all random decisions")->type_name("N")->default_str("1"));
    add_parsed(command, "--duration", a.duration, parse_duration, "TIME",
               "End after so long (default: at SIGINT or SIGTERM)");
    add_parsed(command, "--stats-interval", a.interval, parse_duration, "TIME",
               "Print counters this often on standard error (default: 1s on a terminal, else never)");
    command.add_flag(
        "--normal-priority", a.normal_priority,
        "Do not ask for real-time priority (asked for by default, granted to root), which keeps the link's times right "
        "on a busy host");
    command.add_flag("--json", a.json, "Print the summary as JSON");
    command.add_flag("--quiet", a.quiet, "Print only `ready`, and at the end warnings");
    command.callback([arguments, &exit_code, &command] {
        // An option of the other form would be ignored, and the link not be what was asked for.
        for (const char* name :
             {"--ns-a", "--ns-b", "--dev-a", "--dev-b", "--addr-a", "--addr-b", "--route-a", "--route-b", "--mtu"})
            if (!arguments->tun && command.count(name) > 0)
                throw CLI::ValidationError(name, "goes with --tun only, a relay has no such thing: leave it out");
        if (arguments->tun && command.count("--idle-timeout") > 0)
            throw CLI::ValidationError("--idle-timeout", "goes with --listen and --to only: leave it out with --tun");
        exit_code = run(*arguments);
    });
}

}  // namespace farhaul::app
