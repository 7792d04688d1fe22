#include "app/transfer/progress.hpp"

#include <cmath>
#include <cstdio>

#include <sys/ioctl.h>
#include <unistd.h>

namespace farhaul::app::transfer {

void ProgressMeter::update(TimePoint now, std::uint64_t done) {
    samples_.push_back({now, done});
    while (samples_.size() > 2 && now - samples_[1].at >= Duration::from_milliseconds(3000)) samples_.pop_front();
}

double ProgressMeter::rate() const {
    if (samples_.size() < 2) return 0;
    const Duration span = samples_.back().at - samples_.front().at;
    if (span <= Duration{}) return 0;
    return static_cast<double>(samples_.back().done - samples_.front().done) * 8 / span.seconds();
}

std::string format_clock(double seconds) {
    if (!(seconds >= 0) || seconds > 359'999) return "-:--";
    const auto s = static_cast<std::uint64_t>(std::ceil(seconds));
    if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
    return fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string ProgressMeter::line(const std::string& label, std::uint64_t total, std::size_t columns) const {
    const std::uint64_t done = samples_.empty() ? 0 : samples_.back().done;
    std::string numbers;
    if (total > 0) {
        const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
        numbers = fmt::format("{:3.0f}%  {} / {}", std::floor(share * 100), format_size(done), format_size(total));
    } else {
        numbers = format_size(done);
    }
    numbers += "  " + format_rate(rate());
    if (total > done && rate() > 0) numbers += "  ETA " + format_clock(static_cast<double>(total - done) * 8 / rate());
    std::string text = label;
    const std::size_t room = columns > numbers.size() + 2 ? columns - numbers.size() - 2 : 0;
    if (text.size() > room) text.resize(room);
    text += (text.empty() ? "" : "  ") + numbers;
    if (text.size() > columns) text.resize(columns);
    return text;
}

ProgressLine::ProgressLine(bool wanted) : active_(wanted && ::isatty(STDERR_FILENO) == 1) {}

void ProgressLine::draw(TimePoint now, const std::string& label, std::uint64_t done, std::uint64_t total) {
    meter_.update(now, done);
    if (!active_) return;
    winsize size{};
    const std::size_t columns =
        ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col - 1u : 79u;
    // Return, text, erase to the end of the line.
    fmt::print(stderr, "\r{}\x1b[K", meter_.line(label, total, columns));
    std::fflush(stderr);
    shown_ = true;
}

void ProgressLine::clear() {
    if (!shown_) return;
    fmt::print(stderr, "\r\x1b[K");
    std::fflush(stderr);
    shown_ = false;
}

}  // namespace farhaul::app::transfer
