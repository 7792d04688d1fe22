#include "hal/dev_fuse/mount.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.hpp"
#include "base/units.hpp"
#include "hal/dev_fuse/attach.hpp"
#include "hal/dev_fuse/backing_files.hpp"
#include "hal/dev_fuse/device_queue.hpp"
#include "hal/dev_fuse/service.hpp"
#include "hal/dev_fuse/uring_worker.hpp"

namespace farhaul::hal {

namespace {

constexpr const char* kUringSwitch = "/sys/module/fuse/parameters/enable_uring";

/// Threads that serve get no signals: those are for whoever made the mount.
template <typename Function>
std::thread start_thread(Function function) {
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread thread(std::move(function));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
}

/// `flags`: O_NONBLOCK or 0.
Result<io::UniqueFd> clone_device(const io::UniqueFd& device, int flags) {
    io::UniqueFd clone(::open("/dev/fuse", O_RDWR | O_CLOEXEC | flags));
    if (!clone) return fail_errno(errno, "cannot open /dev/fuse");
    auto master = static_cast<std::uint32_t>(device.get());
    if (::ioctl(clone.get(), fuse::abi::kDevIocClone, &master) != 0)
        return fail_errno(errno, "cannot clone the descriptor of the mount");
    return clone;
}

}  // namespace

Status io_uring_available() {
    std::ifstream file(kUringSwitch);
    char value = 0;
    if (!(file >> value))
        return fail(ErrorCode::kUnsupported, "this kernel has no FUSE over io_uring (Linux 6.14 and later have)");
    if (value != 'Y' && value != '1')
        return fail(ErrorCode::kUnsupported, "FUSE over io_uring is off; as root: echo 1 > {}", kUringSwitch);
    if (auto ring = io::Ring::create(4, true); !ring) return propagate(ring);
    return {};
}

Mount::Mount(fuse::Session& session, MountOptions options) : session_(session), options_(std::move(options)) {}

Result<std::unique_ptr<Mount>> Mount::create(fuse::Session& session, MountOptions options) {
    if (options.threads == 0) options.threads = std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
    if (options.threads > 64) return fail(ErrorCode::kInvalidArgument, "threads: 1 to 64");
    if (options.queue_depth > 1024) return fail(ErrorCode::kInvalidArgument, "queue depth: 1 to 1024");
    if (options.max_read != 0 && options.max_read < 4096)
        return fail(ErrorCode::kInvalidArgument, "max_read: 4096 or more");
    std::unique_ptr<Mount> mount(new Mount(session, std::move(options)));
    if (auto status = mount->attach(); !status) return propagate(status);
    if (auto status = mount->start_threads(); !status) {
        mount->detach();
        return propagate(status);
    }
    return mount;
}

Status Mount::attach() {
    if (session_.options().over_io_uring) {
        if (auto available = io_uring_available(); !available) return propagate(available);
    }
    service_ = std::make_unique<Service>(session_);
    if (!service_->ended_fd || !service_->ready_fd) return fail_errno(EMFILE, "cannot make an eventfd");
    // Before the mount: once it is there, what fails leaves applications waiting.
    if (session_.options().over_io_uring) {
        const unsigned depth = options_.queue_depth != 0 ? options_.queue_depth : 8;
        for (UringWorker::Share& share : UringWorker::shares()) {
            auto worker = UringWorker::create(*service_, std::move(share), depth);
            if (!worker) return propagate(worker);
            workers_.push_back(std::move(*worker));
        }
        service_->on_initialized = [this] { start_io_uring(); };
    }

    auto resolved = resolve_mountpoint(options_.mountpoint);
    if (!resolved) return propagate(resolved);
    options_.mountpoint = std::move(*resolved);
    const std::string type = "fuse." + options_.subtype;
    auto dead = remove_dead_mounts(options_.mountpoint, type);
    if (!dead) return propagate(dead);
    if (*dead != 0) log().warn("{} was a dead mount, its server was killed: unmounted it", options_.mountpoint);
    auto device = attach_mount(options_);
    if (!device) return propagate(device);
    device_ = std::move(*device);
    backing_files_ = std::make_unique<DeviceBackingFiles>(device_.get());
    session_.offer(*backing_files_);
    if (const auto entry = mounted_on(options_.mountpoint)) device_number_ = entry->device_number;
    return {};
}

Status Mount::start_threads() {
    const unsigned slots = options_.queue_depth != 0 ? options_.queue_depth : 16;
    for (unsigned i = 0; i < options_.threads; ++i) {
        auto polled = clone_device(device_, O_NONBLOCK);
        if (!polled) return propagate(polled);
        auto waiting = clone_device(device_, 0);
        if (!waiting) return propagate(waiting);
        auto queue = DeviceQueue::create(*service_, std::move(*polled), std::move(*waiting), slots);
        if (!queue) return propagate(queue);
        queues_.push_back(std::move(*queue));
    }
    for (const auto& queue : queues_) threads_.push_back(start_thread([&queue] { queue->run(); }));
    return {};
}

void Mount::start_io_uring() {
    if (!session_.connection().has(fuse::abi::kOverIoUring)) {
        log().warn("the kernel did not agree to FUSE over io_uring: requests go through /dev/fuse");
        return;
    }
    service_->io_uring_serves.store(true);
    for (const auto& worker : workers_)
        service_->worker_threads.push_back(start_thread([&worker, this] { worker->run(device_.get()); }));
}

Mount::~Mount() { unmount(); }

Status Mount::wait_until_ready(Duration limit) {
    pollfd events[2] = {{.fd = service_->ready_fd.get(), .events = POLLIN, .revents = 0},
                        {.fd = service_->ended_fd.get(), .events = POLLIN, .revents = 0}};
    int ready = 0;
    do ready = ::poll(events, 2, static_cast<int>(limit.nanoseconds() / 1'000'000));
    while (ready < 0 && errno == EINTR);
    if (ready == 0)
        return fail(ErrorCode::kTimeout, "the kernel and {} did not agree within {}", options_.source,
                    format_duration(limit));
    if (events[0].revents != 0) return {};
    return fail(ErrorCode::kClosed, "{} was unmounted before it was ready", options_.mountpoint);
}

Transport Mount::transport() const {
    return service_->io_uring_serves.load() && !service_->io_uring_failed.load() ? Transport::kIoUring
                                                                                 : Transport::kClassic;
}

int Mount::ended_fd() const { return service_->ended_fd.get(); }

bool Mount::failed() const { return service_->failed.load(); }

void Mount::detach() {
    if (!device_ || device_number_.empty()) return;
    // Somebody may have unmounted it, or mounted over it: only what is ours is taken away.
    const auto entry = mounted_on(options_.mountpoint);
    if (!entry || entry->device_number != device_number_) return;
    auto detached = detach_mount(options_.mountpoint, false);
    if (detached || detached.error().code != ErrorCode::kRetry) return;
    log().warn("{} is in use: detaching it, its open files fail from now on", options_.mountpoint);
    // What is still in the kernel's cache is written back, unless nobody would serve it: that would wait for ever.
    if (service_->serving()) {
        const io::UniqueFd root(::open(options_.mountpoint.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        if (root) ::syncfs(root.get());
    }
    if (auto lazily = detach_mount(options_.mountpoint, true); !lazily) log().error("{}", lazily.error().message);
}

void Mount::unmount() {
    if (finished_) return;
    finished_ = true;
    if (!service_) return;
    if (!service_->unmounted.load()) detach();
    service_->stop.store(true);
    // `threads_` may be fewer than queues, if starting failed midway.
    for (std::size_t i = 0; i < threads_.size(); ++i) {
        for (; !queues_[i]->finished(); std::this_thread::sleep_for(std::chrono::milliseconds(1))) queues_[i]->wake();
        threads_[i].join();
    }
    // No INIT can come any more, so no further worker starts.
    for (const auto& worker : workers_) worker->wake();
    for (std::thread& thread : service_->worker_threads) thread.join();
    service_->connection_ended();
    workers_.clear();
    queues_.clear();
    session_.disconnect();
    device_.reset();  // the last descriptor: what still holds the mount gets ENOTCONN
}

}  // namespace farhaul::hal
