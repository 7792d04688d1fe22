// What a rank of `sdr allreduce` does once it has joined: size after size, timed and checked.
#pragma once

#include <functional>
#include <vector>

#include "app/allreduce/join.hpp"

namespace farhaul::app::allreduce {

struct RunPlan {
    std::uint64_t least_bytes = 8, most_bytes = 64u << 20;  ///< of the buffer; whole elements
    double factor = 4;                                      ///< from a size to the next, above 1
    std::uint32_t iterations = 20, warmup = 2;
    bool check = true;
    collective::DataType type = collective::DataType::kFloat32;
    collective::Operation operation = collective::Operation::kSum;
};

struct SizeResult {
    std::uint64_t bytes = 0, count = 0;
    double seconds = 0;                                               ///< per operation: the slowest rank's mean
    double algorithm_bytes_per_second = 0, bus_bytes_per_second = 0;  ///< as nccl-tests define them
    double floor_seconds = 0;  ///< (2N - 2) * (chunk at the link's rate + half a round trip); 0 without a rate
    std::uint64_t wrong = 0;   ///< elements, of all ranks together
    std::uint64_t packets_sent = 0, packets_resent = 0, packets_parity = 0;  ///< by this rank
};

/// Sizes that `plan` runs through.
std::vector<std::uint64_t> sizes_of(const RunPlan& plan);
/// Errors: of the ring; kClosed when interrupted.
Status run_sizes(udp::RealLoop& loop, Rank& rank, const RankConfig& config, const RunPlan& plan,
                 const bool& interrupted, const std::function<void(const SizeResult&)>& each);

/// Fills a rank's buffer with what the check expects of it.
void fill(std::byte* buffer, std::uint64_t count, collective::DataType type, std::uint32_t rank);
/// Elements of the result that are not what a serial reduction over all ranks gives: exact for integers, minima and
/// maxima; for sums of floating point within what reordering can change.
std::uint64_t count_wrong(const std::byte* buffer, std::uint64_t count, collective::DataType type,
                          collective::Operation operation, std::uint32_t ranks);

}  // namespace farhaul::app::allreduce
