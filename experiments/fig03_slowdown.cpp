// Figure 3: how much longer a reliable Write takes than the link asks for, against size, distance and loss.
#include <algorithm>

#include <fmt/format.h>

#include "figure.hpp"

using namespace farhaul;
using namespace farhaul::experiments;

namespace {

const std::vector<std::string> kSchemes = {"auto", "sr", "sr-nack", "ec:32,8"};

struct Point {
    double x;
    app::SimulationConfig config;  // scheme and runs are set per curve
};

/// Curves of the mean over the bound, one per scheme.
std::vector<Series> curves(Figure& figure, const std::string& panel, const std::vector<Point>& points) {
    std::vector<Series> result;
    for (const std::string& scheme : kSchemes) {
        Series series{.name = scheme, .points = {}};
        for (const Point& point : points) {
            auto config = point.config;
            config.scheme = *reliable::parse_scheme(scheme);
            config.runs = config.size_bytes > kGiB        ? figure.runs(5, 1)
                          : config.size_bytes > 32 * kMiB ? figure.runs(100, 10)
                                                          : figure.runs(1000, 100);
            const auto report = simulate(figure, config);
            series.points.emplace_back(point.x, report.mean_s / report.bound_s);
            figure.row({panel, scheme, number(static_cast<double>(config.size_bytes)),
                        number(config.round_trip.seconds() * 1e3), number(config.loss), std::to_string(config.runs),
                        number(report.mean_s), number(report.bound_s), number(report.mean_s / report.bound_s)});
        }
        result.push_back(std::move(series));
    }
    return result;
}

double at(const Series& series, double x) {
    return std::ranges::find_if(series.points, [&](const auto& point) { return point.first == x; })->second;
}

}  // namespace

int main(int argc, char** argv) {
    Figure figure(
        argc, argv,
        {.name = "fig03",
         .title = "Slowdown of a reliable Write against size, distance and loss",
         .published = "one lost packet costs whole round trips: selective repeat slows a long-distance Write by a "
                      "factor that depends on size, distance and loss; no single scheme wins everywhere",
         .setting = "400 Gbit/s, 25 ms RTT, 128 MiB unless the axis says otherwise; loss of packets, independent; "
                    "chunks of one 4 KiB packet; sr with RTO 3 RTT",
         .differs = "Slowdown is the mean over what the link allows (bytes / rate / (1 - loss) + RTT), a little "
                    "more than a lossless Write. Real protocol code in virtual time, control packets lost too; "
                    "the paper draws its model."});
    figure.columns({"panel", "scheme", "size_bytes", "rtt_ms", "packet_loss", "runs", "mean_s", "bound_s", "slowdown"});

    const std::vector<std::uint64_t> sizes =
        figure.quick() ? std::vector<std::uint64_t>{128 * kKiB, 8 * kMiB, 128 * kMiB, 2 * kGiB}
                       : std::vector<std::uint64_t>{128 * kKiB, kMiB,       8 * kMiB, 32 * kMiB,
                                                    128 * kMiB, 512 * kMiB, 2 * kGiB, 8 * kGiB};
    std::vector<Point> by_size, by_distance, by_loss;
    Ticks size_ticks;
    for (const std::uint64_t size : sizes) {
        by_size.push_back({static_cast<double>(size), write_config(size, 1e-4, "sr")});
        std::string text = format_size(size);
        std::erase(text, ' ');
        size_ticks.emplace_back(static_cast<double>(size), text.substr(0, text.size() - 2));
    }
    for (const double ms :
         figure.quick() ? std::vector<double>{1, 25, 100} : std::vector<double>{1, 2, 5, 10, 25, 50, 100}) {
        auto config = write_config(128 * kMiB, 1e-4, "sr");
        config.round_trip = Duration::from_seconds(ms / 1e3);
        by_distance.push_back({ms * 150, config});  // km of fibre: 5 us each way
    }
    for (const double loss : figure.quick() ? std::vector<double>{1e-6, 1e-4, 1e-2}
                                            : std::vector<double>{1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2})
        by_loss.push_back({loss, write_config(128 * kMiB, loss, "sr")});

    const auto size_curves = curves(figure, "size", by_size);
    const auto distance_curves = curves(figure, "distance", by_distance);
    const auto loss_curves = curves(figure, "loss", by_loss);
    figure.add(Plot{.name = "size",
                    .caption = "Size; packet loss 1e-4, 25 ms RTT",
                    .x = "size of the Write (bytes)",
                    .y = "completion time / bound (mean)",
                    .log_x = true,
                    .log_y = false,
                    .series = size_curves,
                    .x_ticks = size_ticks,
                    .y_range = "[0:]"});
    figure.add(Plot{.name = "distance",
                    .caption = "Distance; packet loss 1e-4, 128 MiB",
                    .x = "distance (km)",
                    .y = "completion time / bound (mean)",
                    .log_x = true,
                    .log_y = false,
                    .series = distance_curves,
                    .x_ticks = {},
                    .y_range = "[0:]"});
    figure.add(Plot{.name = "loss",
                    .caption = "Packet loss; 128 MiB, 25 ms RTT",
                    .x = "packet loss",
                    .y = "completion time / bound (mean)",
                    .log_x = true,
                    .log_y = false,
                    .series = loss_curves,
                    .x_ticks = {},
                    .y_range = "[0:]"});

    double worst_sr = 0, worst_auto = 0;
    for (const auto* set : {&size_curves, &distance_curves, &loss_curves})
        for (std::size_t i = 0; i < kSchemes.size(); ++i)
            for (const auto& [x, slowdown] : (*set)[i].points) {
                if (kSchemes[i] == "sr") worst_sr = std::max(worst_sr, slowdown);
                if (kSchemes[i] == "auto" && !(set == &loss_curves && x > 1e-2))
                    worst_auto = std::max(worst_auto, slowdown);
            }
    const double middle = at(size_curves[1], static_cast<double>(128 * kMiB)),
                 large = size_curves[1].points.back().second;
    const double near_by = distance_curves[1].points.front().second, far = distance_curves[1].points.back().second;
    figure.check(worst_sr >= 4, fmt::format("sr is slowed by {:.1f}x (at least 4)", worst_sr));
    figure.check(middle > 1.3 * large,
                 fmt::format("sr at 128 MiB {:.2f}x, at {} {:.2f}x: long injection hides round trips", middle,
                             format_size(sizes.back()), large));
    figure.check(far > 1.3 * near_by, fmt::format("sr at 150 km {:.2f}x, at 15000 km {:.2f}x", near_by, far));
    figure.check(worst_auto <= 1.03,
                 fmt::format("auto at most {:.4f}x up to a packet loss of 1e-2 (at most 1.03)", worst_auto));
    return figure.finish(fmt::format("sr up to {:.1f}x, auto at most {:.3f}x", worst_sr, worst_auto));
}
