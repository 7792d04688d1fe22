// The C++ face of sdr.h: owners that clean up after themselves, and errors as values. Header-only; C++23.
//
//     auto context = farhaul::api::Context::open("udp");
//     if (!context) return complain(context.error().message);
//     auto region = context->register_memory(buffer);
//     auto pair = context->create_queue_pair(attributes);
//     exchange(pair->info());                       // with the peer, over a channel that you trust
//     pair->connect(info_of_the_peer);
//     auto receive = pair->post_receive(*region);   // error().retry(): no slot now
//     while (!receive->arrived().value_or(true)) {} // takes no lock: spin as you like
//
// Every owner is move-only. A Context, QueuePair or MemoryRegion that others were made from stays open until the last
// of them is gone, so that the order of destruction does not matter. A Receive completes itself, and a Send releases
// itself, when destroyed; a region must outlive the receives and sends that use it, which post_receive() and the send
// calls see to by holding on to it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sdr.h>
#include <sdr_mr.h>

namespace farhaul::api {

/// What a call returned instead of a value.
struct Error {
    int code = SDR_ERROR;  ///< SDR_ERROR or SDR_RETRY
    std::string message;   ///< empty for SDR_RETRY
    /// Not now: the same call may succeed later.
    bool retry() const { return code == SDR_RETRY; }
};

template <typename T>
using Result = std::expected<T, Error>;
using Status = std::expected<void, Error>;

namespace detail {

inline std::unexpected<Error> last_error(int code = SDR_ERROR) {
    return std::unexpected(Error{code, code == SDR_ERROR ? std::string(sdr_last_error()) : std::string()});
}
inline Status status(int code) {
    if (code == SDR_SUCCESS) return {};
    return last_error(code);
}
struct Close {
    void operator()(sdr_context* context) const { sdr_context_destroy(context); }
    void operator()(sdr_mr* region) const { sdr_mr_dereg(region); }
    void operator()(sdr_qp* pair) const { sdr_qp_destroy(pair); }
};

/// What keeps a C object and all that it was made from alive. Members are destroyed in reverse order: the object before
/// its parents.
struct RegionOwner {
    std::shared_ptr<sdr_context> context;
    std::unique_ptr<sdr_mr, Close> region;
    std::uint32_t key = 0;
};
struct PairOwner {
    std::shared_ptr<sdr_context> context;
    std::unique_ptr<sdr_qp, Close> pair;
};

}  // namespace detail

/// Registered memory, for posting receives and sends from.
class MemoryRegion {
 public:
    std::uint32_t lkey() const { return owner_->key; }
    std::span<std::byte> bytes() const { return bytes_; }
    sdr_mr* get() const { return owner_->region.get(); }

    MemoryRegion(MemoryRegion&&) = default;
    MemoryRegion& operator=(MemoryRegion&&) = default;

 private:
    friend class Context;
    friend class QueuePair;
    friend class Send;
    MemoryRegion(std::shared_ptr<detail::RegionOwner> owner, std::span<std::byte> bytes)
        : owner_(std::move(owner)), bytes_(bytes) {}
    std::shared_ptr<detail::RegionOwner> owner_;
    std::span<std::byte> bytes_;
};

/// A posted receive. Destroying it completes it: afterwards nothing writes to the buffer any more.
class Receive {
 public:
    Receive(Receive&& other) noexcept
        : pair_(std::move(other.pair_)), region_(std::move(other.region_)), handle_(std::exchange(other.handle_, {})) {}
    Receive& operator=(Receive&& other) noexcept {
        if (this != &other) {
            finish();
            pair_ = std::move(other.pair_);
            region_ = std::move(other.region_);
            handle_ = std::exchange(other.handle_, {});
        }
        return *this;
    }
    ~Receive() { finish(); }

