#include "app/allreduce/local_ranks.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "app/commands.hpp"
#include "io/unique_fd.hpp"

namespace farhaul::app::allreduce {
namespace {

struct Pipe {
    io::UniqueFd read_end, write_end;
    static Result<Pipe> make() {
        int ends[2];
        if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno(errno, "cannot make a pipe");
        return Pipe{io::UniqueFd(ends[0]), io::UniqueFd(ends[1])};
    }
};

/// Ends its processes when it goes; those that have been waited for are gone already.
class Children {
 public:
    Children() = default;
    Children(const Children&) = delete;
    Children& operator=(const Children&) = delete;
    ~Children() {
        for (const pid_t child : pids_) ::kill(child, SIGTERM);
        for (const pid_t child : pids_) ::waitpid(child, nullptr, 0);
    }
    /// -1 in the parent on failure, 0 in the child.
    pid_t fork_one() {
        std::fflush(nullptr);
        const pid_t parent = ::getpid();
        const pid_t child = ::fork();
        if (child == 0) {
            // A parent that is killed takes its ranks with it.
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (::getppid() != parent) ::_exit(kExitFailure);
            pids_.clear();
        } else if (child > 0) {
            pids_.push_back(child);
        }
        return child;
    }
    const std::vector<pid_t>& pids() const { return pids_; }
    void forget(pid_t pid) { std::erase(pids_, pid); }

 private:
    std::vector<pid_t> pids_;
};

bool read_port(int fd, std::uint16_t& port) {
    ssize_t got;
    do got = ::read(fd, &port, sizeof port);
    while (got < 0 && errno == EINTR);
    return got == static_cast<ssize_t>(sizeof port);
}

/// `sdr link` to a port of this host. Returns the port that it listens on. `output`: what it says
/// from then on.
Result<std::uint16_t> start_link(Children& children, std::uint16_t to, std::uint32_t number,
                                 const std::vector<std::string>& arguments, io::UniqueFd& output) {
    auto pipe = Pipe::make();
    if (!pipe) return propagate(pipe);
    std::vector<std::string> words = {"sdr",      "link",
                                      "--listen", "127.0.0.1:0",
                                      "--to",     fmt::format("127.0.0.1:{}", to),
                                      "--seed",   std::to_string(number + 1)};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t child = children.fork_one();
    if (child < 0) return fail_errno(errno, "cannot start a link");
    if (child == 0) {
        ::dup2(pipe->write_end.get(), STDOUT_FILENO);
        ::dup2(pipe->write_end.get(), STDERR_FILENO);
        ::execv("/proc/self/exe", argv.data());
        ::_exit(kExitFailure);
    }
    pipe->write_end.reset();
    // "link 127.0.0.1:PORT ..." is its first line, "ready" comes when it is.
    std::string said;
    while (said.find("\nready") == std::string::npos) {
        char buffer[512];
        const ssize_t got = ::read(pipe->read_end.get(), buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return fail(ErrorCode::kIo, "a link between two ranks did not come up: {}", said);
        said.append(buffer, static_cast<std::size_t>(got));
    }
    constexpr std::string_view kBefore = "127.0.0.1:";
    const auto at = said.find(kBefore);
    const int port = at == std::string::npos ? 0 : std::atoi(said.c_str() + at + kBefore.size());
    if (port <= 0 || port > 65535) return fail(ErrorCode::kIo, "a link between two ranks said '{}'", said);
    output = std::move(pipe->read_end);
    return static_cast<std::uint16_t>(port);
}

/// Ends the links and passes on what they warn of.
void end_links(const Children& links, const std::vector<io::UniqueFd>& outputs) {
    for (const pid_t link : links.pids()) ::kill(link, SIGTERM);
    for (const io::UniqueFd& output : outputs) {
        std::string said;
        char buffer[4096];
        for (ssize_t got; (got = ::read(output.get(), buffer, sizeof buffer)) > 0 && said.size() < (1u << 20);)
            said.append(buffer, static_cast<std::size_t>(got));
        for (std::size_t at = 0; (at = said.find("WARNING", at)) != std::string::npos; ++at)
            fmt::print(stderr, "{}\n", std::string_view(said).substr(at, said.find('\n', at) - at));
    }
}

}  // namespace

Result<int> run_local(const LocalOptions& options, const RankMain& rank_main) {
    struct Process {
        pid_t pid;
        Pipe up, down;
        std::uint16_t port = 0;
    };
    Children links, children;
    std::vector<io::UniqueFd> outputs;
    std::vector<Process> processes;
    for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
        auto up = Pipe::make(), down = Pipe::make();
        if (!up) return propagate(up);
        if (!down) return propagate(down);
        const pid_t child = children.fork_one();
        if (child < 0) return fail_errno(errno, "cannot start a rank");
        if (child == 0) {
            processes.clear();  // the pipes of the others: their ends must be seen
            const auto listening = [&](std::uint16_t port) -> Result<udp::Address> {
                std::uint16_t right = 0;
                if (::write(up->write_end.get(), &port, sizeof port) != static_cast<ssize_t>(sizeof port) ||
                    !read_port(down->read_end.get(), right))
                    return fail(ErrorCode::kIo, "the process that started this rank is gone");
                if (options.ranks == 1) return udp::Address();  // it has no neighbours
                return udp::parse_address(fmt::format("127.0.0.1:{}", right), udp::AddressUse::kConnect);
            };
            down->write_end.reset();
            const int code = rank_main(rank, listening);
            std::fflush(nullptr);
            ::_exit(code);
        }
        up->write_end.reset();
        down->read_end.reset();
        processes.push_back({child, std::move(*up), std::move(*down)});
    }
    if (!options.quiet) {
        std::string text;
        for (const Process& process : processes) text += fmt::format(" {}", process.pid);
        fmt::print(stderr, "ranks 0 to {} are the processes{}\n", options.ranks - 1, text);
    }
    for (Process& process : processes)
        if (!read_port(process.up.read_end.get(), process.port)) return kExitFailure;  // it said why
    for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
        std::uint16_t right = processes[(rank + 1) % options.ranks].port;
        if (!options.link.empty() && options.ranks > 1) {
            auto link = start_link(links, right, rank, options.link, outputs.emplace_back());
            if (!link) return propagate(link);
            right = *link;
        }
        if (::write(processes[rank].down.write_end.get(), &right, sizeof right) != static_cast<ssize_t>(sizeof right))
            return fail(ErrorCode::kIo, "rank {} is gone before it began", rank);
    }
    int worst = kExitOk;
    while (!children.pids().empty()) {
        int status = 0;
        const pid_t ended = ::waitpid(-1, &status, 0);
        if (ended < 0 && errno == EINTR) continue;
        if (ended < 0) break;
        links.forget(ended);
        children.forget(ended);
        const auto process = std::ranges::find(processes, ended, &Process::pid);
        if (process == processes.end()) continue;  // a link: its ranks will notice
        if (WIFSIGNALED(status))
            fmt::print(stderr, "sdr allreduce: rank {} was ended by signal {} ({})\n", process - processes.begin(),
                       WTERMSIG(status), ::strsignal(WTERMSIG(status)));
        worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : int{kExitFailure});
    }
    end_links(links, outputs);
    return worst;
}

}  // namespace farhaul::app::allreduce
