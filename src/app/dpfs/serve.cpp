#include "app/dpfs/serve.hpp"

#include <cerrno>
#include <csignal>
#include <ctime>
#include <memory>
#include <optional>

#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "app/commands.hpp"
#include "app/dpfs/background.hpp"
#include "base/log.hpp"
#include "daemon/control_socket.hpp"
#include "daemon/statistics.hpp"
#include "io/unique_fd.hpp"

namespace farhaul::app::dpfs {

namespace {

std::uint64_t now_nanoseconds() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

int report(const Error& error) {
    fmt::print(stderr, "dpfs mount: {}\n", error.message);
    return error.code == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailure;
}

void prepare_process() {
    // Sources keep files open.
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        ::setrlimit(RLIMIT_NOFILE, &files);
    }
    // Modes come with the umask of the one who creates applied already.
    ::umask(0);
#ifdef PR_SET_IO_FLUSHER
    // Memory that is freed by writing back through us must not wait for us. Needs CAP_SYS_RESOURCE.
    ::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
#endif
}

class Signals {
 public:
    Signals() {
        sigemptyset(&set_);
        for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set_, signal);
        ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
        fd_ = io::UniqueFd(::signalfd(-1, &set_, SFD_NONBLOCK | SFD_CLOEXEC));
    }
    int fd() const { return fd_.get(); }
    /// A second signal ends the process at once, should unmounting hang.
    void release() { ::pthread_sigmask(SIG_UNBLOCK, &set_, nullptr); }
    int take() const {
        signalfd_siginfo info{};
        return ::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))
                   ? static_cast<int>(info.ssi_signo)
                   : 0;
    }

 private:
    sigset_t set_{};
    io::UniqueFd fd_;
};

const char* name_of(hal::Transport transport) { return transport == hal::Transport::kIoUring ? "io_uring" : "classic"; }

void wait_for_end(const hal::Mount& mount, Signals& signals, daemon::ControlSocket* control,
                  const std::function<std::string()>& document) {
    for (;;) {
        pollfd events[3] = {{.fd = mount.ended_fd(), .events = POLLIN, .revents = 0},
                            {.fd = signals.fd(), .events = POLLIN, .revents = 0},
                            {.fd = control != nullptr ? control->fd() : -1, .events = POLLIN, .revents = 0}};
        if (::poll(events, 3, -1) < 0 && errno != EINTR) return;
        if (events[0].revents != 0) {
            if (!mount.failed()) log().info("{} was unmounted", mount.mountpoint());
            return;
        }
        if (events[1].revents != 0) {
            log().info("signal {}: unmounting {}", signals.take(), mount.mountpoint());
            return signals.release();
        }
        if (events[2].revents != 0) control->answer(document);
    }
}

}  // namespace

int serve(MountPlan plan, bool foreground) {
    if (plan.io_uring != IoUring::kOff) {
        auto available = hal::io_uring_available();
        if (!available && plan.io_uring == IoUring::kOn) return report(available.error());
        if (!available) log().info("{}", available.error().message);
        plan.session.over_io_uring = available.has_value();
    }
    prepare_process();
    Background background(foreground);
    Signals signals;
    auto file_system = backend::open_source(plan.source, plan.source_options);
    if (!file_system) return report(file_system.error());
    fuse::Session session(**file_system, plan.session, now_nanoseconds);
    const std::uint64_t began = now_nanoseconds();
    auto mount = hal::Mount::create(session, plan.mount);
    if (!mount) return report(mount.error());
    if (auto ready = (*mount)->wait_until_ready(Duration::from_seconds(30)); !ready) return report(ready.error());

    std::optional<daemon::ControlSocket> control;
    if (auto opened = daemon::ControlSocket::open()) {
        control.emplace(std::move(*opened));
    } else {
        log().warn("no statistics for dpfs stat: {}", opened.error().message);
    }
    const auto document = [&] {
        return daemon::statistics_of(
                   session,
                   {.mountpoint = (*mount)->mountpoint(),
                    .source = plan.source,
                    .transport = name_of((*mount)->transport()),
                    .threads = (*mount)->threads(),
                    .uptime = Duration::from_nanoseconds(static_cast<std::int64_t>(now_nanoseconds() - began))})
            .dump();
    };
    background.started();
    wait_for_end(**mount, signals, control ? &*control : nullptr, document);
    (*mount)->unmount();
    return (*mount)->failed() ? kExitFailure : kExitOk;
}

}  // namespace farhaul::app::dpfs
