// An open device: one loop, one UDP endpoint, and the progress thread that runs them.
//
// The protocols below have no locks of their own. They run on the progress thread, which holds the context's lock for
// one batch of events at a time and never while it sleeps; API calls take the lock, run the protocol themselves (a send
// goes out on the caller's thread), and wake the progress thread only when they armed a timer earlier than the one it
// sleeps for.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "base/result.hpp"
#include "capi/memory.hpp"
#include "capi/stable_pool.hpp"
#include "capi/turn_lock.hpp"
#include "sdr.h"
#include "wire/udp/endpoint.hpp"
#include "wire/udp/real_loop.hpp"

namespace farhaul::capi {

class Context {
 public:
    static Result<std::unique_ptr<Context>> open(const char* device, const sdr_dev_attr& attributes);
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    /// The lock, held by an API call.
    class Guard {
     public:
        explicit Guard(Context& context);
        ~Guard();
        Guard(const Guard&) = delete;
        Guard& operator=(const Guard&) = delete;

     private:
        Context& context_;
    };

    // Under the lock only:
    udp::RealLoop& loop() { return *loop_; }
    udp::UdpEndpoint& endpoint() { return *endpoint_; }
    RegionTable& regions() { return regions_; }
    std::uint32_t channels() const { return channels_; }
    std::uint64_t queue_pairs = 0;
    /// Most queue pairs; 0 = any number.
    std::uint64_t max_queue_pairs() const { return max_queue_pairs_; }

 private:
    Context() = default;
    void run();

    TurnLock lock_;
    std::unique_ptr<udp::RealLoop> loop_;
    std::unique_ptr<udp::UdpEndpoint> endpoint_;
    RegionTable regions_;
    std::uint32_t channels_ = 1;
    std::uint64_t max_queue_pairs_ = 0;
    TimePoint sleeps_until_;  // 0 while the progress thread is awake
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

}  // namespace farhaul::capi

/// Behind `struct sdr_context *`.
struct sdr_context {
    static constexpr auto kMagic = farhaul::capi::Magic::kContext;
    std::atomic<farhaul::capi::Magic> magic{};
    std::unique_ptr<farhaul::capi::Context> impl;
};
