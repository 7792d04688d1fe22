// Figure 13: a ring Allreduce between sites, by the code of collective/ in virtual time.
#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "app/simulate_ring.hpp"
#include "figure.hpp"

using namespace farhaul;
using namespace farhaul::experiments;

namespace {

using Cells = std::map<std::tuple<std::uint32_t, double, std::string>, app::RingReport>;

/// The report of a cell, which is measured at most once.
const app::RingReport& ring(Figure& figure, Cells& cells, std::uint32_t ranks, double loss, const std::string& scheme,
                            std::uint32_t runs) {
    const auto key = std::tuple(ranks, loss, scheme);
    if (const auto known = cells.find(key); known != cells.end()) return known->second;
    app::RingSimulationConfig config;
    config.base = write_config(128 * kMiB, loss, scheme);
    config.base.runs = runs;
    config.ranks = ranks;
    figure.progress(fmt::format("{} ranks, {}, packet loss {:g}, {} runs", ranks, scheme, loss, runs));
    auto report = app::simulate_ring(config);
    if (!report) figure.give_up(report.error().message);
    figure.row({std::to_string(ranks), number(loss), "\"" + scheme + "\"", std::to_string(runs), number(report->mean_s),
                number(report->p999_s), number(report->max_s), number(report->floor_s),
                number(report->published_bound_s)});
    return cells.emplace(key, std::move(*report)).first->second;
}

}  // namespace

