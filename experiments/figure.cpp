#include "figure.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace farhaul::experiments {
namespace {

/// A string constant of gnuplot's.
std::string quoted(const std::string& text) {
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? std::string("''") : std::string(1, c == '\n' ? ' ' : c);
    return result + "'";
}

std::string ticks(const char* axis, const Ticks& ticks) {
    std::string list;
    for (const auto& [at, text] : ticks) list += fmt::format("{}{} {:.9g}", list.empty() ? "" : ", ", quoted(text), at);
    return list.empty() ? "" : fmt::format("set {}tics ({}) noenhanced\n", axis, list);
}

// Colours of Okabe and Ito, which colour-blind readers tell apart; marks and dashes for grey printers.
constexpr const char* kStyle = R"(set encoding utf8
set border 3 lw 1 lc rgb '#444444'
set grid lw 1 lc rgb '#d0d0d0' dt 1
set tics nomirror
set key outside top center horizontal Left reverse width 1 noenhanced
set linetype 1 lc rgb '#000000' lw 2 dt 1 pt 7 ps 0.7
set linetype 2 lc rgb '#d55e00' lw 2 dt (8,3) pt 4 ps 0.9
set linetype 3 lc rgb '#0072b2' lw 2 dt (2,2) pt 9 ps 0.9
set linetype 4 lc rgb '#009e73' lw 2 dt (10,3,2,3) pt 12 ps 1.0
set linetype 5 lc rgb '#cc79a7' lw 2 dt (14,4) pt 2 ps 0.9
set linetype 6 lc rgb '#7a5c00' lw 2 dt (5,2,1,2,1,2) pt 5 ps 0.7
set linetype 7 lc rgb '#56b4e9' lw 2 dt (1,3) pt 11 ps 0.8
)";

bool is_probability_scale(const std::string& label) { return label.find("loss") != std::string::npos; }

/// 1, 2, 5, 10 and so on between two numbers; more where they are close.
Ticks round_numbers(double low, double high) {
    const std::vector<double> steps =
        high / low < 20 ? std::vector<double>{1, 1.5, 2, 3, 4, 5, 7} : std::vector<double>{1, 2, 5};
    Ticks ticks;
    for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high; decade *= 10)
        for (const double step : steps)
            if (decade * step >= low && decade * step <= high)
                ticks.emplace_back(decade * step, fmt::format("{:g}", decade * step));
    return ticks;
}

std::pair<double, double> range_of(const Plot& plot, bool x) {
    double low = 1e300, high = -1e300;
    for (const Series& series : plot.series)
        for (const auto& point : series.points) {
            low = std::min(low, x ? point.first : point.second);
            high = std::max(high, x ? point.first : point.second);
        }
    return {low, high};
}

/// Range, scale and ticks of an axis over [low, high], with a little room at either end.
std::string axis(const std::string& name, const std::string& label, bool logarithmic, const Ticks& given,
                 const std::string& range, std::pair<double, double> data) {
    auto [low, high] = data;
    std::string script;
    if (logarithmic) {
        const double room = std::pow(high / low, 0.04) * 1.02;
        low /= room, high *= room;
        script += fmt::format("set logscale {}\n", name);
    } else if (name == "x") {
        const double room = (high - low) * 0.04;
        low -= room, high += room;
    }
    if (!range.empty())
        script += fmt::format("set {}range {}\n", name, range);
    else if (low < high && (logarithmic || name == "x"))
        script += fmt::format("set {}range [{:.9g}:{:.9g}]\n", name, low, high);
    if (!given.empty()) return script + ticks(name.c_str(), given);
    if (!logarithmic) return script;
    if (is_probability_scale(label)) return script + fmt::format("set format {} '10^{{%L}}'\n", name);
    if (high / low < 2000) return script + ticks(name.c_str(), round_numbers(low, high));
    return script + fmt::format("set format {} '%g'\n", name);
}

}  // namespace

