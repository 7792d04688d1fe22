#include "capi/memory.hpp"

#include <bit>

namespace farhaul::capi {

namespace {

constexpr std::uint32_t kLocalFactor =
    0x9e37'79b1;  // odd: a bijection of 32 bits, so that different counters give different keys
constexpr std::uint32_t kRemoteFactor = 0x85eb'ca6b;  // likewise, so that a remote key does not pass for a local one

}  // namespace

Result<sdr_mr*> RegionTable::add(sdr_context* context, void* address, std::size_t length) {
    if (address == nullptr && length > 0)
        return fail(ErrorCode::kInvalidArgument,
                    "sdr_mr_reg: the address is NULL but the length is {}; only an empty region may be NULL", length);
    const auto start = std::bit_cast<std::uintptr_t>(address);
    if (start + length < start)
        return fail(ErrorCode::kInvalidArgument, "sdr_mr_reg: {} bytes at {} wrap around the end of the address space",
                    length, address);
    if (by_key_.size() >= 0xffff'fff0u)
        return fail(ErrorCode::kInvalidArgument, "sdr_mr_reg: no key is left; deregister some regions");
    while (next_ == 0 || by_key_.contains(next_ * kLocalFactor)) ++next_;
    sdr_mr* region = StablePool<sdr_mr>::instance().acquire();
    region->context = context;
    region->address = start;
    region->length = length;
    region->lkey = next_ * kLocalFactor;
    region->rkey = next_ * kRemoteFactor;
    region->users = 0;
    ++next_;
    by_key_.emplace(region->lkey, region);
    StablePool<sdr_mr>::publish(region);
    return region;
}

Status RegionTable::remove(sdr_mr* region) {
    if (region->users > 0)
        return fail(ErrorCode::kInvalidArgument,
                    "sdr_mr_dereg: {} receives or sends still use this region; complete the receives, poll or release "
                    "the sends, or destroy "
                    "their queue pair first",
                    region->users);
    by_key_.erase(region->lkey);
    region->context = nullptr;
    StablePool<sdr_mr>::instance().release(region);
    return {};
}

Result<sdr_mr*> RegionTable::find(std::uint32_t lkey, std::uint64_t address, std::uint64_t length) const {
    const auto found = by_key_.find(lkey);
    if (found == by_key_.end())
        return fail(ErrorCode::kInvalidArgument,
                    "local key {:#x} names no memory region of this context; get it from sdr_mr_lkey_get() and keep "
                    "the region registered",
                    lkey);
    sdr_mr* region = found->second;
    // Written so that nothing overflows, whatever the caller says.
    if (address < region->address || address - region->address > region->length ||
        length > region->length - (address - region->address))
        return fail(ErrorCode::kInvalidArgument,
                    "{} bytes at {:#x} are not inside the region of key {:#x}, which has {} bytes at {:#x}", length,
                    address, lkey, region->length, region->address);
    return region;
}

}  // namespace farhaul::capi
