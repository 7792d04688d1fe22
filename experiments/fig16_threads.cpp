// Figure 16: packet completions per second against threads, up to the cores of this host.
#include <algorithm>

#include <fmt/format.h>

#include "completions.hpp"
#include "figure.hpp"

using namespace farhaul;
using namespace farhaul::experiments;

int main(int argc, char** argv) {
    Figure figure(argc, argv,
                  {.name = "fig16",
                   .title = "Completion rate against threads, this host",
                   .published = "4, 8, 16, 32 and 128 DPA threads: 11.6, 22.9, 42.9, 70.5 and 92.1 M/s",
                   .setting = "immediates of 256 MiB messages into bitmap bits, chunks of 16 packets, in memory; a "
                              "queue pair per thread, and channels that share one message",
                   .differs = "Cores of a server against threads of a NIC, and as many as this host has. Threads that "
                              "share one message set bits of the same words "
                              "with locked instructions, which costs more than it gains on few cores: a queue pair per "
                              "thread is how to scale here."});
    figure.columns({"threads", "sharing", "completions_per_s"});
    const double seconds = figure.quick() ? 0.1 : 1.0;
    Plot plot{.name = "rate",
              .caption = "Packet completions per second against threads, chunks of 16 packets",
              .x = "threads",
              .y = "million completions per second",
              .log_x = true,
              .log_y = true,
              .series = {},
              .x_ticks = {},
              .y_range = ""};
    Series own{.name = "a queue pair per thread", .points = {}}, shared{.name = "one message shared", .points = {}};
    std::vector<unsigned> counts;
    for (unsigned threads = 1; threads < cores(); threads *= 2) counts.push_back(threads);
    counts.push_back(cores());
    for (const unsigned threads : counts) {
        figure.progress(fmt::format("{} threads", threads));
        for (Series* series : {&own, &shared}) {
            const double rate =
                completion_rate(16, threads, series == &own ? Sharing::kOwnMessages : Sharing::kOneMessage, seconds);
            series->points.emplace_back(threads, rate / 1e6);
            figure.row({std::to_string(threads), series == &own ? "own" : "shared", number(rate)});
        }
    }
    for (unsigned threads = 1; threads <= 128; threads *= 2)
        plot.x_ticks.emplace_back(threads, std::to_string(threads));
    plot.series = {own,
                   shared,
                   {.name = "published, DPA threads",
                    .points = {{4, 11.6}, {8, 22.9}, {16, 42.9}, {32, 70.5}, {128, 92.1}},
                    .dashed = true}};
    figure.add(plot);
    const double one = own.points.front().second, all = own.points.back().second;
    figure.check(one >= 10, fmt::format("one thread {:.0f} M/s (sane: at least 10)", one));
    figure.check(all >= 0.8 * one, fmt::format("{} threads {:.0f} M/s (sane: no fewer than one thread, within a fifth)",
                                               counts.back(), all));
    figure.depends_on_host();
    return figure.finish(
        fmt::format("{} threads {:.0f} M/s, {:.1f} of the published 92.1 with 128 threads; one thread {:.0f} M/s",
                    counts.back(), all, all / 92.1, one));
}
