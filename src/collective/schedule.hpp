// Which bytes a rank of a ring sends and receives, and in which order. Pure arithmetic: no connection, no memory.
//
// The buffer is cut into N chunks of whole elements, the first ones an element larger than the last ones, so that any
// count works, smaller ones than N too. In step s of a reduce-scatter rank r sends chunk r - s to its right neighbour
// and combines what comes from the left with chunk r - s - 1; after N - 1 steps it owns chunk r + 1. An allgather
// passes the owned chunks on in N - 1 steps more (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
// clusters of workstations", 2009). What is sent in one step is what was received in the one before. So a Write waits
// for one receive and nothing else, and chunks are cut into segments, each of which goes on as soon as it came: rings
// are pipelines.
#pragma once

#include <cstdint>
#include <vector>

namespace farhaul::collective {

enum class Kind : std::uint8_t { kAllreduce, kReduceScatter, kAllgather, kBroadcast };

struct Range {
    std::uint64_t offset = 0, length = 0;  ///< bytes
    bool operator==(const Range&) const = default;
};

/// Chunk `chunk` (0 .. ranks - 1) of `count` elements of `element_bytes`.
Range chunk_of(std::uint64_t count, std::uint64_t element_bytes, std::uint32_t ranks, std::uint32_t chunk);

struct Schedule {
    struct Receive {
        Range range;
        bool combine = false;  ///< with what is there, instead of replacing it
    };
    /// In the order in which they go out. Write i waits for receive i - ready_writes; the first ready_writes for
    /// nothing.
    std::vector<Range> writes;
    std::uint64_t ready_writes = 0;
    std::vector<Receive> receives;  ///< in the order in which the left neighbour writes them

    /// `rank` < `ranks`, which is at least 1; `root` < `ranks`, of a broadcast; segment_bytes: a multiple of
    /// element_bytes, above 0. After a reduce-scatter, and before an allgather, rank r owns chunk r.
    static Schedule make(Kind kind, std::uint64_t count, std::uint64_t element_bytes, std::uint32_t rank,
                         std::uint32_t ranks, std::uint32_t root, std::uint64_t segment_bytes);
};

}  // namespace farhaul::collective
