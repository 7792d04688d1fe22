#include "backend/mirror/fd.hpp"

#include <atomic>

#include <fcntl.h>
#include <pthread.h>

namespace farhaul::backend::mirror {

namespace {

// The folder is opened once, which saves the walk to it each time. It is that of the process which opened it: a child
// of fork(2) opens its own.
std::atomic<int> folder_fd{-1};

void open_folder() { folder_fd.store(::open("/proc/self/fd", O_PATH | O_DIRECTORY | O_CLOEXEC)); }
void in_child() {
    const int parents = folder_fd.exchange(-1);
    if (parents >= 0) ::close(parents);
    open_folder();
}

int folder() {
    static const bool opened = [] {
        open_folder();
        return ::pthread_atfork(nullptr, nullptr, in_child) == 0;
    }();
    return opened ? folder_fd.load(std::memory_order_relaxed) : -1;
}

}  // namespace

int reopen(int fd, int flags) {
    const FdPath path(fd);
    const int proc = folder();
    return proc >= 0 ? ::openat(proc, path.name(), flags) : ::open(path.c_str(), flags);
}

}  // namespace farhaul::backend::mirror