Figure::Figure(int argc, char** argv, About about) : about_(std::move(about)) {
    std::error_code error;
    programs_ = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
    command_ = "build/bin/" + std::filesystem::path(argv[0]).filename().string();
    for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word == "--quick") {
            quick_ = true;
            command_ += " --quick";
        } else if (word == "--out" && i + 1 < argc) {
            out_ = argv[++i];
        } else {
            const bool help = word == "--help" || word == "-h";
            fmt::print(help ? stdout : stderr, "usage: {} [--quick] [--out DIR]\n{}: {}\n",
                       std::filesystem::path(argv[0]).filename().string(), about_.name, about_.title);
            std::exit(help ? 0 : 2);
        }
    }
    std::filesystem::create_directories(out_, error);
    if (error) give_up(fmt::format("cannot make the folder {}: {}", out_.string(), error.message()));
}

void Figure::give_up(const std::string& message) const {
    fmt::print(stderr, "{}: {}\n", about_.name, message);
    std::exit(2);
}

void Figure::progress(const std::string& text) const {
    static const bool terminal = ::isatty(STDERR_FILENO) != 0;
    if (!terminal) return;
    fmt::print(stderr, "\r\033[K{}: {}", about_.name, text);
    std::fflush(stderr);
}

void Figure::draw(const std::string& name, const std::string& caption, const std::string& script) {
    const std::filesystem::path stem = std::filesystem::absolute(out_ / (about_.name + "-" + name));
    const std::string svg = stem.string() + ".svg", input = stem.string() + ".gp", log = stem.string() + ".log";
    std::ofstream(input) << "set terminal svg size 620,430 dynamic font 'Helvetica,Arial,sans-serif,15' background "
                            "'#ffffff'\n"
                         << "set output " << quoted(svg) << "\n"
                         << kStyle << script;
    std::string program = "gnuplot", argument = input;
    char* arguments[] = {program.data(), argument.data(), nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    pid_t child = 0;
    const int error = ::posix_spawnp(&child, "gnuplot", &actions, nullptr, arguments, environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0) give_up("cannot start gnuplot, which draws the pictures: install the package gnuplot-nox");
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) give_up(fmt::format("gnuplot failed on {}; its words are in {}", input, log));
    std::filesystem::remove(log);
    pictures_.push_back({{"file", about_.name + "-" + name + ".svg"}, {"caption", caption}});
}

void Figure::add(const Plot& plot) {
    std::string script =
        fmt::format("set xlabel {} noenhanced\nset ylabel {} noenhanced\n", quoted(plot.x), quoted(plot.y));
    script += axis("x", plot.x, plot.log_x, plot.x_ticks, {}, range_of(plot, true));
    script += axis("y", plot.y, plot.log_y, {}, plot.y_range, range_of(plot, false));
    std::string lines;
    std::size_t style = 0;
    for (std::size_t i = 0; i < plot.series.size(); ++i) {
        const Series& series = plot.series[i];
        script += fmt::format("$s{} << EOD\n", i);
        for (const auto& [x, y] : series.points) script += fmt::format("{:.9g} {:.9g}\n", x, y);
        script += "EOD\n";
        if (!series.dashed) ++style;
        lines += fmt::format("{}$s{} using 1:2 with {} title {}", lines.empty() ? "" : ", ", i,
                             series.dashed ? std::string("lines lw 1.5 lc rgb '#555555' dt (6,4)")
                                           : fmt::format("linespoints lt {}", style),
                             quoted(series.name));
    }
    draw(plot.name, plot.caption, script + "plot " + lines + "\n");
}

