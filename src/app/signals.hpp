// SIGINT and SIGTERM as events of a loop, so that a command can clean up.
#pragma once

#include <csignal>
#include <functional>

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>

#include "io/unique_fd.hpp"
#include "wire/udp/real_loop.hpp"

namespace farhaul::app {

/// Calls `on_signal` from the loop at the first signal. A second one ends the process at once, should cleaning up hang.
/// Make it before any thread: threads inherit the mask.
class Signals {
 public:
    Signals(udp::RealLoop& loop, std::function<void(int signal)> on_signal)
        : loop_(loop), on_signal_(std::move(on_signal)) {
        sigemptyset(&set_);
        sigaddset(&set_, SIGINT);
        sigaddset(&set_, SIGTERM);
        pthread_sigmask(SIG_BLOCK, &set_, nullptr);
        fd_.reset(::signalfd(-1, &set_, SFD_NONBLOCK | SFD_CLOEXEC));
        if (fd_ && !loop_.add_fd(fd_.get(), EPOLLIN, [this](std::uint32_t) { take(); })) fd_.reset();
        if (!fd_) pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
    }
    ~Signals() {
        if (fd_) loop_.remove_fd(fd_.get());
    }
    Signals(const Signals&) = delete;
    Signals& operator=(const Signals&) = delete;

 private:
    void take() {
        signalfd_siginfo info{};
        if (::read(fd_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return;
        pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
        on_signal_(static_cast<int>(info.ssi_signo));
    }
    udp::RealLoop& loop_;
    std::function<void(int)> on_signal_;
    sigset_t set_{};
    io::UniqueFd fd_;
};

}  // namespace farhaul::app
