#include "capi/context.hpp"

#include <cerrno>
#include <system_error>

#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include "capi/device.hpp"

namespace farhaul::capi {

namespace {

/// Longest sleep of an idle context: nothing depends on it, it only bounds the effect of a lost wake-up.
constexpr Duration kLongestSleep = Duration::from_milliseconds(1'000);

}  // namespace

Context::Guard::Guard(Context& context) : context_(context) {
    context_.lock_.lock(TurnLock::Side::kCaller);
    context_.loop_->update_now();
}

Context::Guard::~Guard() {
    const bool wake = context_.loop_->timers().next_deadline() < context_.sleeps_until_;
    if (wake) context_.sleeps_until_ = TimePoint();
    context_.lock_.unlock();
    if (wake) context_.loop_->wake();
}

Result<std::unique_ptr<Context>> Context::open(const char* device, const sdr_dev_attr& attributes) {
    if (attributes.num_channels > udp::kMaxChannels)
        return fail(ErrorCode::kInvalidArgument, "num_channels is {}: at most {} are possible, 0 means 1",
                    attributes.num_channels, udp::kMaxChannels);
    if (attributes.log_max_qps > 32)
        return fail(ErrorCode::kInvalidArgument, "log_max_qps is {}: at most 32 (it is a logarithm), 0 means no limit",
                    attributes.log_max_qps);
    auto address = resolve_device(device);
    if (!address) return propagate(address);

    std::unique_ptr<Context> context(new Context);
    context->channels_ = attributes.num_channels == 0 ? 1 : attributes.num_channels;
    context->max_queue_pairs_ = attributes.log_max_qps == 0 ? 0 : std::uint64_t{1} << attributes.log_max_qps;
    auto loop = udp::RealLoop::create();
    if (!loop) return propagate(loop);
    context->loop_ = std::move(*loop);
    udp::UdpOptions options;
    options.bind = *address;
    options.channels = context->channels_;
    options.receive_threads = context->channels_ > 1;
    auto endpoint = udp::UdpEndpoint::open(*context->loop_, options);
    if (!endpoint)
        return fail(endpoint.error().code, "device `{}`: {}; this host has: {}", device, endpoint.error().message,
                    describe_devices());
    context->endpoint_ = std::move(*endpoint);

    // The application's signals are for the application's threads: this one inherits a mask that blocks all.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        context->thread_ = std::thread([raw = context.get()] { raw->run(); });
    } catch (const std::system_error& problem) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return fail(ErrorCode::kIo, "cannot start the progress thread: {}", problem.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(context->thread_.native_handle(), "sdr-progress");
    return context;
}

Context::~Context() {
    if (thread_.joinable()) {
        stopping_.store(true);
        loop_->wake();
        thread_.join();
    }
    endpoint_.reset();
    loop_.reset();
}

void Context::run() {
    while (!stopping_.load()) {
        lock_.lock(TurnLock::Side::kProgress);
        sleeps_until_ = TimePoint();
        loop_->run_once(Duration{});
        const Duration idle = loop_->idle_time(kLongestSleep);
        if (idle > Duration{}) sleeps_until_ = loop_->now() + idle;
        lock_.unlock();
        if (idle <= Duration{}) continue;
        pollfd descriptor{.fd = loop_->poll_fd(), .events = POLLIN, .revents = 0};
        const timespec timeout{.tv_sec = idle.nanoseconds() / 1'000'000'000,
                               .tv_nsec = idle.nanoseconds() % 1'000'000'000};
        ppoll(&descriptor, 1, &timeout, nullptr);
    }
}

}  // namespace farhaul::capi
