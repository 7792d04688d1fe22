// sdr.h: queue pairs, connecting them, their state and counters.
#include <algorithm>
#include <cstring>

#include "capi/call.hpp"
#include "capi/info.hpp"
#include "capi/queue_pair.hpp"

using namespace farhaul;
using namespace farhaul::capi;

namespace {

using ContextPool = StablePool<sdr_context>;
using QpPool = StablePool<sdr_qp>;

Status check(const char* function, const sdr_qp* qp) {
    if (qp == nullptr) return null_argument(function, "qp");
    if (!QpPool::live(qp))
        return fail(ErrorCode::kInvalidArgument, "{}: this is not a queue pair (any more)", function);
    return {};
}

template <typename Attributes>
Result<sdr_qp*> create(const char* function, sdr_context* context, const Attributes* attributes) {
    if (context == nullptr) return null_argument(function, "ctx");
    if (attributes == nullptr) return null_argument(function, "attr");
    if (!ContextPool::live(context))
        return fail(ErrorCode::kInvalidArgument, "{}: this is not a context (any more)", function);
    auto parameters = read_attributes(*attributes);
    if (!parameters) return fail(parameters.error().code, "{}: {}", function, parameters.error().message);
    const Context::Guard guard(*context->impl);
    auto made = Qp::create(*context->impl, *parameters);
    if (!made) return fail(made.error().code, "{}: {}", function, made.error().message);
    sdr_qp* qp = QpPool::instance().acquire();
    qp->impl = std::move(*made);
    QpPool::publish(qp);
    return qp;
}

Status destroy(sdr_qp* qp) {
    if (auto ok = check("sdr_qp_destroy", qp); !ok) return ok;
    {
        const Context::Guard guard(qp->impl->context());
        qp->magic.store(Magic::kReleased);
        qp->impl.reset();
    }
    QpPool::instance().release(qp);
    return {};
}

Status connect(sdr_qp* qp, const void* remote) {
    if (auto ok = check("sdr_qp_connect", qp); !ok) return ok;
    if (remote == nullptr) return null_argument("sdr_qp_connect", "remote_qp_info");
    const Context::Guard guard(qp->impl->context());
    if (auto ok = qp->impl->connect({static_cast<const std::byte*>(remote), kInfoBytes}); !ok)
        return fail(ok.error().code, "sdr_qp_connect: {}", ok.error().message);
    return {};
}

Status get_state(sdr_qp* qp, sdr_qp_state* state, char* text, std::size_t text_size) {
    if (auto ok = check("sdr_qp_state_get", qp); !ok) return ok;
    if (state == nullptr) return null_argument("sdr_qp_state_get", "state");
    const Context::Guard guard(qp->impl->context());
    *state = qp->impl->state();
    if (text != nullptr && text_size > 0) {
        const std::string& reason = qp->impl->error_text();
        const std::size_t size = std::min(reason.size(), text_size - 1);
        std::memcpy(text, reason.data(), size);
        text[size] = '\0';
    }
    return {};
}

Status get_capacity(sdr_qp* qp, std::uint64_t* bytes) {
    if (auto ok = check("sdr_qp_send_capacity_get", qp); !ok) return ok;
    if (bytes == nullptr) return null_argument("sdr_qp_send_capacity_get", "bytes");
    *bytes = 0;
    const Context::Guard guard(qp->impl->context());
    if (auto ok = qp->impl->usable("sdr_qp_send_capacity_get"); !ok) return ok;
    if (!qp->impl->protocol()->can_start_send()) return std::unexpected(Error{ErrorCode::kRetry, {}});
    *bytes = qp->impl->protocol()->next_send_capacity();
    return {};
}

Status get_stats(sdr_qp* qp, sdr_qp_stats* stats) {
    if (auto ok = check("sdr_qp_stats_get", qp); !ok) return ok;
    if (stats == nullptr) return null_argument("sdr_qp_stats_get", "stats");
    if (stats->struct_size < sizeof(sdr_qp_stats))
        return fail(ErrorCode::kInvalidArgument,
                    "sdr_qp_stats_get: struct_size is {}: set it to sizeof(struct sdr_qp_stats), which is {}",
                    stats->struct_size, sizeof(sdr_qp_stats));
    const std::size_t size = stats->struct_size;
    *stats = {};
    stats->struct_size = size;
    const Context::Guard guard(qp->impl->context());
    sdr::QueuePair* protocol = qp->impl->protocol();
    if (protocol == nullptr) return {};
    const sdr::QueuePairCounters& counters = protocol->counters();
    stats->packets_sent = counters.packets_sent;
    stats->bytes_sent = counters.bytes_sent;
    stats->packets_accepted = counters.arrivals.accepted;
    stats->packets_duplicate = counters.arrivals.duplicate;
    stats->packets_stale = counters.arrivals.stale;
    stats->packets_out_of_bounds = counters.arrivals.out_of_bounds;
    stats->packets_rejected = qp->impl->context().endpoint().counters().frames_dropped();
    stats->control_sent = counters.datagrams_sent;
    stats->control_received = counters.datagrams_received;
    stats->control_malformed = counters.malformed_datagrams;
    stats->control_retransmissions = counters.control_retransmissions;
    stats->round_trip_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(0, protocol->round_trip().nanoseconds()));
    return {};
}

}  // namespace

extern "C" {

sdr_qp* sdr_qp_create(sdr_context* ctx, sdr_qp_attr* qp_attr) {
    return call_for_pointer<sdr_qp>([&] { return create<sdr_qp_attr>("sdr_qp_create", ctx, qp_attr); });
}

sdr_qp* sdr_qp_create_ext(sdr_context* ctx, const sdr_qp_attr_ext* attr) {
    return call_for_pointer<sdr_qp>([&] { return create<sdr_qp_attr_ext>("sdr_qp_create_ext", ctx, attr); });
}

int sdr_qp_destroy(sdr_qp* qp) {
    return call([&] { return destroy(qp); });
}

int sdr_qp_info_size_get(sdr_qp* qp, size_t* info_size) {
    return call([&]() -> Status {
        if (auto ok = check("sdr_qp_info_size_get", qp); !ok) return ok;
        if (info_size == nullptr) return null_argument("sdr_qp_info_size_get", "info_size");
        *info_size = kInfoBytes;
        return {};
    });
}

int sdr_qp_info_get(sdr_qp* qp, void* info) {
    return call([&]() -> Status {
        if (auto ok = check("sdr_qp_info_get", qp); !ok) return ok;
        if (info == nullptr) return null_argument("sdr_qp_info_get", "info");
        std::memcpy(info, qp->impl->info().data(), kInfoBytes);
        return {};
    });
}

int sdr_qp_connect(sdr_qp* qp, void* remote_qp_info) {
    return call([&] { return connect(qp, remote_qp_info); });
}

int sdr_qp_state_get(sdr_qp* qp, sdr_qp_state* state, char* text, size_t text_size) {
    return call([&] { return get_state(qp, state, text, text_size); });
}

int sdr_qp_send_capacity_get(sdr_qp* qp, uint64_t* bytes) {
    return call([&] { return get_capacity(qp, bytes); });
}

int sdr_qp_stats_get(sdr_qp* qp, sdr_qp_stats* stats) {
    return call([&] { return get_stats(qp, stats); });
}

}  // extern "C"
