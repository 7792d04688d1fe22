#include "app/bench/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <sys/utsname.h>
#include <unistd.h>

namespace farhaul::app::bench {

std::size_t peak_window(std::size_t messages, std::size_t in_flight) { return std::max(in_flight, messages / 8); }

void fill_rates(BandwidthRow& row, const std::vector<std::int64_t>& completions, std::size_t in_flight) {
    const double bits = static_cast<double>(row.bytes) * 8;
    if (row.seconds > 0) {
        row.messages_per_second = static_cast<double>(row.iterations) / row.seconds;
        row.average_bits_per_second = row.messages_per_second * bits;
    }
    row.peak_bits_per_second = row.average_bits_per_second;
    if (in_flight == 0) return;
    if (in_flight == 1 && !completions.empty()) {
        std::vector<double> times;
        for (std::size_t i = 1; i < completions.size(); ++i)
            times.push_back(static_cast<double>(completions[i] - completions[i - 1]) / 1e9);
        if (times.empty()) times.push_back(static_cast<double>(completions[0]) / 1e9);
        const auto [least, most] = std::ranges::minmax(times);
        row.message_min = least;
        row.message_max = most;
        row.message_median = median(times);
    }
    const std::size_t window = peak_window(completions.size(), in_flight);
    for (std::size_t i = window; i < completions.size(); ++i) {
        const std::int64_t span = completions[i] - completions[i - window];
        if (span > 0)
            row.peak_bits_per_second = std::max(row.peak_bits_per_second,
                                                bits * static_cast<double>(window) * 1e9 / static_cast<double>(span));
    }
}

LatencyRow latency_row(std::uint64_t bytes, std::vector<std::int64_t>& samples) {
    LatencyRow row;
    row.bytes = bytes;
    row.iterations = samples.size();
    if (samples.empty()) return row;
    std::sort(samples.begin(), samples.end());
    const auto at = [&](double share) {
        const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(samples.size())));
        return static_cast<double>(samples[std::clamp<std::size_t>(rank, 1, samples.size()) - 1]) / 1e3;
    };
    double sum = 0, squares = 0;
    for (const std::int64_t s : samples) sum += static_cast<double>(s) / 1e3;
    row.average = sum / static_cast<double>(samples.size());
    for (const std::int64_t s : samples) squares += std::pow(static_cast<double>(s) / 1e3 - row.average, 2);
    row.deviation = std::sqrt(squares / static_cast<double>(samples.size()));
    row.min = at(0);
    row.max = at(1);
    row.typical = at(0.5);
    row.p99 = at(0.99);
    row.p999 = at(0.999);
    return row;
}

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const std::size_t n = values.size();
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::string bandwidth_header() {
    return " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]";
}

std::string to_line(const BandwidthRow& row) {
    return fmt::format(" {:<10} {:<14} {:<18.3f} {:<20.3f} {:.6f}", row.bytes, row.iterations,
                       row.peak_bits_per_second / 1e9, row.average_bits_per_second / 1e9,
                       row.messages_per_second / 1e6);
}

std::string latency_header() {
    return " #bytes     #iterations    t_min[usec]    t_max[usec]    t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
           " 99%[usec]      "
           "99.9%[usec]";
}

std::string to_line(const LatencyRow& row) {
    return fmt::format(" {:<10} {:<14} {:<14.2f} {:<14.2f} {:<18.2f} {:<14.2f} {:<16.2f} {:<14.2f} {:.2f}", row.bytes,
                       row.iterations, row.min, row.max, row.typical, row.average, row.deviation, row.p99, row.p999);
}

Machine this_machine() {
    Machine machine;
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
        if (line.starts_with("model name")) {
            const std::size_t colon = line.find(": ");
            if (colon != std::string::npos) machine.cpu = line.substr(colon + 2);
            break;
        }
    if (machine.cpu.empty()) machine.cpu = "unknown CPU";
    // Not the affinity mask: --local has pinned this process already.
    const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
    machine.cores = cores > 0 ? static_cast<unsigned>(cores) : 1;
    utsname name{};
    if (::uname(&name) == 0) machine.kernel = fmt::format("{} {} {}", name.sysname, name.release, name.machine);
    return machine;
}

}  // namespace farhaul::app::bench