    /// The chunk bitmap: bit c % 8 of byte c / 8 is chunk c. Read it with chunk_in(), or with atomic loads. An error
    /// when the connection broke with chunks missing.
    Result<std::span<const std::uint8_t>> bitmap() const {
        std::uint8_t* bytes = nullptr;
        std::size_t size = 0;
        if (const int code = sdr_recv_bitmap_get(handle_, &bytes, &size); code != SDR_SUCCESS)
            return detail::last_error(code);
        return std::span<const std::uint8_t>(bytes, size);
    }
    /// Whether chunk `chunk` of a bitmap is in; what was seen in is readable in the buffer.
    static bool chunk_in(std::span<const std::uint8_t> bitmap, std::size_t chunk) {
        return (__atomic_load_n(&bitmap[chunk / 8], __ATOMIC_ACQUIRE) >> (chunk % 8) & 1) != 0;
    }
    /// Whether all of the message is in. An error when the connection broke with chunks missing.
    Result<bool> arrived() const {
        std::uint32_t chunks_in = 0;
        std::uint32_t chunks = 0;
        if (const int code = sdr_recv_progress_get(handle_, &chunks_in, &chunks); code != SDR_SUCCESS)
            return detail::last_error(code);
        return chunks_in == chunks;
    }
    /// The packets of one chunk, bit i = packet i.
    Result<std::uint64_t> packets(std::uint32_t chunk) const {
        std::uint64_t bits = 0;
        if (const int code = sdr_recv_bitmap_chunk_expand(handle_, chunk, &bits); code != SDR_SUCCESS)
            return detail::last_error(code);
        return bits;
    }
    /// Length of the message; error().retry() until it is known.
    Result<std::uint64_t> length() const {
        std::uint64_t value = 0;
        if (const int code = sdr_recv_length_get(handle_, &value); code != SDR_SUCCESS) return detail::last_error(code);
        return value;
    }
    /// The sender's immediate; error().retry() until it is in.
    Result<std::uint32_t> immediate() const {
        std::uint32_t value = 0;
        if (const int code = sdr_recv_imm_get(handle_, &value); code != SDR_SUCCESS) return detail::last_error(code);
        return value;
    }
    /// Ends the receive, complete or not; the object is empty afterwards.
    Status complete() {
        const Status result = detail::status(sdr_recv_complete(std::exchange(handle_, nullptr)));
        pair_.reset();
        region_.reset();
        return result;
    }
    sdr_recv_handle* get() const { return handle_; }

 private:
    friend class QueuePair;
    Receive(std::shared_ptr<detail::PairOwner> pair, std::shared_ptr<detail::RegionOwner> region,
            sdr_recv_handle* handle)
        : pair_(std::move(pair)), region_(std::move(region)), handle_(handle) {}
    void finish() {
        if (handle_ != nullptr) sdr_recv_complete(std::exchange(handle_, nullptr));
    }
    std::shared_ptr<detail::PairOwner> pair_;
    std::shared_ptr<detail::RegionOwner> region_;
    sdr_recv_handle* handle_ = nullptr;
};

/// A started send. Destroying it before it is done drops what has not left this host.
class Send {
 public:
    Send(Send&& other) noexcept
        : pair_(std::move(other.pair_)),
          regions_(std::move(other.regions_)),
          handle_(std::exchange(other.handle_, {})) {}
    Send& operator=(Send&& other) noexcept {
        if (this != &other) {
            finish();
            pair_ = std::move(other.pair_);
            regions_ = std::move(other.regions_);
            handle_ = std::exchange(other.handle_, {});
        }
        return *this;
    }
    ~Send() { finish(); }

    /// Streaming: queues `length` bytes from `offset` of the region for chunk `remote_chunk` of the peer's buffer.
    Status add(const MemoryRegion& region, std::size_t offset, std::uint32_t length, std::uint64_t remote_chunk) {
        sdr_send_continue_wr request{};
        request.length = length;
        request.local_addr = reinterpret_cast<std::uintptr_t>(region.bytes_.data()) + offset;
        request.lkey = region.lkey();
        request.remote_offset = remote_chunk;
        if (auto ok = detail::status(sdr_streaming_send_continue(handle_, &request)); !ok) return ok;
        hold(region.owner_);
        return {};
    }
    /// Streaming: nothing follows.
    Status end() { return detail::status(sdr_streaming_send_end(handle_)); }
    /// True once all of it has left this host; the object is empty afterwards. An error when the connection broke.
    Result<bool> poll() {
        int done = 0;
        const int code = sdr_send_poll(handle_, &done, nullptr);
        if (code == SDR_RETRY) return false;
        if (code != SDR_SUCCESS) return detail::last_error(code);
        handle_ = nullptr;
        regions_.clear();
        pair_.reset();
        return true;
    }
    sdr_send_handle* get() const { return handle_; }

