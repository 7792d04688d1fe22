#include "app/link_report.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/units.hpp"

namespace farhaul::app {
namespace {

std::uint64_t dropped_by_model(const link::LinkCounters& c) {
    return c.dropped_queue + c.dropped_loss + c.dropped_down;
}

std::string percent(std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? std::string()
                      : fmt::format(" ({:.3g}%)", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string direction_summary(const link::DirectionReport& d, const std::string& name) {
    const link::LinkCounters& m = d.model;
    std::string text = fmt::format("{}\n", name);
    text += fmt::format("  offered      {} packets, {}\n", m.offered_packets, format_size(m.offered_bytes));
    text += fmt::format("  delivered    {} packets, {}\n", m.delivered_packets, format_size(m.delivered_bytes));
    text += fmt::format("  dropped      {} by loss{}, {} by the full queue{}, {} while the link was down{}\n",
                        m.dropped_loss, percent(m.dropped_loss, m.offered_packets), m.dropped_queue,
                        percent(m.dropped_queue, m.offered_packets), m.dropped_down,
                        percent(m.dropped_down, m.offered_packets));
    if (m.duplicated + m.corrupted + m.reordered != 0)
        text += fmt::format("  changed      {} duplicated, {} corrupted, {} reordered\n", m.duplicated, m.corrupted,
                            m.reordered);
    if (d.waiting_packets != 0) text += fmt::format("  on the way   {} packets\n", d.waiting_packets);
    text += fmt::format("  not by model {} lost before it, {} after it, {} unusable\n", d.lost_before_model,
                        d.lost_after_model, d.unusable_packets);
    text += fmt::format("  late by      p50 {}, p99 {}, max {}\n", format_duration(d.lateness.quantile(0.5)),
                        format_duration(d.lateness.quantile(0.99)), format_duration(d.lateness.max()));
    return text;
}

nlohmann::json direction_json(const link::DirectionReport& d) {
    const link::LinkCounters& m = d.model;
    return {{"offered_packets", m.offered_packets},
            {"offered_bytes", m.offered_bytes},
            {"delivered_packets", m.delivered_packets},
            {"delivered_bytes", m.delivered_bytes},
            {"dropped_loss", m.dropped_loss},
            {"dropped_queue", m.dropped_queue},
            {"dropped_down", m.dropped_down},
            {"duplicated", m.duplicated},
            {"corrupted", m.corrupted},
            {"reordered", m.reordered},
            {"sent_packets", d.sent_packets},
            {"waiting_packets", d.waiting_packets},
            {"lost_before_model", d.lost_before_model},
            {"lost_after_model", d.lost_after_model},
            {"unusable_packets", d.unusable_packets},
            {"late_p50_s", d.lateness.quantile(0.5).seconds()},
            {"late_p99_s", d.lateness.quantile(0.99).seconds()},
            {"late_max_s", d.lateness.max().seconds()}};
}

double cpu_share(const link::ForwarderReport& r) {
    return r.running > Duration() ? r.cpu.seconds() / r.running.seconds() : 0;
}

}  // namespace

std::string live_line(const link::ForwarderReport& before, const link::ForwarderReport& now) {
    const double seconds = std::max((now.running - before.running).seconds(), 1e-9);
    std::string text = fmt::format("{:.0f} s", now.running.seconds());
    constexpr std::array kNames = {"->", "<-"};
    for (std::size_t i = 0; i < 2; ++i) {
        const auto& m = now.directions[i].model;
        const double bits =
            8.0 * static_cast<double>(m.delivered_bytes - before.directions[i].model.delivered_bytes) / seconds;
        text += fmt::format("  {} {}, dropped {} of {}", kNames[i], format_rate(bits), dropped_by_model(m),
                            m.offered_packets);
        if (const auto other = now.directions[i].lost_before_model + now.directions[i].lost_after_model; other != 0)
            text += fmt::format(" + {} NOT BY THE MODEL", other);
    }
    const double cpu = (now.cpu - before.cpu).seconds() / seconds;
    return text + fmt::format("  cpu {:.0f}%", 100 * cpu);
}

std::string summary(const link::ForwarderReport& report, const DirectionNames& names) {
    std::string text = direction_summary(report.directions[link::kForward], names.forward);
    text += direction_summary(report.directions[link::kBackward], names.backward);
    text += fmt::format("ran for {}, {:.0f}% of a core, longest stall {}\n", format_duration(report.running),
                        100 * cpu_share(report), format_duration(report.longest_stall));
    return text;
}

nlohmann::json summary_json(const link::ForwarderReport& report) {
    return {{"seconds", report.running.seconds()},
            {"cpu_share", cpu_share(report)},
            {"longest_stall_s", report.longest_stall.seconds()},
            {"clients", report.clients},
            {"kept_up", !link::could_not_keep_up(report)},
            {"notes", report.notes},
            {"forward", direction_json(report.directions[link::kForward])},
            {"backward", direction_json(report.directions[link::kBackward])}};
}

std::string keep_up_warning(const link::ForwarderReport& report) {
    if (!link::could_not_keep_up(report)) return {};
    std::uint64_t lost = 0;
    Duration late;
    for (const auto& d : report.directions) {
        lost += d.lost_before_model + d.lost_after_model;
        late = std::max(late, d.lateness.quantile(0.99));
    }
    return fmt::format(
        "sdr link itself could not keep up: {} packets were lost that the model did not drop, 1% left at least {} "
        "late, and "
        "for up to {} it did not run. Results over this link are not the model's. Run it as root (for real-time "
        "priority and "
        "large buffers), give it a core of its own, or lower the rate.",
        lost, format_duration(late), format_duration(report.longest_stall));
}

}  // namespace farhaul::app
