// What the programs of the figures share: options, tables as CSV, pictures by gnuplot, and a verdict.
//
// A program measures, adds rows, pictures and checks, and ends with finish(). In the output folder it leaves NAME.csv,
// NAME-PICTURE.gp and .svg, and NAME.json, from which report.py makes the report.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/simulate.hpp"

namespace farhaul::experiments {

inline constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

/// What is said about a figure, apart from what it measures.
struct About {
    std::string name;       ///< `fig09`
    std::string title;      ///< a line
    std::string published;  ///< what is claimed, with its conditions
    std::string setting;    ///< ours: link, loss of what, chunk
    std::string differs;    ///< from the published setting and result, and why
};

struct Series {
    std::string name;
    std::vector<std::pair<double, double>> points;
    bool dashed = false;  ///< a model or a published value, not a measurement: a thin line without marks
};

using Ticks = std::vector<std::pair<double, std::string>>;

struct Plot {
    std::string name;     ///< part of the file's name
    std::string caption;  ///< what is shown, under which loss
    std::string x, y;     ///< labels with units
    bool log_x = false, log_y = false;
    std::vector<Series> series;
    Ticks x_ticks;             ///< empty: gnuplot's
    std::string y_range = {};  ///< as gnuplot reads it: `[0:]`
};

struct HeatMap {
    std::string name, caption, x, y;
    std::vector<std::string> columns, rows;   ///< rows from below
    std::vector<std::vector<double>> values;  ///< [row][column]; written into the cells
};

class Figure {
 public:
    /// Reads --quick, --out DIR, --help; ends the program when it cannot.
    Figure(int argc, char** argv, About about);

    bool quick() const { return quick_; }
    std::uint32_t runs(std::uint32_t full, std::uint32_t quick) const { return quick_ ? quick : full; }
    /// Of the programs of this build.
    std::filesystem::path program(std::string_view name) const { return programs_ / name; }

    void columns(std::vector<std::string> names) { rows_.insert(rows_.begin(), std::move(names)); }
    void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
    void add(const Plot& plot);
    void add(const HeatMap& map);

    /// A target of the protocol's: the verdict is FAIL when one is missed.
    void check(bool met, const std::string& text);
    /// Makes a verdict that would be PASS a NOTE: the figure depends on this host.
    void depends_on_host() { host_ = true; }
    /// On a terminal, the last line says what is going on.
    void progress(const std::string& text) const;
    [[noreturn]] void give_up(const std::string& message) const;

    /// Writes the files and the line of verdict. Returns the exit status: 1 when a target was missed.
    int finish(const std::string& ours);

 private:
    void draw(const std::string& name, const std::string& caption, const std::string& script);

    About about_;
    bool quick_ = false, host_ = false, missed_ = false;
    std::filesystem::path out_ = "experiments/results", programs_;
    std::string command_;
    std::vector<std::vector<std::string>> rows_;
    nlohmann::ordered_json pictures_ = nlohmann::ordered_json::array(), checks_ = nlohmann::ordered_json::array();
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// The case study's link, one Write, chunks of one packet of 4 KiB so that chunk loss is packet loss.
app::SimulationConfig write_config(std::uint64_t size, double loss, std::string_view scheme);
/// Ends the program when it cannot be simulated.
app::SimulationReport simulate(const Figure& figure, const app::SimulationConfig& config);

std::string number(double value);  ///< up to six digits
std::string joined_losses(const std::vector<double>& losses);
unsigned cores();

}  // namespace farhaul::experiments
