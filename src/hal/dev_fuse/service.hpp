// What the queues of one mount share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <sys/eventfd.h>
#include <unistd.h>

#include "fuse/session.hpp"
#include "io/unique_fd.hpp"

namespace farhaul::hal {

struct Service {
    explicit Service(fuse::Session& of)
        : session(of),
          ended_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
          ready_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

    fuse::Session& session;
    io::UniqueFd ended_fd;
    io::UniqueFd ready_fd;
    std::atomic<bool> ended{false};      ///< the connection is given up: no reply matters any more
    std::atomic<bool> failed{false};     ///< set before `ended`: by an error here; the kernel has ended nothing
    std::atomic<bool> unmounted{false};  ///< and the mount is gone, too
    std::atomic<bool> stop{false};       ///< we do: take no more requests, finish what is under way
    std::atomic<bool> io_uring_serves{false};
    std::atomic<bool> io_uring_failed{false};
    std::atomic<bool> is_ready{false};
    std::function<void()> on_initialized;  ///< called once, by the thread that served INIT
    std::once_flag initialized_once;

    std::vector<std::thread> worker_threads;  ///< started by the thread that served INIT, joined after it

    /// Both sides have agreed, and requests are answered.
    bool serving() const { return session.initialized() && is_ready.load() && !ended.load(); }
    void connection_ended() {
        if (!ended.exchange(true)) signal(ended_fd);
    }
    void connection_failed() {
        failed.store(true);
        connection_ended();
    }
    void initialized() {
        std::call_once(initialized_once, [this] {
            if (on_initialized) on_initialized();
            is_ready.store(true);
            signal(ready_fd);
        });
    }
    static void signal(const io::UniqueFd& event) {
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = ::write(event.get(), &one, sizeof(one));
    }
};

}  // namespace farhaul::hal