int main(int argc, char** argv) {
    Figure figure(
        argc, argv,
        {.name = "fig13",
         .title = "Ring Allreduce between sites",
         .published = "p99.9 of EC over SR (RTO 3 RTT): 3x to more than 6x, growing with the drop rate (128 "
                      "MiB, 4 sites and up)",
         .setting = "4 sites unless said otherwise, 128 MiB per site, 400 Gbit/s and 25 ms RTT between "
                    "neighbours; loss of packets, independent; coding "
                    "unit one packet (chunks of one 4 KiB packet)",
         .differs =
             "The paper draws steps from its model; ours runs the collective over the protocol. auto is held against "
             "(2N-2)(M/N at the line's rate + RTT/2), the floor of steps that follow one another, since a step needs "
             "only the way there. "
             "Segments of 4 MiB overlap neighbouring steps, so that without loss the time is below this floor. p99.9 "
             "of fewer than 1000 runs "
             "is their maximum, so that it errs to the high side."});
    figure.columns(
        {"ranks", "packet_loss", "scheme", "runs", "mean_s", "p999_s", "max_s", "floor_s", "published_bound_s"});
    const bool quick = figure.quick();
    const auto losses =
        quick ? std::vector<double>{1e-5, 1e-3, 1e-2} : std::vector<double>{1e-6, 1e-5, 1e-4, 1e-3, 1e-2};

    // Coding against repeating, four sites.
    Plot ratio{.name = "ratio",
               .caption = "sr / scheme at p99.9, 4 sites",
               .x = "packet loss",
               .y = "sr / scheme at p99.9",
               .log_x = true,
               .log_y = false,
               .series = {},
               .x_ticks = {},
               .y_range = "[0:]"};
    Plot time{.name = "time",
              .caption = "Allreduce time at p99.9, 4 sites",
              .x = "packet loss",
              .y = "time (ms)",
              .log_x = true,
              .log_y = false,
              .series = {},
              .x_ticks = {},
              .y_range = "[0:]"};
    Cells cells;
    std::map<double, double> gain;
    std::map<double, double> sr_tail;
    Series floor{.name = "floor", .points = {}, .dashed = true};
    for (const std::string& scheme : std::vector<std::string>{"sr", "ec:32,8", "auto"}) {
        Series of_ratio{.name = scheme, .points = {}}, of_time = of_ratio;
        for (const double loss : losses) {
            // The ends of the claim, and what is held against the floor below, with all runs.
            const bool all_runs = scheme == "auto" || loss == 1e-5 || loss == 1e-2;
            const auto& report = ring(figure, cells, 4, loss, scheme, figure.runs(all_runs ? 1000 : 300, 40));
            if (scheme == "sr") {
                sr_tail[loss] = report.p999_s;
                floor.points.emplace_back(loss, report.floor_s * 1e3);
            }
            if (scheme == "ec:32,8") gain[loss] = sr_tail[loss] / report.p999_s;
            of_time.points.emplace_back(loss, report.p999_s * 1e3);
            of_ratio.points.emplace_back(loss, sr_tail[loss] / report.p999_s);
        }
        time.series.push_back(of_time);
        if (scheme != "sr") ratio.series.push_back(of_ratio);
    }
    time.series.push_back(floor);
    ratio.series.push_back({.name = "published: 3x to 6x", .points = {{1e-5, 3}, {1e-2, 6}}, .dashed = true});

    // auto against the floor, over the number of sites.
    Plot mean{.name = "auto-mean",
              .caption = "auto: mean over the floor",
              .x = "packet loss (leftmost: none)",
              .y = "time / floor",
              .log_x = true,
              .log_y = false,
              .series = {},
              .x_ticks = {},
              .y_range = "[0.9:1.12]"};
    Plot tail = mean;
    tail.name = "auto-p999", tail.caption = "auto: p99.9 over the floor";
    std::vector<double> all = losses;
    all.insert(all.begin(), 0);
    Ticks ticks;
    const auto place = [](double loss) { return loss > 0 ? loss : 1e-7; };  // zero has no place on a logarithmic axis
    for (const double loss : all) ticks.emplace_back(place(loss), loss > 0 ? fmt::format("{:.0e}", loss) : "0");
    mean.x_ticks = tail.x_ticks = ticks;
    double worst_mean = 0, worst_tail = 0, least = 1e9;
    std::string runs_text;
    for (const std::uint32_t ranks :
         quick ? std::vector<std::uint32_t>{2, 4, 16} : std::vector<std::uint32_t>{2, 4, 8, 16}) {
        // What a run costs grows with the square of the ranks.
        const std::uint32_t runs = ranks <= 4 ? figure.runs(1000, 40) : ranks == 8 ? 300 : figure.runs(200, 3);
        Series of_mean{.name = fmt::format("{} sites", ranks), .points = {}}, of_tail = of_mean;
        for (const double loss : all) {
            const auto& report = ring(figure, cells, ranks, loss, "auto", runs);
            of_mean.points.emplace_back(place(loss), report.mean_s / report.floor_s);
            of_tail.points.emplace_back(place(loss), report.p999_s / report.floor_s);
            least = std::min(least, of_mean.points.back().second);
            worst_mean = std::max(worst_mean, of_mean.points.back().second);
            worst_tail = std::max(worst_tail, of_tail.points.back().second);
        }
        runs_text += fmt::format("{}{}: {}", runs_text.empty() ? "" : ", ", ranks, runs);
        mean.series.push_back(of_mean), tail.series.push_back(of_tail);
    }
    mean.caption += ", runs by sites " + runs_text;
    mean.series.push_back({.name = "target 1.05", .points = {{place(0), 1.05}, {1e-2, 1.05}}, .dashed = true});
    tail.series.push_back({.name = "target 1.10", .points = {{place(0), 1.10}, {1e-2, 1.10}}, .dashed = true});
    for (const Plot* plot : {&ratio, &time, &mean, &tail}) figure.add(*plot);
    // Of few runs the tail is not seen: at 1e-5 a third of the runs lose nothing where it hurts.
    const double first_target = quick ? 2.5 : 3;
    figure.check(gain[1e-5] >= first_target,
                 fmt::format("p99.9 of sr over ec:32,8 is {:.2f}x at a packet loss of 1e-5 (at least {:g})", gain[1e-5],
                             first_target));
    figure.check(gain[1e-2] >= 6, fmt::format("{:.2f}x at 1e-2 (at least 6)", gain[1e-2]));
    figure.check(worst_mean <= 1.05, fmt::format("auto: mean at most {:.4f} of the floor (at most 1.05)", worst_mean));
    figure.check(worst_tail <= 1.10,
                 fmt::format("p99.9 at most {:.4f} of the floor (at most 1.10), packet loss 0 to 1e-2", worst_tail));
    return figure.finish(
        fmt::format("{:.2f}x at 1e-5, {:.2f}x at 1e-2; auto takes {:.3f} to {:.3f} of the floor in the mean, at most "
                    "{:.3f} at p99.9 (runs by sites {})",
                    gain[1e-5], gain[1e-2], least, worst_mean, worst_tail, runs_text));
}
