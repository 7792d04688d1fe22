#include "app/dpfs/background.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include <fcntl.h>
#include <spdlog/sinks/syslog_sink.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "app/commands.hpp"
#include "base/log.hpp"

namespace farhaul::app::dpfs {

Background::Background(bool stay) {
    if (stay) return;
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (child == 0) {
        ::close(ends[0]);
        pipe_ = ends[1];
        ::setsid();
        return;
    }
    ::close(ends[1]);
    char word = 0;
    ssize_t got = 0;
    do got = ::read(ends[0], &word, 1);
    while (got < 0 && errno == EINTR);
    if (got == 1) ::_exit(kExitOk);
    // It has said why.
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    ::_exit(WIFEXITED(status) && WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : kExitFailure);
}

void Background::started() {
    if (pipe_ < 0) return;
    log().flush();
    log().sinks() = {std::make_shared<spdlog::sinks::syslog_sink_mt>("dpfs", LOG_PID, LOG_DAEMON, false)};
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) {
        for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, fd);
        if (null > STDERR_FILENO) ::close(null);
    }
    // The current folder could not be unmounted.
    [[maybe_unused]] const int moved = ::chdir("/");
    const char word = 1;
    [[maybe_unused]] const ssize_t written = ::write(pipe_, &word, 1);
    ::close(pipe_);
    pipe_ = -1;
}

}  // namespace farhaul::app::dpfs
