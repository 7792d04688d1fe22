// fs_differential: the same random operations, by several processes with different identities, on several roots; every
// result, errno, attribute and byte must agree with the first root. See run.sh for how the roots are made.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include "operations.hpp"

namespace {

using farhaul::Random;
using farhaul::differential::Process;
using farhaul::differential::Root;

struct Settings {
    std::vector<Root> roots;
    std::string chroot;
    std::uint64_t seed = 1;
    std::uint64_t operations = 20'000;
    unsigned processes = 3;
    std::uint64_t check_every = 2'000;
    bool apart = false;
    bool verbose = false;
    bool set_id = true;
    std::string watch;
};

bool send_all(int fd, const void* bytes, std::size_t size) {
    for (std::size_t at = 0; at < size;) {
        const ssize_t step = ::write(fd, static_cast<const char*>(bytes) + at, size - at);
        if (step <= 0) return false;
        at += static_cast<std::size_t>(step);
    }
    return true;
}
bool receive_all(int fd, void* bytes, std::size_t size) {
    for (std::size_t at = 0; at < size;) {
        const ssize_t step = ::read(fd, static_cast<char*>(bytes) + at, size - at);
        if (step <= 0) return false;
        at += static_cast<std::size_t>(step);
    }
    return true;
}
void send_text(int fd, const std::string& text) {
    const std::uint64_t size = text.size();
    send_all(fd, &size, sizeof(size));
    send_all(fd, text.data(), text.size());
}
bool receive_text(int fd, std::string& text) {
    std::uint64_t size = 0;
    if (!receive_all(fd, &size, sizeof(size))) return false;
    text.resize(size);
    return receive_all(fd, text.data(), size);
}

/// Root, then users who share a group with each other and own nothing yet.
void become(unsigned index) {
    if (index % 3 == 0) return;
    const gid_t own = 1000 + (index % 3 - 1) * 500;
    const gid_t groups[] = {own, 2000};
    if (::setgroups(2, groups) != 0 || ::setgid(own) != 0 || ::setuid(1000 + index % 3 - 1) != 0) {
        std::perror("fs_differential: cannot change identity (run it as root)");
        _exit(3);
    }
    ::prctl(PR_SET_DUMPABLE, 1);  // /proc/self/fd stays readable
}

enum Command : std::uint64_t { kStep, kCompare, kRun, kCounts };
struct Order {
    std::uint64_t command;
    std::uint64_t value;
    std::uint64_t count;
};

[[noreturn]] void work(const Settings& settings, unsigned index, int fd) {
    ::umask(022);
    {
        Process process(settings.roots, settings.apart ? fmt::format("p{}", index) : "", settings.verbose,
                        settings.watch);
        if (!settings.set_id) process.without_set_id();
        become(index);
        Order order;
        while (receive_all(fd, &order, sizeof(order))) {
            std::string reply;
            if (order.command == kStep) {
                reply = process.step(order.value);
            } else if (order.command == kCompare) {
                reply = process.compare_trees();
            } else if (order.command == kRun) {
                Random random(order.value);
                for (std::uint64_t i = 0; i < order.count && reply.empty(); ++i) {
                    reply = process.step(random());
                    if (reply.empty() && i % settings.check_every == settings.check_every - 1) {
                        reply = process.compare_trees();
                        if (!reply.empty()) reply = "comparing the trees: " + reply;
                    }
                    if (!reply.empty()) reply = fmt::format("process {}, operation {}: {}", index, i, reply);
                }
            } else {
                for (const auto& [kind, count] : process.counts())
                    reply += fmt::format("{} {} {}\n", kind, count.first, count.second);
            }
            send_text(fd, reply);
        }
    }
    _exit(0);
}

int run(const Settings& settings) {
    if (!settings.chroot.empty() && (::chroot(settings.chroot.c_str()) != 0 || ::chdir("/") != 0)) {
        std::perror("fs_differential: chroot");
        return 3;
    }
    for (const Root& root : settings.roots) {
        for (unsigned i = 0; settings.apart && i < settings.processes; ++i) {
            const std::string folder = root.path + "/p" + std::to_string(i);
            if (::mkdir(folder.c_str(), 0777) != 0 || ::chmod(folder.c_str(), 0777) != 0) {
                fmt::print(stderr, "fs_differential: {}: {}\n", folder, std::strerror(errno));
                return 3;
            }
        }
        if (::chmod(root.path.c_str(), 0777) != 0) {
            fmt::print(stderr, "fs_differential: {}: {}\n", root.path, std::strerror(errno));
            return 3;
        }
    }
    std::signal(SIGPIPE, SIG_IGN);  // a process that died is reported as such
    std::vector<int> sockets;
    std::vector<pid_t> children;
    for (unsigned i = 0; i < settings.processes; ++i) {
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return 3;
        const pid_t child = ::fork();
        if (child == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (const int other : sockets) ::close(other);
            ::close(pair[0]);
            work(settings, i, pair[1]);
        }
        ::close(pair[1]);
        sockets.push_back(pair[0]);
        children.push_back(child);
    }
    const auto ask = [&](unsigned process, Order order, std::string& reply) {
        if (send_all(sockets[process], &order, sizeof(order)) && receive_text(sockets[process], reply)) return true;
        reply = fmt::format("process {} died", process);
        return false;
    };

    std::string difference, reply;
    Random random(settings.seed);
    if (settings.apart) {
        for (unsigned i = 0; i < settings.processes; ++i) {
            const Order order{kRun, random(), settings.operations / settings.processes};
            send_all(sockets[i], &order, sizeof(order));
        }
        for (unsigned i = 0; i < settings.processes; ++i) {
            if (!receive_text(sockets[i], reply)) reply = fmt::format("process {} died", i);
            if (difference.empty()) difference = reply;
        }
    } else {
        for (std::uint64_t i = 0; i < settings.operations && difference.empty(); ++i) {
            // Half of it by root, whom nothing stops.
            const auto process = static_cast<unsigned>(random.below(2) == 0 ? 0 : random.below(settings.processes));
            ask(process, {kStep, random(), 0}, reply);
            if (!reply.empty()) difference = fmt::format("operation {} by process {}: {}", i, process, reply);
            if (difference.empty() && (i + 1) % settings.check_every == 0) {
                ask(0, {kCompare, 0, 0}, reply);
                if (!reply.empty()) difference = fmt::format("comparing the trees after operation {}: {}", i, reply);
            }
        }
    }
    if (difference.empty()) {
        for (unsigned i = 0; i < settings.processes && difference.empty(); ++i) {
            ask(i, {kCompare, 0, 0}, reply);
            if (!reply.empty()) difference = fmt::format("comparing the trees at the end, as process {}: {}", i, reply);
        }
    }
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> counts;
    for (unsigned i = 0; i < settings.processes; ++i) {
        if (!ask(i, {kCounts, 0, 0}, reply)) continue;
        char kind[64];
        unsigned long good = 0, bad = 0;
        for (const char* at = reply.c_str(); *at != '\0'; at = std::strchr(at, '\n') + 1) {
            if (std::sscanf(at, "%63s %lu %lu", kind, &good, &bad) != 3) break;
            counts[kind].first += good;
            counts[kind].second += bad;
        }
    }
    for (const int fd : sockets) ::close(fd);
    for (unsigned i = 0; i < children.size(); ++i) {
        int status = 0;
        ::waitpid(children[i], &status, 0);
        if (WIFSIGNALED(status))
            difference += fmt::format("\nprocess {} ended by signal {} ({})", i, WTERMSIG(status),
                                      sigabbrev_np(WTERMSIG(status)));
    }

    if (!difference.empty()) {
        fmt::print("DIFFERENT, seed {}{}: {}\n", settings.seed, settings.apart ? " (apart)" : "", difference);
        return 1;
    }
    std::uint64_t good = 0, bad = 0;
    std::string table;
    for (const auto& [kind, count] : counts) {
        good += count.first;
        bad += count.second;
        table += fmt::format(" {}:{}/{}", kind, count.first, count.second);
    }
    fmt::print("equal, seed {}{}: {} operations on {} roots by {} processes, {} successes, {} errors\n ", settings.seed,
               settings.apart ? " (apart)" : "", good + bad, settings.roots.size(), settings.processes, good, bad);
    fmt::print("{}\n", table);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    Settings settings;
    std::vector<std::string> roots;
    CLI::App app{"Does the same random file operations on several roots and compares every result with the first",
                 "fs_differential"};
    app.footer(
        "Example: fs_differential --root plain=/a --root mounted=/b --seed 7 --ops 20000\nExit status: 0 equal, 1 "
        "different, 2 wrong command line, 3 could not run");
    app.add_option("--root", roots, "NAME=PATH, an empty directory; the first is the reference")->required();
    app.add_option("--chroot", settings.chroot, "Change the root to this directory first, so that no '..' leads out");
    app.add_option("--seed", settings.seed, "The same seed does the same operations");
    app.add_option("--ops", settings.operations, "How many operations");
    app.add_option("--processes", settings.processes, "How many processes: the first is root, others are users")
        ->check(CLI::Range(1, 32));
    app.add_option("--check-every", settings.check_every, "Compare the whole trees after so many operations");
    app.add_flag("--apart", settings.apart,
                 "Each process at its own pace in a folder of its own, instead of all in turn in one");
    app.add_flag(
        "!--no-set-id", settings.set_id,
        "chmod sets no S_ISUID and S_ISGID: of an open file that the kernel writes by itself (passthrough), the "
        "next write clears them, root's too");
    app.add_flag("-v,--verbose", settings.verbose, "Print every operation");
    app.add_option("--watch", settings.watch, "With -v: print the attributes of this path before every operation");
    CLI11_PARSE(app, argc, argv);
    for (const std::string& root : roots) {
        const auto equals = root.find('=');
        if (equals == std::string::npos) {
            fmt::print(stderr, "fs_differential: --root is NAME=PATH, not '{}'\n", root);
            return 2;
        }
        settings.roots.push_back({root.substr(0, equals), root.substr(equals + 1)});
    }
    return run(settings);
}
