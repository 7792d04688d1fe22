// sdr.h: receives and sends.
#include <algorithm>
#include <thread>

#include "capi/call.hpp"
#include "capi/queue_pair.hpp"

using namespace farhaul;
using namespace farhaul::capi;

namespace {

using QpPool = StablePool<sdr_qp>;
using SendPool = StablePool<sdr_send_handle>;
using ReceivePool = StablePool<sdr_recv_handle>;

/// What an empty bitmap points at.
std::uint8_t no_chunks[8];

Status check(const char* function, const sdr_qp* qp, const void* request, const void* handle) {
    if (qp == nullptr) return null_argument(function, "qp");
    if (request == nullptr) return null_argument(function, "wr");
    if (handle == nullptr) return null_argument(function, "handle");
    if (!QpPool::live(qp))
        return fail(ErrorCode::kInvalidArgument, "{}: this is not a queue pair (any more)", function);
    return {};
}

Status check(const char* function, const sdr_recv_handle* handle) {
    if (handle == nullptr) return null_argument(function, "handle");
    if (!ReceivePool::live(handle))
        return fail(ErrorCode::kInvalidArgument,
                    "{}: this receive handle is not valid: it was completed, or its queue pair destroyed", function);
    return {};
}

Status check(const char* function, const sdr_send_handle* handle) {
    if (handle == nullptr) return null_argument(function, "handle");
    if (!SendPool::live(handle))
        return fail(
            ErrorCode::kInvalidArgument,
            "{}: this send handle is not valid: it was polled to completion or released, or its queue pair destroyed",
            function);
    return {};
}

/// Callers spin on a post until it succeeds; on few cores that must not keep the progress thread from running.
int yield_if_retry(int code) {
    if (code == SDR_RETRY) std::this_thread::yield();
    return code;
}

Status broken(const char* function, Qp& qp) {
    const Context::Guard guard(qp.context());
    return qp.usable(function);
}

/// Runs `start` under the lock; `handle` is null unless it succeeded.
template <typename Handle, typename Start>
Status post(const char* function, sdr_qp* qp, const void* request, Handle** handle, Start&& start) {
    if (auto ok = check(function, qp, request, static_cast<void*>(handle)); !ok) return ok;
    *handle = nullptr;
    const Context::Guard guard(qp->impl->context());
    auto posted = start(*qp->impl);
    if (!posted) {
        if (posted.error().code == ErrorCode::kRetry || posted.error().message.starts_with("sdr_"))
            return propagate(posted);
        return fail(posted.error().code, "{}: {}", function, posted.error().message);
    }
    *handle = *posted;
    return {};
}

Status get_immediate(sdr_recv_handle* handle, std::uint32_t* immediate) {
    if (auto ok = check("sdr_recv_imm_get", handle); !ok) return ok;
    if (immediate == nullptr) return null_argument("sdr_recv_imm_get", "immediate");
    if (handle->slot->immediate(immediate)) return {};
    if (handle->qp->broken()) return broken("sdr_recv_imm_get", *handle->qp);
    return std::unexpected(Error{ErrorCode::kRetry, {}});
}

bool all_in(const sdr_recv_handle& handle) {
    return handle.slot->chunks_complete() >= handle.chunks.load(std::memory_order_acquire);
}

Status get_bitmap(sdr_recv_handle* handle, std::uint8_t** bytes, std::size_t* size) {
    if (auto ok = check("sdr_recv_bitmap_get", handle); !ok) return ok;
    if (bytes == nullptr) return null_argument("sdr_recv_bitmap_get", "bitmap_bytes");
    if (size == nullptr) return null_argument("sdr_recv_bitmap_get", "bitmap_num_bytes");
    const auto* bitmap = handle->slot->chunk_bitmap();
    // The published signature is not const; writing to the bitmap only misleads the writer.
    *bytes = bitmap == nullptr ? no_chunks : const_cast<std::uint8_t*>(bitmap);
    *size = (std::size_t{handle->chunks.load(std::memory_order_acquire)} + 7) / 8;
    if (handle->qp->broken() && !all_in(*handle)) return broken("sdr_recv_bitmap_get", *handle->qp);
    return {};
}

Status get_progress(sdr_recv_handle* handle, std::uint32_t* chunks_in, std::uint32_t* chunks) {
    if (auto ok = check("sdr_recv_progress_get", handle); !ok) return ok;
    if (chunks_in == nullptr) return null_argument("sdr_recv_progress_get", "chunks_in");
    if (chunks == nullptr) return null_argument("sdr_recv_progress_get", "chunks");
    const std::uint32_t complete = handle->slot->chunks_complete();
    *chunks = handle->chunks.load(std::memory_order_acquire);
    *chunks_in = std::min(complete, *chunks);
    if (handle->qp->broken() && *chunks_in < *chunks) return broken("sdr_recv_progress_get", *handle->qp);
    return {};
}

Status expand_chunk(sdr_recv_handle* handle, std::uint32_t chunk, std::uint64_t* bitmap) {
    if (auto ok = check("sdr_recv_bitmap_chunk_expand", handle); !ok) return ok;
    if (bitmap == nullptr) return null_argument("sdr_recv_bitmap_chunk_expand", "bitmap");
    // Under the lock: how many packets a chunk has may change when the sender announces the length.
    const Context::Guard guard(handle->qp->context());
    const std::uint32_t chunks = handle->slot->chunks();
    if (chunk >= chunks)
        return fail(ErrorCode::kInvalidArgument, "sdr_recv_bitmap_chunk_expand: chunk {} of a message of {} chunks",
                    chunk, chunks);
    *bitmap = handle->slot->chunk_packets(chunk);
    return {};
}

Status get_length(sdr_recv_handle* handle, std::uint64_t* length) {
    if (auto ok = check("sdr_recv_length_get", handle); !ok) return ok;
    if (length == nullptr) return null_argument("sdr_recv_length_get", "length");
    const std::uint64_t known = handle->length.load(std::memory_order_acquire);
    if (known < handle->posted_length) {
        *length = known;
        return {};
    }
    // The chunks may be all because the length has just shrunk, later than it was read above: the lock waits for both.
    if (known > 0 && all_in(*handle)) {
        const Context::Guard guard(handle->qp->context());
        *length = handle->slot->length();
        return {};
    }
    // An empty receive can only take an empty message.
    if (handle->posted_length == 0) {
        *length = 0;
        return {};
    }
    if (handle->qp->broken()) return broken("sdr_recv_length_get", *handle->qp);
    return std::unexpected(Error{ErrorCode::kRetry, {}});
}

Status complete(sdr_recv_handle* handle) {
    if (auto ok = check("sdr_recv_complete", handle); !ok) return ok;
    Qp& qp = *handle->qp;
    const Context::Guard guard(qp.context());
    qp.complete_receive(handle);
    return {};
}

Status poll(sdr_send_handle* handle, int* completed, sdr_send_status* status) {
    if (auto ok = check("sdr_send_poll", handle); !ok) return ok;
    if (completed == nullptr) return null_argument("sdr_send_poll", "completed_flag");
    *completed = 0;
    if (status != nullptr) status->flags = 0;
    // Callers spin here: no lock while nothing can have changed.
    if (!handle->worth_a_look.load(std::memory_order_acquire)) return std::unexpected(Error{ErrorCode::kRetry, {}});
    Qp& qp = *handle->qp;
    const Context::Guard guard(qp.context());
    if (handle->ended && qp.protocol()->injected(*handle->send)) {
        qp.release_send(handle);
        *completed = 1;
        return {};
    }
    if (auto ok = qp.usable("sdr_send_poll"); !ok) return ok;
    handle->worth_a_look.store(false,
                               std::memory_order_relaxed);  // set again under the lock, by what changes the answer
    return std::unexpected(Error{ErrorCode::kRetry, {}});
}

/// Runs `body` with the queue pair of a live send handle, under the lock.
template <typename Body>
Status with_send(const char* function, sdr_send_handle* handle, Body&& body) {
    if (auto ok = check(function, handle); !ok) return ok;
    Qp& qp = *handle->qp;
    const Context::Guard guard(qp.context());
    return body(qp);
}

}  // namespace

