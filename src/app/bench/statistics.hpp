// Figures of `sdr bench`: bandwidth from completion times, latency from samples, medians of rounds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"

namespace farhaul::app::bench {

/// One line of the bandwidth table.
struct BandwidthRow {
    std::uint64_t bytes = 0;       ///< per message
    std::uint64_t iterations = 0;  ///< messages that arrived whole; both directions together
    double seconds = 0;
    double peak_bits_per_second = 0;  ///< over the best run of as many messages as are kept in flight
    double average_bits_per_second = 0;
    double messages_per_second = 0;
    /// Seconds from the start of a message to its acknowledgement, when one is in flight at a time, else 0. The first
    /// message, which waits for the connection's set-up, does not count unless it is the only one.
    double message_min = 0, message_median = 0, message_max = 0;
    std::uint64_t packets_sent = 0;
    std::uint64_t packets_resent = 0;
    std::uint64_t incomplete = 0;  ///< raw messages that lost a packet
    std::uint64_t invalid = 0;     ///< messages whose payload was wrong (--data_validation)
};

/// How many messages in a row a peak is taken over. Acknowledgements come in lumps: what had arrived long before is
/// told in one moment, so a stretch of no more messages than are in flight shows the lump and not the link.
std::size_t peak_window(std::size_t messages, std::size_t in_flight);

/// Fills the rates of `row` from its bytes, iterations and seconds, and its peak from `completions` (ascending,
/// nanoseconds since the start of the run): the least time in which peak_window() messages in a row completed. With
/// fewer completions the peak is the average.
void fill_rates(BandwidthRow& row, const std::vector<std::int64_t>& completions, std::size_t in_flight);

/// One line of the latency table, in microseconds.
struct LatencyRow {
    std::uint64_t bytes = 0;
    std::uint64_t iterations = 0;
    double min = 0, max = 0, typical = 0, average = 0, deviation = 0, p99 = 0, p999 = 0;
};

/// From samples in nanoseconds, in any order; they are sorted. `typical` is the median; percentiles are by nearest
/// rank.
LatencyRow latency_row(std::uint64_t bytes, std::vector<std::int64_t>& samples);

/// The median; 0 for none.
double median(std::vector<double> values);

std::string bandwidth_header();
std::string to_line(const BandwidthRow& row);
std::string latency_header();
std::string to_line(const LatencyRow& row);

/// What a figure was measured on.
struct Machine {
    std::string cpu;
    unsigned cores = 0;
    std::string kernel;
};
Machine this_machine();

}  // namespace farhaul::app::bench