 private:
    friend class QueuePair;
    Send(std::shared_ptr<detail::PairOwner> pair, sdr_send_handle* handle) : pair_(std::move(pair)), handle_(handle) {}
    void hold(const std::shared_ptr<detail::RegionOwner>& region) {
        for (const auto& held : regions_)
            if (held == region) return;
        regions_.push_back(region);
    }
    void finish() {
        if (handle_ != nullptr) sdr_send_release(std::exchange(handle_, nullptr));
    }
    std::shared_ptr<detail::PairOwner> pair_;
    std::vector<std::shared_ptr<detail::RegionOwner>> regions_;
    sdr_send_handle* handle_ = nullptr;
};

/// A connection to one peer.
class QueuePair {
 public:
    QueuePair(QueuePair&&) = default;
    QueuePair& operator=(QueuePair&&) = default;

    /// What the peer's connect() needs.
    Result<std::vector<std::byte>> info() const {
        std::size_t size = 0;
        if (const int code = sdr_qp_info_size_get(get(), &size); code != SDR_SUCCESS) return detail::last_error(code);
        std::vector<std::byte> block(size);
        if (const int code = sdr_qp_info_get(get(), block.data()); code != SDR_SUCCESS) return detail::last_error(code);
        return block;
    }
    Status connect(std::span<const std::byte> remote) {
        std::size_t size = 0;
        if (const int code = sdr_qp_info_size_get(get(), &size); code != SDR_SUCCESS) return detail::last_error(code);
        if (remote.size() != size)
            return std::unexpected(Error{SDR_ERROR, "the peer's information has " + std::to_string(remote.size()) +
                                                        " bytes instead of " + std::to_string(size)});
        // The C function takes the block as non-const, but only reads it.
        return detail::status(sdr_qp_connect(get(), const_cast<std::byte*>(remote.data())));
    }

    /// Posts `length` bytes (default: all behind it) at `offset` of the region.
    Result<Receive> post_receive(const MemoryRegion& region, std::size_t offset = 0,
                                 std::optional<std::uint32_t> length = {}) {
        const std::size_t size = length.value_or(static_cast<std::uint32_t>(region.bytes_.size() - offset));
        sdr_recv_wr request{};
        request.max_length = static_cast<std::uint32_t>(size);
        request.lkey = region.lkey();
        request.address = reinterpret_cast<std::uintptr_t>(region.bytes_.data()) + offset;
        sdr_recv_handle* handle = nullptr;
        if (const int code = sdr_recv_post(get(), &request, &handle); code != SDR_SUCCESS)
            return detail::last_error(code);
        return Receive(owner_, region.owner_, handle);
    }
    /// Sends `length` bytes at `offset` of the region as one message.
    Result<Send> post_send(const MemoryRegion& region, std::size_t offset, std::uint32_t length,
                           std::optional<std::uint32_t> immediate = {}, std::uint64_t remote_chunk = 0) {
        sdr_send_wr request{};
        request.opcode = immediate ? SDR_WR_WRITE_WITH_IMM : SDR_WR_WRITE;
        request.imm_value = immediate.value_or(0);
        request.length = length;
        request.lkey = region.lkey();
        request.local_addr = reinterpret_cast<std::uintptr_t>(region.bytes_.data()) + offset;
        request.remote_offset = remote_chunk;
        sdr_send_handle* handle = nullptr;
        if (const int code = sdr_send_post(get(), &request, &handle); code != SDR_SUCCESS)
            return detail::last_error(code);
        Send send(owner_, handle);
        send.hold(region.owner_);
        return send;
    }
    /// Starts a message whose pieces follow; with its length, if that is known.
    Result<Send> start_send(std::optional<std::uint32_t> immediate = {},
                            std::optional<std::uint64_t> total_length = {}) {
        sdr_send_handle* handle = nullptr;
        int code = SDR_ERROR;
        const sdr_wr_opcode opcode = immediate ? SDR_WR_WRITE_WITH_IMM : SDR_WR_WRITE;
        if (total_length) {
            sdr_send_start_ext_wr request{};
            request.struct_size = sizeof(request);
            request.opcode = opcode;
            request.imm_value = immediate.value_or(0);
            request.total_length = *total_length;
            code = sdr_streaming_send_start_ext(get(), &request, &handle);
        } else {
            sdr_send_start_wr request{};
            request.opcode = opcode;
            request.imm_value = immediate.value_or(0);
            code = sdr_streaming_send_start(get(), &request, &handle);
        }
        if (code != SDR_SUCCESS) return detail::last_error(code);
        return Send(owner_, handle);
    }