extern "C" {

int sdr_recv_post(sdr_qp* qp, sdr_recv_wr* wr, sdr_recv_handle** handle) {
    return yield_if_retry(
        call([&] { return post("sdr_recv_post", qp, wr, handle, [&](Qp& impl) { return impl.post_receive(*wr); }); }));
}

int sdr_recv_imm_get(sdr_recv_handle* handle, uint32_t* immediate) {
    return call([&] { return get_immediate(handle, immediate); });
}

int sdr_recv_bitmap_get(sdr_recv_handle* handle, uint8_t** bitmap_bytes, size_t* bitmap_num_bytes) {
    return call([&] { return get_bitmap(handle, bitmap_bytes, bitmap_num_bytes); });
}

int sdr_recv_progress_get(sdr_recv_handle* handle, uint32_t* chunks_in, uint32_t* chunks) {
    return call([&] { return get_progress(handle, chunks_in, chunks); });
}

int sdr_recv_bitmap_chunk_expand(sdr_recv_handle* handle, uint32_t chunk_offset, uint64_t* bitmap) {
    return call([&] { return expand_chunk(handle, chunk_offset, bitmap); });
}

int sdr_recv_complete(sdr_recv_handle* handle) {
    return call([&] { return complete(handle); });
}

int sdr_recv_length_get(sdr_recv_handle* handle, uint64_t* length) {
    return call([&] { return get_length(handle, length); });
}

int sdr_send_post(sdr_qp* qp, sdr_send_wr* wr, sdr_send_handle** handle) {
    return yield_if_retry(
        call([&] { return post("sdr_send_post", qp, wr, handle, [&](Qp& impl) { return impl.post_send(*wr); }); }));
}

int sdr_streaming_send_start(sdr_qp* qp, sdr_send_start_wr* wr, sdr_send_handle** handle) {
    return yield_if_retry(call([&] {
        return post("sdr_streaming_send_start", qp, wr, handle, [&](Qp& impl) {
            return impl.start_send("sdr_streaming_send_start", number_in(wr->opcode), wr->imm_value, {});
        });
    }));
}

int sdr_streaming_send_start_ext(sdr_qp* qp, const sdr_send_start_ext_wr* wr, sdr_send_handle** handle) {
    return yield_if_retry(call([&] {
        return post("sdr_streaming_send_start_ext", qp, wr, handle, [&](Qp& impl) -> Result<sdr_send_handle*> {
            if (wr->struct_size < sizeof(sdr_send_start_ext_wr))
                return fail(ErrorCode::kInvalidArgument,
                            "struct_size is {}: set it to sizeof(struct sdr_send_start_ext_wr), which is {}",
                            wr->struct_size, sizeof(sdr_send_start_ext_wr));
            return impl.start_send("sdr_streaming_send_start_ext", number_in(wr->opcode), wr->imm_value,
                                   wr->total_length);
        });
    }));
}

int sdr_streaming_send_continue(sdr_send_handle* handle, sdr_send_continue_wr* wr) {
    return call([&] {
        return with_send("sdr_streaming_send_continue", handle, [&](Qp& qp) -> Status {
            if (wr == nullptr) return null_argument("sdr_streaming_send_continue", "wr");
            return qp.continue_send(handle, *wr);
        });
    });
}

int sdr_streaming_send_end(sdr_send_handle* handle) {
    return call(
        [&] { return with_send("sdr_streaming_send_end", handle, [&](Qp& qp) { return qp.end_send(handle); }); });
}

int sdr_send_poll(sdr_send_handle* handle, int* completed_flag, sdr_send_status* status) {
    return call([&] { return poll(handle, completed_flag, status); });
}

int sdr_send_release(sdr_send_handle* handle) {
    return call([&] {
        return with_send("sdr_send_release", handle, [&](Qp& qp) -> Status {
            qp.release_send(handle);
            return {};
        });
    });
}

}  // extern "C"
