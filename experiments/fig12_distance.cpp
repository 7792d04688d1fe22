// Figure 12: what distance and bandwidth do to the choice between repeating and coding.
#include <algorithm>

#include <fmt/format.h>

#include "figure.hpp"

using namespace farhaul;
using namespace farhaul::experiments;

int main(int argc, char** argv) {
    Figure figure(
        argc, argv,
        {.name = "fig12",
         .title = "Distance and bandwidth",
         .published = "which scheme is best depends on distance and bandwidth: the further and the faster the link, "
                      "the more round trips cost",
         .setting =
             "128 MiB, packet loss 1e-3, chunks of one 4 KiB packet, sr with RTO 3 RTT; 150 km of fibre per ms of RTT",
         .differs = "The gain depends on the bytes in flight (rate times RTT) beside the message's size. auto is asked "
                    "for too: it follows the "
                    "better of the two without being told."});
    figure.columns({"panel", "scheme", "rate_gbits", "rtt_ms", "runs", "mean_s", "bound_s"});
    const bool quick = figure.quick();
    const std::uint32_t runs = figure.runs(150, 10);
    const std::vector<std::string> schemes = {"auto", "sr", "sr-nack", "ec:32,8"};

    const auto curves = [&](const std::string& panel, const std::vector<double>& xs, bool distance) {
        std::vector<Series> result;
        for (const std::string& scheme : schemes) {
            Series series{.name = scheme, .points = {}};
            for (const double x : xs) {
                auto config = write_config(128 * kMiB, 1e-3, scheme);
                config.runs = runs;
                if (distance)
                    config.round_trip = Duration::from_seconds(x / 150 / 1e3);
                else
                    config.rate = BitRate::from_gigabits(x);
                const auto report = simulate(figure, config);
                series.points.emplace_back(x, report.mean_s / report.bound_s);
                figure.row({panel, "\"" + scheme + "\"",
                            number(static_cast<double>(config.rate.bits_per_second()) / 1e9),
                            number(config.round_trip.seconds() * 1e3), std::to_string(runs), number(report.mean_s),
                            number(report.bound_s)});
            }
            result.push_back(series);
        }
        return result;
    };
    const auto by_distance = curves(
        "distance",
        quick ? std::vector<double>{75, 3750, 15000} : std::vector<double>{75, 150, 300, 750, 1500, 3750, 7500, 15000},
        true);
    const auto by_rate = curves(
        "rate", quick ? std::vector<double>{10, 400, 1600} : std::vector<double>{10, 25, 50, 100, 200, 400, 800, 1600},
        false);
    figure.add(Plot{.name = "distance",
                    .caption = "Distance, at 400 Gbit/s",
                    .x = "distance (km)",
                    .y = "completion time / bound (mean)",
                    .log_x = true,
                    .log_y = false,
                    .series = by_distance,
                    .x_ticks = {},
                    .y_range = "[0:]"});
    figure.add(Plot{.name = "rate",
                    .caption = "Bandwidth, at 25 ms RTT (3750 km)",
                    .x = "bandwidth (Gbit/s)",
                    .y = "completion time / bound (mean)",
                    .log_x = true,
                    .log_y = false,
                    .series = by_rate,
                    .x_ticks = {},
                    .y_range = "[0:]"});
    Plot gain{.name = "gain",
              .caption = "sr / ec:32,8 against the bandwidth-delay product (mean)",
              .x = "rate x RTT / size",
              .y = "sr / ec:32,8",
              .log_x = true,
              .log_y = false,
              .series = {},
              .x_ticks = {},
              .y_range = "[0:]"};
    const auto gains = [&](const std::string& name, const std::vector<Series>& of, bool distance) {
        Series series{.name = name, .points = {}};
        for (std::size_t i = 0; i < of[1].points.size(); ++i) {
            const double x = of[1].points[i].first;
            const double in_flight = distance ? 400e9 * x / 150e3 : x * 1e9 * 25e-3;
            series.points.emplace_back(in_flight / 8 / static_cast<double>(128 * kMiB),
                                       of[1].points[i].second / of[3].points[i].second);
        }
        return series;
    };
    gain.series = {gains("distance changes", by_distance, true), gains("bandwidth changes", by_rate, false)};
    figure.add(gain);

    double worst = 0;
    for (const auto* of : {&by_distance, &by_rate})
        for (const auto& [x, slowdown] : (*of)[0].points) worst = std::max(worst, slowdown);
    const auto ends = [&](const Series& series) {
        return std::pair(series.points.front().second, series.points.back().second);
    };
    const auto [near, far] = ends(gain.series[0]);
    const auto [slow, fast] = ends(gain.series[1]);
    const double near_nack = by_distance[2].points.front().second, near_coded = by_distance[3].points.front().second;
    const double far_nack = by_distance[2].points.back().second, far_coded = by_distance[3].points.back().second;
    figure.check(far > 2 * near,
                 fmt::format("sr / ec:32,8 is {:.2f} at 75 km, {:.2f} at 15000 km (more than twice that)", near, far));
    figure.check(near_nack < near_coded && far_nack > far_coded,
                 fmt::format("at 75 km sr-nack beats coding ({:.2f} and {:.2f} of the bound), at 15000 km coding does "
                             "({:.2f} and {:.2f})",
                             near_nack, near_coded, far_nack, far_coded));
    figure.check(fast > slow, fmt::format("{:.2f} at 10 Gbit/s, {:.2f} at 1600 (more)", slow, fast));
    figure.check(worst <= 1.05, fmt::format("auto at most {:.3f} of the bound everywhere (at most 1.05)", worst));
    return figure.finish(
        fmt::format("sr / ec:32,8 from {:.2f} (75 km) to {:.2f} (15000 km), from {:.2f} (10 Gbit/s) to {:.2f} (1600 "
                    "Gbit/s); auto within {:.1f}% of the bound",
                    near, far, slow, fast, (worst - 1) * 100));
}
