#include "capi/queue_pair.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "capi/call.hpp"
#include "capi/info.hpp"

namespace farhaul::capi {

namespace {

using SendPool = StablePool<sdr_send_handle>;
using ReceivePool = StablePool<sdr_recv_handle>;

constexpr std::uint32_t kUdpAndIpv4Bytes = 28;

std::byte* to_pointer(std::uint64_t address) { return std::bit_cast<std::byte*>(static_cast<std::uintptr_t>(address)); }

}  // namespace

Result<std::unique_ptr<Qp>> Qp::create(Context& context, const QpParameters& parameters) {
    if (context.max_queue_pairs() != 0 && context.queue_pairs >= context.max_queue_pairs())
        return fail(ErrorCode::kInvalidArgument,
                    "the context was opened for {} queue pairs (log_max_qps) and has them all",
                    context.max_queue_pairs());
    std::unique_ptr<Qp> qp(new Qp(context, parameters));
    auto& config = qp->config_;
    config.overhead_bytes = udp::kHeaderBytes + kUdpAndIpv4Bytes;
    udp::ConnectParameters wire;
    wire.payload_bytes = config.payload_bytes;
    wire.packets_per_chunk = config.packets_per_chunk;
    wire.layout = config.layout;
    wire.max_messages = config.max_messages;
    wire.max_message_bytes = config.max_message_bytes;
    wire.checksum = qp->checksum_;
    wire.channels = context.channels();
    if (auto ok = wire.validate(); !ok) return propagate(ok);
    qp->wire_info_ = context.endpoint().local_info(wire);
    qp->info_ = encode_info(config, qp->wire_info_);
    qp->receives_.resize(config.layout.message_ids());
    return qp;
}

Qp::~Qp() {
    // Detaches all buffers, and waits for other threads inside them, before any handle or region is let go.
    if (protocol_) protocol_->set_listener(nullptr);
    protocol_.reset();
    wire_.reset();
    for (sdr_recv_handle* handle : receives_) {
        if (handle == nullptr) continue;
        if (handle->region != nullptr) --handle->region->users;
        handle->slot = nullptr;
        handle->qp = nullptr;
        ReceivePool::instance().release(handle);
    }
    for (sdr_send_handle* handle : sends_) {
        for (sdr_mr* region : handle->regions) --region->users;
        handle->regions.clear();
        handle->send = nullptr;
        handle->qp = nullptr;
        SendPool::instance().release(handle);
    }
    --context_.queue_pairs;
}

Status Qp::connect(std::span<const std::byte> remote_info) {
    if (protocol_)
        return fail(ErrorCode::kInvalidArgument,
                    "sdr_qp_connect: this queue pair is connected already; create another one");
    auto remote = check_info(remote_info, config_);
    if (!remote) return propagate(remote);
    auto wire = context_.endpoint().create_wire(wire_info_, *remote);
    if (!wire) return propagate(wire);
    auto protocol = sdr::QueuePair::create(context_.loop(), **wire, config_, this);
    if (!protocol) return propagate(protocol);
    wire_ = std::move(*wire);
    protocol_ = std::move(*protocol);
    return {};
}

Status Qp::usable(const char* function) const {
    if (!protocol_)
        return fail(ErrorCode::kInvalidArgument,
                    "{}: the queue pair is not connected; exchange the information and call sdr_qp_connect() first",
                    function);
    if (broken()) return fail(ErrorCode::kPeerGone, "{}: the connection is broken: {}", function, error_text_);
    return {};
}

sdr_qp_state Qp::state() const {
    if (!protocol_) return SDR_QP_CREATED;
    return broken() ? SDR_QP_BROKEN : SDR_QP_CONNECTED;
}

// --- receiving ---

Result<sdr_recv_handle*> Qp::post_receive(const sdr_recv_wr& request) {
    if (auto ok = usable("sdr_recv_post"); !ok) return propagate(ok);
    if (!config_.receive_enable)
        return fail(ErrorCode::kInvalidArgument, "sdr_recv_post: the queue pair was created without recv_enable");
    sdr_mr* region = nullptr;
    if (request.max_length > 0) {
        auto found = context_.regions().find(request.lkey, request.address, request.max_length);
        if (!found) return propagate(found);
        region = *found;
    }
    sdr_recv_handle* handle = ReceivePool::instance().acquire();
    auto slot = protocol_->post_receive(region == nullptr ? nullptr : to_pointer(request.address), request.max_length);
    if (!slot) {
        ReceivePool::instance().release(handle);
        return propagate(slot);
    }
    handle->qp = this;
    handle->slot = *slot;
    handle->region = region;
    handle->posted_length = request.max_length;
    handle->length.store(handle->slot->length(), std::memory_order_relaxed);
    handle->chunks.store(handle->slot->chunks(), std::memory_order_relaxed);
    if (region != nullptr) ++region->users;
    receives_[handle->slot->sequence() % receives_.size()] = handle;
    ReceivePool::publish(handle);
    return handle;
}

void Qp::complete_receive(sdr_recv_handle* handle) {
    sdr::MessageSlot& slot = *handle->slot;
    const std::uint64_t words = (slot.chunks() + 63) / 64;
    receives_[slot.sequence() % receives_.size()] = nullptr;
    protocol_->complete_receive(slot);
    // The published API promises a reset bitmap; the table resets it only when the slot is opened again. Nobody else
    // writes to a closed slot, and a caller's thread may still be spinning on it: hence atomic stores, and hence never
    // unmapped before the queue pair.
    auto* bitmap = reinterpret_cast<std::uint64_t*>(const_cast<std::uint8_t*>(slot.chunk_bitmap()));
    for (std::uint64_t word = 0; word < words; ++word) __atomic_store_n(bitmap + word, 0, __ATOMIC_RELEASE);
    if (handle->region != nullptr) --handle->region->users;
    handle->region = nullptr;
    handle->slot = nullptr;
    handle->qp = nullptr;
    ReceivePool::instance().release(handle);
}

void Qp::on_receive_progress(sdr::MessageSlot& slot) {
    sdr_recv_handle* handle = receives_[slot.sequence() % receives_.size()];
    if (handle == nullptr || handle->slot != &slot) return;
    if (slot.length() == handle->length.load(std::memory_order_relaxed)) return;
    handle->chunks.store(slot.chunks(), std::memory_order_relaxed);
    handle->length.store(slot.length(), std::memory_order_release);
}

// --- sending ---

Result<sdr_send_handle*> Qp::start_send(const char* function, unsigned opcode, std::uint32_t immediate,
                                        std::optional<std::uint64_t> length) {
    if (auto ok = usable(function); !ok) return propagate(ok);
    if (!config_.send_enable)
        return fail(ErrorCode::kInvalidArgument, "{}: the queue pair was created without send_enable", function);
    if (opcode != SDR_WR_WRITE && opcode != SDR_WR_WRITE_WITH_IMM)
        return fail(ErrorCode::kInvalidArgument, "{}: opcode {} is neither SDR_WR_WRITE nor SDR_WR_WRITE_WITH_IMM",
                    function, opcode);
    if (!protocol_->can_start_send()) return std::unexpected(Error{ErrorCode::kRetry, {}});  // spun on: no text is made
    const std::uint64_t capacity = protocol_->next_send_capacity();
    if (length && *length > capacity)
        return fail(ErrorCode::kInvalidArgument, "{}: the message ends at byte {}, but the peer posted {} bytes for it",
                    function, *length, capacity);
    sdr_send_handle* handle = SendPool::instance().acquire();
    sdr::StartSend start;
    if (opcode == SDR_WR_WRITE_WITH_IMM) start.immediate = immediate;
    start.length = length;
    auto send = protocol_->start_send(start);
    if (!send) {
        SendPool::instance().release(handle);
        return propagate(send);
    }
    handle->qp = this;
    handle->send = *send;
    handle->ended = false;
    handle->worth_a_look.store(true, std::memory_order_relaxed);
    handle->send->user = handle;
    sends_.insert(handle);
    SendPool::publish(handle);
    return handle;
}

Result<sdr_send_handle*> Qp::post_send(const sdr_send_wr& request) {
    // Everything that can be wrong with the request is found before the message is started: a started message has used
    // up its place.
    if (request.remote_offset > std::numeric_limits<std::uint64_t>::max() / 2 / chunk_bytes())
        return fail(ErrorCode::kInvalidArgument,
                    "sdr_send_post: remote_offset {} is counted in chunks, and beyond any buffer",
                    request.remote_offset);
    const std::uint64_t offset = request.remote_offset * chunk_bytes();
    if (request.length > 0) {
        auto region = context_.regions().find(request.lkey, request.local_addr, request.length);
        if (!region) return propagate(region);
    }
    auto handle = start_send("sdr_send_post", number_in(request.opcode), request.imm_value, offset + request.length);
    if (!handle) return handle;
    Status status;
    if (request.length > 0)
        status = continue_send(*handle, {.length = request.length,
                                         .local_addr = request.local_addr,
                                         .lkey = request.lkey,
                                         .remote_offset = request.remote_offset});
    if (status) status = end_send(*handle);
    if (!status) {
        release_send(*handle);
        return propagate(status);
    }
    return handle;
}

void Qp::use_region(sdr_send_handle* handle, sdr_mr* region) {
    if (std::ranges::find(handle->regions, region) != handle->regions.end()) return;
    handle->regions.push_back(region);
    ++region->users;
}

Status Qp::continue_send(sdr_send_handle* handle, const sdr_send_continue_wr& request) {
    if (auto ok = usable("sdr_streaming_send_continue"); !ok) return ok;
    if (handle->ended)
        return fail(ErrorCode::kInvalidArgument,
                    "sdr_streaming_send_continue: the send was ended; end it when nothing has to be sent again");
    const std::uint64_t capacity = handle->send->capacity();
    if (request.remote_offset > capacity / chunk_bytes() ||
        request.remote_offset * chunk_bytes() + request.length > capacity)
        return fail(ErrorCode::kInvalidArgument,
                    "{} bytes at chunk {} (of {} bytes) end behind the {} bytes that the peer posted", request.length,
                    request.remote_offset, chunk_bytes(), capacity);
    if (request.length == 0) return {};
    auto region = context_.regions().find(request.lkey, request.local_addr, request.length);
    if (!region) return propagate(region);
    use_region(handle, *region);
    handle->worth_a_look.store(true, std::memory_order_relaxed);
    return protocol_->continue_send(*handle->send, request.remote_offset * chunk_bytes(),
                                    to_pointer(request.local_addr), request.length);
}

Status Qp::end_send(sdr_send_handle* handle) {
    if (auto ok = usable("sdr_streaming_send_end"); !ok) return ok;
    if (handle->ended) return fail(ErrorCode::kInvalidArgument, "sdr_streaming_send_end: the send was ended already");
    if (auto ok = protocol_->end_send(*handle->send); !ok) return ok;
    handle->ended = true;
    handle->worth_a_look.store(true, std::memory_order_relaxed);
    return {};
}

void Qp::release_send(sdr_send_handle* handle) {
    protocol_->release_send(*handle->send);
    sends_.erase(handle);
    for (sdr_mr* region : handle->regions) --region->users;
    handle->regions.clear();
    handle->send = nullptr;
    handle->qp = nullptr;
    SendPool::instance().release(handle);
}

void Qp::on_injected(sdr::SendHandle& send, std::uint64_t /*offset*/, std::uint64_t /*length*/) {
    if (auto* handle = static_cast<sdr_send_handle*>(send.user))
        handle->worth_a_look.store(true, std::memory_order_release);
}

void Qp::on_queue_pair_error(const Error& error) {
    error_text_ = error.message.empty() ? to_string(error.code) : error.message;
    broken_.store(true, std::memory_order_release);
    for (sdr_send_handle* handle : sends_) handle->worth_a_look.store(true, std::memory_order_release);
}

}  // namespace farhaul::capi
