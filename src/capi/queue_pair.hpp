// What stands behind `struct sdr_qp *` and its handles.
//
// A queue pair is created unconnected: the wire and the protocol (sdr::QueuePair) come with connect(). Everything here
// runs under the context's lock, apart from what is marked "any thread": that is what callers spin on, and it reads
// atomics only.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "capi/context.hpp"
#include "capi/stable_pool.hpp"
#include "sdr.h"
#include "sdr/queue_pair.hpp"
#include "wire/udp/endpoint.hpp"

namespace farhaul::capi {
class Qp;
}

/// Behind `struct sdr_send_handle *`.
struct sdr_send_handle {
    static constexpr auto kMagic = farhaul::capi::Magic::kSend;
    std::atomic<farhaul::capi::Magic> magic{};
    farhaul::capi::Qp* qp = nullptr;
    farhaul::sdr::SendHandle* send = nullptr;
    std::vector<sdr_mr*> regions;  ///< distinct; each counts this handle as a user
    bool ended = false;
    /// Set when the last look may have gone out of date: polls take the lock only then.
    std::atomic<bool> worth_a_look{false};
};

/// Behind `struct sdr_recv_handle *`.
struct sdr_recv_handle {
    static constexpr auto kMagic = farhaul::capi::Magic::kReceive;
    std::atomic<farhaul::capi::Magic> magic{};
    farhaul::capi::Qp* qp = nullptr;
    farhaul::sdr::MessageSlot* slot = nullptr;
    sdr_mr* region = nullptr;
    std::uint64_t posted_length = 0;
    /// Copies of what the slot says, for threads without the lock.
    std::atomic<std::uint64_t> length{0};
    std::atomic<std::uint32_t> chunks{0};
};

namespace farhaul::capi {

/// Everything that sdr_qp_create() and sdr_qp_create_ext() decide. Errors: kInvalidArgument with the field that is out
/// of range.
struct QpParameters {
    sdr::QueuePairConfig config;
    bool checksum = true;
};
Result<QpParameters> read_attributes(const sdr_qp_attr& attributes);
Result<QpParameters> read_attributes(const sdr_qp_attr_ext& attributes);

class Qp final : public sdr::QueuePairListener {
 public:
    static Result<std::unique_ptr<Qp>> create(Context& context, const QpParameters& parameters);
    /// Ends everything in flight and releases all handles.
    ~Qp() override;

    Context& context() { return context_; }
    const sdr::QueuePairConfig& config() const { return config_; }
    const std::vector<std::byte>& info() const { return info_; }
    Status connect(std::span<const std::byte> remote_info);

    /// kInvalidArgument when not connected, kPeerGone (or what it was) when broken.
    Status usable(const char* function) const;
    sdr_qp_state state() const;
    const std::string& error_text() const { return error_text_; }
    /// Any thread.
    bool broken() const { return broken_.load(std::memory_order_acquire); }
    sdr::QueuePair* protocol() { return protocol_.get(); }

    Result<sdr_recv_handle*> post_receive(const sdr_recv_wr& request);
    void complete_receive(sdr_recv_handle* handle);

    /// `opcode`: the number in the C caller's field.
    Result<sdr_send_handle*> start_send(const char* function, unsigned opcode, std::uint32_t immediate,
                                        std::optional<std::uint64_t> length);
    Result<sdr_send_handle*> post_send(const sdr_send_wr& request);
    Status continue_send(sdr_send_handle* handle, const sdr_send_continue_wr& request);
    Status end_send(sdr_send_handle* handle);
    void release_send(sdr_send_handle* handle);

 private:
    Qp(Context& context, const QpParameters& parameters)
        : context_(context), config_(parameters.config), checksum_(parameters.checksum) {
        ++context_.queue_pairs;
    }

    // sdr::QueuePairListener; on the progress thread or inside our own calls, always under the lock
    void on_injected(sdr::SendHandle& send, std::uint64_t offset, std::uint64_t length) override;
    void on_receive_progress(sdr::MessageSlot& slot) override;
    void on_queue_pair_error(const Error& error) override;

    void use_region(sdr_send_handle* handle, sdr_mr* region);
    std::uint64_t chunk_bytes() const { return std::uint64_t{config_.payload_bytes} * config_.packets_per_chunk; }

    Context& context_;
    sdr::QueuePairConfig config_;
    bool checksum_;
    std::vector<std::byte> wire_info_;  // our part as the endpoint gave it
    std::vector<std::byte> info_;       // the block for the peer
    std::unique_ptr<udp::UdpWire> wire_;
    std::unique_ptr<sdr::QueuePair> protocol_;
    std::vector<sdr_recv_handle*> receives_;  // open ones, by message id
    std::unordered_set<sdr_send_handle*> sends_;
    std::atomic<bool> broken_{false};
    std::string error_text_;
};

}  // namespace farhaul::capi

/// Behind `struct sdr_qp *`.
struct sdr_qp {
    static constexpr auto kMagic = farhaul::capi::Magic::kQueuePair;
    std::atomic<farhaul::capi::Magic> magic{};
    std::unique_ptr<farhaul::capi::Qp> impl;
};
