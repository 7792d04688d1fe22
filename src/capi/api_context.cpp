// sdr.h: contexts and texts. sdr_mr.h: memory regions.
#include "capi/call.hpp"
#include "capi/context.hpp"
#include "sdr_mr.h"

#ifndef FARHAUL_VERSION
#define FARHAUL_VERSION "0.1.0"
#endif

using namespace farhaul;
using namespace farhaul::capi;

namespace {

using ContextPool = StablePool<sdr_context>;
using RegionPool = StablePool<sdr_mr>;

std::unexpected<Error> not_a(const char* function, const char* what) {
    return fail(ErrorCode::kInvalidArgument, "{}: this is not a {} (any more)", function, what);
}

Result<sdr_context*> create(const char* device, const sdr_dev_attr* attributes) {
    if (device == nullptr) return null_argument("sdr_context_create", "dev_name");
    if (attributes == nullptr) return null_argument("sdr_context_create", "dev_attr");
    auto opened = Context::open(device, *attributes);
    if (!opened) return propagate(opened);
    sdr_context* context = ContextPool::instance().acquire();
    context->impl = std::move(*opened);
    ContextPool::publish(context);
    return context;
}

Status destroy(sdr_context* context) {
    if (context == nullptr) return null_argument("sdr_context_destroy", "context");
    if (!ContextPool::live(context)) return not_a("sdr_context_destroy", "context");
    {
        const Context::Guard guard(*context->impl);
        if (context->impl->queue_pairs > 0 || context->impl->regions().size() > 0)
            return fail(
                ErrorCode::kInvalidArgument,
                "sdr_context_destroy: {} queue pairs and {} memory regions of it still exist; destroy them first",
                context->impl->queue_pairs, context->impl->regions().size());
        context->magic.store(Magic::kReleased);
    }
    context->impl.reset();
    ContextPool::instance().release(context);
    return {};
}

Result<sdr_mr*> register_memory(sdr_context* context, void* address, std::size_t length, unsigned flags) {
    if (context == nullptr) return null_argument("sdr_mr_reg", "ctx");
    if (!ContextPool::live(context)) return not_a("sdr_mr_reg", "context");
    if (flags != SDR_ACCESS_REMOTE_WRITE)
        return fail(ErrorCode::kInvalidArgument, "sdr_mr_reg: unknown access flags {}; use SDR_ACCESS_REMOTE_WRITE",
                    flags);
    const Context::Guard guard(*context->impl);
    return context->impl->regions().add(context, address, length);
}

Status deregister_memory(sdr_mr* region) {
    if (region == nullptr) return null_argument("sdr_mr_dereg", "mr");
    if (!RegionPool::live(region)) return not_a("sdr_mr_dereg", "memory region");
    Context& context = *region->context->impl;
    const Context::Guard guard(context);
    return context.regions().remove(region);
}

Status key_of(const char* function, const sdr_mr* region, std::uint32_t* key, std::uint32_t sdr_mr::* member) {
    if (region == nullptr) return null_argument(function, "mr");
    if (key == nullptr) return null_argument(function, member == &sdr_mr::lkey ? "lkey" : "rkey");
    if (!RegionPool::live(region)) return not_a(function, "memory region");
    *key = region->*member;
    return {};
}

}  // namespace

extern "C" {

const char* sdr_version(void) { return FARHAUL_VERSION; }

const char* sdr_strerror(int code) {
    switch (code) {
        case SDR_SUCCESS:
            return "success";
        case SDR_ERROR:
            return "error";
        case SDR_RETRY:
            return "not now: try again";
        default:
            return "not a return code of this library";
    }
}

const char* sdr_last_error(void) { return last_error(); }

sdr_context* sdr_context_create(const char* dev_name, sdr_dev_attr* dev_attr) {
    return call_for_pointer<sdr_context>([&] { return create(dev_name, dev_attr); });
}

int sdr_context_destroy(sdr_context* context) {
    return call([&] { return destroy(context); });
}

sdr_mr* sdr_mr_reg(sdr_context* ctx, void* addr, size_t length, sdr_access_flags flags) {
    return call_for_pointer<sdr_mr>([&] { return register_memory(ctx, addr, length, number_in(flags)); });
}

int sdr_mr_dereg(sdr_mr* mr) {
    return call([&] { return deregister_memory(mr); });
}

int sdr_mr_lkey_get(sdr_mr* mr, uint32_t* lkey) {
    return call([&] { return key_of("sdr_mr_lkey_get", mr, lkey, &sdr_mr::lkey); });
}

int sdr_mr_rkey_get(sdr_mr* mr, uint32_t* rkey) {
    return call([&] { return key_of("sdr_mr_rkey_get", mr, rkey, &sdr_mr::rkey); });
}

}  // extern "C"