void Figure::add(const HeatMap& map) {
    Ticks x, y;
    for (std::size_t i = 0; i < map.columns.size(); ++i) x.emplace_back(static_cast<double>(i), map.columns[i]);
    for (std::size_t i = 0; i < map.rows.size(); ++i) y.emplace_back(static_cast<double>(i), map.rows[i]);
    std::string script =
        fmt::format("set xlabel {} noenhanced\nset ylabel {} noenhanced\n", quoted(map.x), quoted(map.y));
    script += ticks("x", x) + ticks("y", y);
    script += "$cells << EOD\n";
    double most = 0;
    for (std::size_t row = 0; row < map.values.size(); ++row)
        for (std::size_t column = 0; column < map.values[row].size(); ++column) {
            if (std::isnan(map.values[row][column])) continue;  // not measured: no cell
            most = std::max(most, map.values[row][column]);
            script += fmt::format("{} {} {:.9g}\n", column, row, map.values[row][column]);
        }
    script += "EOD\nunset grid\nunset key\nset border 0\nset tics scale 0\n";
    script += fmt::format("set xrange [-0.5:{}]\nset yrange [-0.5:{}]\n", static_cast<double>(x.size()) - 0.5,
                          static_cast<double>(y.size()) - 0.5);
    // Light to middle grey-blue: the numbers stay legible, also on a grey printer. Below 1 a loss: orange.
    script += fmt::format(
        "set cbrange [0.5:{:.3g}]\nset palette defined (0.5 '#f0a050', 0.95 '#fde8d0', 1 '#ffffff', 1.5 '#dbe9f6', "
        "{:.3g} '#6aa6d6')\nset colorbox\n",
        std::max(most, 2.0), std::max(most, 2.0));
    script +=
        "plot $cells using 1:2:(0.48):(0.48):3 with boxxyerror fs solid 1 border lc rgb '#999999' lc palette, "
        "$cells using 1:2:(sprintf('%.2f', $3)) with labels tc rgb '#000000'\n";
    draw(map.name, map.caption, script);
}

void Figure::check(bool met, const std::string& text) {
    missed_ |= !met;
    checks_.push_back({{"met", met}, {"text", text}});
}

int Figure::finish(const std::string& ours) {
    progress("");
    std::ofstream csv(out_ / (about_.name + ".csv"));
    for (const auto& cells : rows_) csv << fmt::format("{}\n", fmt::join(cells, ","));
    csv.close();
    const std::string verdict = missed_ ? "FAIL" : host_ ? "NOTE" : "PASS";
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_;
    const nlohmann::ordered_json json = {
        {"name", about_.name},       {"title", about_.title},     {"published", about_.published},
        {"setting", about_.setting}, {"differs", about_.differs}, {"ours", ours},
        {"verdict", verdict},        {"checks", checks_},         {"pictures", pictures_},
        {"command", command_},       {"quick", quick_},           {"seconds", took.count()}};
    std::ofstream file(out_ / (about_.name + ".json"));
    file << json.dump(2) << "\n";
    file.close();
    if (!csv || !file) give_up(fmt::format("cannot write into {}: is the disk full?", out_.string()));
    std::string why;
    for (const auto& entry : checks_)
        if (missed_ != entry["met"].get<bool>()) why += (why.empty() ? "" : "; ") + entry["text"].get<std::string>();
    fmt::print("{} {}{}: ours {} | published {} | {} {}\n", verdict, about_.name, quick_ ? " (quick)" : "", ours,
               about_.published, missed_ ? "missed:" : "held:", why);
    return missed_ ? 1 : 0;
}

app::SimulationConfig write_config(std::uint64_t size, double loss, std::string_view scheme) {
    app::SimulationConfig config;
    config.size_bytes = size;
    config.loss = loss;
    auto parsed = reliable::parse_scheme(scheme);
    if (!parsed) std::abort();
    config.scheme = *parsed;
    config.chunk_bytes = config.mtu_bytes;
    return config;
}

app::SimulationReport simulate(const Figure& figure, const app::SimulationConfig& config) {
    figure.progress(fmt::format("{} {}, loss {:g}, {} runs", reliable::to_string(config.scheme),
                                format_size(config.size_bytes), config.loss, config.runs));
    auto report = app::simulate(config);
    if (!report) figure.give_up(report.error().message);
    return std::move(*report);
}

std::string number(double value) { return fmt::format("{:.6g}", value); }

std::string joined_losses(const std::vector<double>& losses) {
    std::string text;
    for (const double loss : losses) text += fmt::format("{}{:g}", text.empty() ? "" : ", ", loss);
    return text;
}

unsigned cores() { return std::max(1u, std::thread::hardware_concurrency()); }

}  // namespace farhaul::experiments
