// Figure 14: throughput against message size and threads on this host, over real UDP sockets on loopback.
#include <algorithm>
#include <array>
#include <cstdio>

#include <fmt/format.h>
#include <sys/wait.h>

#include "figure.hpp"

using namespace farhaul;
using namespace farhaul::experiments;

namespace {

/// Gbit/s of payload that `sdr bench --local` measures.
double bench(const Figure& figure, const std::string& arguments) {
    figure.progress("sdr bench " + arguments);
    std::string quoted = "'";
    for (const char c : figure.program("sdr").string()) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    const std::string command = quoted + "' bench --local --json -t 16 --chunk 64KiB " + arguments;
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) figure.give_up("cannot start sdr bench");
    std::string output;
    std::array<char, 4096> buffer;
    for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) output.append(buffer.data(), n);
    const int status = ::pclose(pipe);
    const auto json = nlohmann::json::parse(output, nullptr, false);
    if (status != 0 || json.is_discarded() || !json.contains("results") || json["results"].empty())
        figure.give_up(fmt::format("'{}' failed with status {}: {}", command, WEXITSTATUS(status), output));
    return json["results"][0]["bw_average_gbits"].get<double>();
}

}  // namespace

int main(int argc, char** argv) {
    Figure figure(argc, argv,
                  {.name = "fig14",
                   .title = "Throughput against message size and threads, this host",
                   .published = "400 Gbit/s from 512 KiB messages on: 16 in flight, 64 KiB chunks, 20 of 256 DPA "
                                "threads, which is 20 Gbit/s per thread",
                   .setting = "sdr bench --local: two processes on this host's loopback, UDP sockets of the kernel, "
                              "packets of 4 KiB with CRC32C, 16 messages in "
                              "flight, 64 KiB chunks; no loss but what full socket buffers lose",
                   .differs = "There a NIC places the payload and its threads see completions only; here a core sends "
                              "every byte through the kernel and another "
                              "receives, checks and copies it. The figure compared is Gbit/s per receiving thread. "
                              "sr-nack counts a message when it is acknowledged, raw when "
                              "its bitmap is full."});
    figure.columns({"panel", "scheme", "size_bytes", "channels", "gbits"});
    const bool quick = figure.quick();
    const std::string duration = quick ? "0.3" : "1";
    const auto sizes = quick ? std::vector<std::uint64_t>{4 * kKiB, 512 * kKiB}
                             : std::vector<std::uint64_t>{4 * kKiB,   16 * kKiB, 64 * kKiB, 256 * kKiB,
                                                          512 * kKiB, kMiB,      4 * kMiB,  16 * kMiB};
    Plot by_size{.name = "size",
                 .caption = "Throughput, one sending and one receiving thread",
                 .x = "message size (bytes)",
                 .y = "Gbit/s of payload",
                 .log_x = true,
                 .log_y = false,
                 .series = {},
                 .x_ticks = {},
                 .y_range = "[0:]"};
    double best = 0;
    for (const std::string& scheme : std::vector<std::string>{"raw", "sr-nack"}) {
        Series series{.name = scheme, .points = {}};
        for (const std::uint64_t size : sizes) {
            const double gbits = bench(figure, fmt::format("--scheme {} -s {} -D {}", scheme, size, duration));
            series.points.emplace_back(static_cast<double>(size), gbits);
            figure.row({"size", scheme, std::to_string(size), "1", number(gbits)});
            if (size >= 512 * kKiB) best = std::max(best, gbits);
        }
        by_size.series.push_back(series);
    }
    for (const std::uint64_t size : sizes) {
        std::string text = format_size(size);
        std::erase(text, ' ');
        by_size.x_ticks.emplace_back(static_cast<double>(size), text.substr(0, text.size() - 2));
    }
    Plot by_threads{.name = "threads",
                    .caption = "Throughput against channels, each a socket with a thread at either end; 1 MiB messages",
                    .x = "channels",
                    .y = "Gbit/s of payload",
                    .log_x = false,
                    .log_y = false,
                    .series = {},
                    .x_ticks = {},
                    .y_range = "[0:]"};
    for (const std::string& scheme : std::vector<std::string>{"raw", "sr-nack"}) {
        Series series{.name = scheme, .points = {}};
        for (unsigned channels = 1; channels <= std::min(8u, std::max(2u, cores())); channels *= 2) {
            const double gbits =
                bench(figure, fmt::format("--scheme {} -s 1MiB -D {} --channels {}", scheme, duration, channels));
            series.points.emplace_back(channels, gbits);
            figure.row({"threads", scheme, std::to_string(kMiB), std::to_string(channels), number(gbits)});
        }
        by_threads.x_ticks.clear();
        for (const auto& [x, y] : series.points) by_threads.x_ticks.emplace_back(x, fmt::format("{:g}", x));
        by_threads.series.push_back(series);
    }
    figure.add(by_size);
    figure.add(by_threads);
    figure.check(best >= 0.5, fmt::format("{:.1f} Gbit/s with messages of 512 KiB or more (sane: at least 0.5)", best));
    figure.depends_on_host();
    return figure.finish(
        fmt::format("{:.1f} Gbit/s per receiving thread with messages of 512 KiB or more, {:.2f} of the published 20",
                    best, best / 20));
}
