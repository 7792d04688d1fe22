// Figure 15: packet completions per second against packets per chunk, on one core of this host.
#include <fmt/format.h>

#include "completions.hpp"
#include "figure.hpp"

using namespace farhaul;
using namespace farhaul::experiments;

int main(int argc, char** argv) {
    Figure figure(argc, argv,
                  {.name = "fig15",
                   .title = "Chunk size against completion rate, this host",
                   .published = "16 DPA threads: 15.0 M/s with chunks of 1 packet, 24.5 M/s with chunks of 64",
                   .setting = "one thread of this host turns the immediates of 256 MiB messages into bitmap bits (64 "
                              "per batch), in memory: no packets on a wire, "
                              "nothing lost",
                   .differs = "A core of a server against 16 slow threads inside a NIC; no completion queue is polled "
                              "and no bit travels over PCIe, so only the bitmap's "
                              "own cost is seen. The ratio is to the published rate of all 16 threads."});
    figure.columns({"packets_per_chunk", "bits", "completions_per_s"});
    const double seconds = figure.quick() ? 0.1 : 0.5;
    Plot plot{.name = "rate",
              .caption = "Packet completions per second against chunk size",
              .x = "packets per chunk",
              .y = "million completions per second",
              .log_x = true,
              .log_y = true,
              .series = {},
              .x_ticks = {}};
    Series plain{.name = "1 thread, bits its own", .points = {}}, atomic{.name = "1 thread, bits atomic", .points = {}};
    for (const std::uint32_t packets : {1u, 2u, 4u, 8u, 16u, 32u, 64u}) {
        figure.progress(fmt::format("chunks of {} packets", packets));
        for (Series* series : {&plain, &atomic}) {
            const double rate =
                completion_rate(packets, 1, series == &plain ? Sharing::kOwnMessages : Sharing::kOneMessage, seconds);
            series->points.emplace_back(packets, rate / 1e6);
            figure.row({std::to_string(packets), series == &plain ? "plain" : "atomic", number(rate)});
        }
        plot.x_ticks.emplace_back(packets, std::to_string(packets));
    }
    plot.series = {
        plain, atomic, {.name = "published, 16 DPA threads", .points = {{1, 15.0}, {64, 24.5}}, .dashed = true}};
    figure.add(plot);
    const double one = plain.points.front().second, most = plain.points.back().second;
    figure.check(one >= 5 && most >= 10, fmt::format("{:.0f} M/s and {:.0f} M/s (sane: at least 5 and 10)", one, most));
    figure.check(most > one, "larger chunks are faster");
    figure.depends_on_host();
    return figure.finish(fmt::format(
        "one core: {:.0f} M/s with chunks of 1 packet ({:.1f} of the published), {:.0f} M/s with 64 ({:.1f})", one,
        one / 15.0, most, most / 24.5));
}