    /// Bytes that the peer posted for the next send; error().retry() while there is nothing.
    Result<std::uint64_t> send_capacity() const {
        std::uint64_t bytes = 0;
        if (const int code = sdr_qp_send_capacity_get(get(), &bytes); code != SDR_SUCCESS)
            return detail::last_error(code);
        return bytes;
    }
    Result<sdr_qp_state> state() const {
        sdr_qp_state value{};
        if (const int code = sdr_qp_state_get(get(), &value, nullptr, 0); code != SDR_SUCCESS)
            return detail::last_error(code);
        return value;
    }
    Result<sdr_qp_stats> stats() const {
        sdr_qp_stats value{};
        value.struct_size = sizeof(value);
        if (const int code = sdr_qp_stats_get(get(), &value); code != SDR_SUCCESS) return detail::last_error(code);
        return value;
    }
    sdr_qp* get() const { return owner_->pair.get(); }

 private:
    friend class Context;
    explicit QueuePair(std::shared_ptr<detail::PairOwner> owner) : owner_(std::move(owner)) {}
    std::shared_ptr<detail::PairOwner> owner_;
};

/// An open device.
class Context {
 public:
    /// `device` as for sdr_context_create().
    static Result<Context> open(const std::string& device, std::uint32_t channels = 1) {
        sdr_dev_attr attributes{};
        attributes.num_channels = channels;
        sdr_context* raw = sdr_context_create(device.c_str(), &attributes);
        if (raw == nullptr) return detail::last_error();
        return Context(std::shared_ptr<sdr_context>(raw, detail::Close()));
    }
    Context(Context&&) = default;
    Context& operator=(Context&&) = default;

    /// The memory stays the caller's and must outlive the region.
    Result<MemoryRegion> register_memory(std::span<std::byte> bytes) {
        auto owner = std::make_shared<detail::RegionOwner>();
        owner->context = context_;
        owner->region.reset(sdr_mr_reg(context_.get(), bytes.data(), bytes.size(), SDR_ACCESS_REMOTE_WRITE));
        if (!owner->region) return detail::last_error();
        sdr_mr_lkey_get(owner->region.get(), &owner->key);
        return MemoryRegion(std::move(owner), bytes);
    }
    Result<QueuePair> create_queue_pair(sdr_qp_attr attributes) {
        return adopt(sdr_qp_create(context_.get(), &attributes));
    }
    /// Sets struct_size itself.
    Result<QueuePair> create_queue_pair(sdr_qp_attr_ext attributes) {
        attributes.struct_size = sizeof(attributes);
        return adopt(sdr_qp_create_ext(context_.get(), &attributes));
    }
    sdr_context* get() const { return context_.get(); }

 private:
    explicit Context(std::shared_ptr<sdr_context> context) : context_(std::move(context)) {}
    Result<QueuePair> adopt(sdr_qp* raw) {
        if (raw == nullptr) return detail::last_error();
        auto owner = std::make_shared<detail::PairOwner>();
        owner->context = context_;
        owner->pair.reset(raw);
        return QueuePair(std::move(owner));
    }
    std::shared_ptr<sdr_context> context_;
};

}  // namespace farhaul::api
