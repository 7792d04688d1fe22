// The registered memory of a context: keys, bounds, and who uses what.
//
// A key is a counter times an odd constant: keys of a context repeat only after 2^32 registrations, and a key that is
// off by one names nothing. Only the context's lock guards a table.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "base/result.hpp"
#include "capi/stable_pool.hpp"

struct sdr_context;

/// Behind `struct sdr_mr *`.
struct sdr_mr {
    static constexpr auto kMagic = farhaul::capi::Magic::kRegion;
    std::atomic<farhaul::capi::Magic> magic{};
    sdr_context* context = nullptr;
    std::uint64_t address = 0;
    std::uint64_t length = 0;
    std::uint32_t lkey = 0;
    std::uint32_t rkey = 0;
    std::uint64_t users = 0;  ///< posted receives and unfinished sends
};

namespace farhaul::capi {

class RegionTable {
 public:
    /// Errors: kInvalidArgument when the range wraps around, is null but not empty, or keys ran out (2^32 regions at
    /// once).
    Result<sdr_mr*> add(sdr_context* context, void* address, std::size_t length);
    /// Errors: kInvalidArgument while the region is in use.
    Status remove(sdr_mr* region);
    /// The region of `lkey` if [address, address + length) lies in it. Errors: kInvalidArgument, with what does not
    /// fit.
    Result<sdr_mr*> find(std::uint32_t lkey, std::uint64_t address, std::uint64_t length) const;
    std::size_t size() const { return by_key_.size(); }

 private:
    std::unordered_map<std::uint32_t, sdr_mr*> by_key_;
    std::uint32_t next_ = 1;
};

}  // namespace farhaul::capi
