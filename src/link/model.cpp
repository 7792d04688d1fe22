#include "link/model.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "link/options.hpp"

namespace farhaul::link {
namespace {

Status check_probability(double p, const char* name) {
    if (p >= 0 && p <= 1) return {};
    return fail(ErrorCode::kInvalidArgument, "{} is {}: a probability lies between 0 and 1", name, p);
}

Status check_duration(Duration d, const char* name) {
    if (d >= Duration() && d <= Duration::from_seconds(1e8)) return {};
    return fail(ErrorCode::kInvalidArgument, "{} is {}: it must be between 0 and 1e8 s", name, format_duration(d));
}

Status check_loss(const Loss& loss) {
    if (auto ok = check_probability(loss.probability, "the loss"); !ok) return ok;
    const double burst = loss.mean_burst_packets;
    if (!(burst >= 0 && burst <= 1e12))
        return fail(ErrorCode::kInvalidArgument, "the mean burst is {}: it must be between 1 and 1e12 packets", burst);
    if (burst > 1 && loss.probability < 1 && loss.probability * (burst + 1) > burst * (1 + 1e-12))
        return fail(ErrorCode::kInvalidArgument,
                    "bursts of {} packets with a packet between them lose at most {:.4g}, not {}: take a mean burst of "
                    "at least {:.4g}, or 1 "
                    "for independent losses",
                    burst, burst / (burst + 1), loss.probability, loss.probability / (1 - loss.probability));
    return {};
}

Status check_config(const LinkConfig& c) {
    if (auto ok = check_loss(c.loss); !ok) return ok;
    if (auto ok = check_probability(c.reorder_probability, "the share of reordered packets"); !ok) return ok;
    if (auto ok = check_probability(c.duplicate_probability, "the share of duplicated packets"); !ok) return ok;
    if (auto ok = check_probability(c.corrupt_probability, "the share of corrupted packets"); !ok) return ok;
    if (auto ok = check_duration(c.delay, "the delay"); !ok) return ok;
    if (auto ok = check_duration(c.jitter, "the jitter"); !ok) return ok;
    if (auto ok = check_duration(c.reorder_delay, "the reordering delay"); !ok) return ok;
    if (c.reorder_probability > 0 && c.reorder_delay == Duration())
        return fail(ErrorCode::kInvalidArgument,
                    "packets are to be reordered by a delay of 0: give the longest delay, as in 0.01:5ms");
    return {};
}

// Geometric with support 0, 1, 2...; `scale` is 1 / log(1 - p), 0 for p = 1.
std::uint64_t geometric(Random& random, double scale) {
    const double value = std::floor(std::log1p(-random.uniform()) * scale);
    return value < 4.6e18 ? static_cast<std::uint64_t>(value) : 1ull << 62;
}

double geometric_scale(double p) { return p >= 1 ? 0 : 1 / std::log1p(-p); }

constexpr std::uint64_t kForever = 1ull << 62;

}  // namespace

Result<LinkModel> LinkModel::create(const LinkConfig& config, std::vector<LinkChange> schedule, std::uint64_t seed) {
    if (auto ok = check_config(config); !ok) return propagate(ok);
    // An insertion sort: equal times keep their order.
    for (auto it = schedule.begin(); it != schedule.end(); ++it)
        std::rotate(std::upper_bound(schedule.begin(), it, *it,
                                     [](const LinkChange& a, const LinkChange& b) { return a.at < b.at; }),
                    it, it + 1);
    double burst = config.loss.mean_burst_packets;
    for (auto& change : schedule) {
        if (auto ok = check_duration(change.at, "the time of a change"); !ok) return propagate(ok);
        if (change.delay)
            if (auto ok = check_duration(*change.delay, "the delay"); !ok) return propagate(ok);
        if (change.loss) {
            if (change.loss->mean_burst_packets == 0) change.loss->mean_burst_packets = burst;
            burst = change.loss->mean_burst_packets;
            if (auto ok = check_loss(*change.loss); !ok) return propagate(ok);
        }
    }
    return LinkModel(config, std::move(schedule), seed);
}

LinkModel::LinkModel(const LinkConfig& config, std::vector<LinkChange> schedule, std::uint64_t seed)
    : config_(config),
      schedule_(std::move(schedule)),
      line_(config.rate),
      // Seeds that differ by a constant give independent streams: Random spreads them through splitmix64.
      loss_random_(seed),
      jitter_random_(seed ^ 0x6a09e667f3bcc908ull),
      reorder_random_(seed ^ 0xbb67ae8584caa73bull),
      duplicate_random_(seed ^ 0x3c6ef372fe94f82bull),
      corrupt_random_(seed ^ 0xa54ff53a5f1d36f1ull),
      queue_bits_e9_(static_cast<Uint128>(config.queue_bytes) * 8'000'000'000ull),
      has_extras_(config.jitter > Duration() || config.reorder_probability > 0 || config.duplicate_probability > 0 ||
                  config.corrupt_probability > 0) {
    start_loss(config.loss);
    if (!schedule_.empty()) next_change_at_ = TimePoint() + schedule_.front().at;
}

// Sets up the loss process in its stationary state, as if it had run for ever.
void LinkModel::start_loss(const Loss& loss) {
    config_.loss = loss;
    bursty_ = loss.mean_burst_packets > 1;
    burst_left_ = 0;
    const double p = loss.probability;
    if (p <= 0 || p >= 1) {
        packets_until_loss_ = p <= 0 ? kForever : 0;
        burst_left_ = kForever;
        good_scale_ = bad_scale_ = 0;
        return;
    }
    if (!bursty_) {
        good_scale_ = geometric_scale(p);
        packets_until_loss_ = geometric(loss_random_, good_scale_);
        burst_left_ = 1;
        return;
    }
    const double burst = loss.mean_burst_packets;
    good_scale_ =
        geometric_scale(std::min(1.0, p / (burst * (1 - p))));  // the mean good state is burst * (1 - p) / p packets
    bad_scale_ = geometric_scale(1 / burst);
    const bool starts_bad = loss_random_.uniform() < p;
    packets_until_loss_ = starts_bad ? 0 : 1 + geometric(loss_random_, good_scale_);
    burst_left_ = 1 + geometric(loss_random_, bad_scale_);
}

// Called for a packet that is lost: decides what comes after it.
bool LinkModel::lose_and_draw() {
    if (--burst_left_ != 0) return true;
    if (!bursty_) {
        packets_until_loss_ = geometric(loss_random_, good_scale_);
        burst_left_ = 1;
    } else {
        packets_until_loss_ = 1 + geometric(loss_random_, good_scale_);
        burst_left_ = 1 + geometric(loss_random_, bad_scale_);
    }
    return true;
}

void LinkModel::apply_extras(Fate& fate) {
    if (config_.jitter > Duration())
        fate.arrives = fate.arrives + Duration::from_nanoseconds(static_cast<std::int64_t>(jitter_random_.below(
                                          static_cast<std::uint64_t>(config_.jitter.nanoseconds()) + 1)));
    if (config_.reorder_probability > 0 && reorder_random_.chance(config_.reorder_probability)) {
        if (fate.arrives < last_in_order_arrival_) fate.arrives = last_in_order_arrival_;
        fate.arrives = fate.arrives + Duration::from_nanoseconds(
                                          1 + static_cast<std::int64_t>(reorder_random_.below(
                                                  static_cast<std::uint64_t>(config_.reorder_delay.nanoseconds()))));
        fate.in_order = false;
        ++counters_.reordered;
    }
    if (config_.duplicate_probability > 0 && duplicate_random_.chance(config_.duplicate_probability)) {
        fate.duplicated = true;
        ++counters_.duplicated;
    }
    if (config_.corrupt_probability > 0 && corrupt_random_.chance(config_.corrupt_probability)) {
        fate.corrupted = true;
        ++counters_.corrupted;
    }
}

bool LinkModel::queue_has_room_after_rate_change(TimePoint now, std::uint64_t bytes) const {
    const TimePoint idle = line_.idle_at();
    const double carried =
        static_cast<double>((std::min(idle, carried_until_) - now).nanoseconds()) * carried_bytes_per_ns_;
    const double fresh = idle > carried_until_ ? static_cast<double>((idle - carried_until_).nanoseconds()) *
                                                     static_cast<double>(config_.rate.bits_per_second()) / 8e9
                                               : 0;
    return carried + fresh + static_cast<double>(bytes + config_.overhead_bytes) <=
           static_cast<double>(config_.queue_bytes);
}

void LinkModel::apply_schedule(TimePoint now) {
    while (next_change_ < schedule_.size() && TimePoint() + schedule_[next_change_].at <= now) {
        const LinkChange& change = schedule_[next_change_++];
        const TimePoint at = TimePoint() + change.at;
        if (change.loss) start_loss(*change.loss);
        if (change.delay) config_.delay = *change.delay;
        if (change.up) up_ = *change.up;
        if (change.rate) {
            if (line_.idle_at() > at) {
                // What is queued keeps its times; remember how many bytes it is per nanosecond, on average over what is
                // left of it.
                const double rate = static_cast<double>(config_.rate.bits_per_second()) / 8e9;
                const auto left = static_cast<double>((line_.idle_at() - at).nanoseconds());
                const double carried =
                    carried_until_ > at
                        ? static_cast<double>((std::min(carried_until_, line_.idle_at()) - at).nanoseconds())
                        : 0;
                carried_bytes_per_ns_ = (carried * carried_bytes_per_ns_ + (left - carried) * rate) / left;
                carried_until_ = line_.idle_at();
            }
            config_.rate = *change.rate;
            line_.set_rate(*change.rate);
        }
    }
    next_change_at_ = next_change_ < schedule_.size() ? TimePoint() + schedule_[next_change_].at : TimePoint::never();
}

Result<std::vector<LinkChange>> parse_schedule(std::string_view text) {
    std::vector<LinkChange> changes;
    const auto trim = [](std::string_view s) {
        while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
        while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
        return s;
    };
    if (trim(text).empty()) return changes;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t comma = std::min(text.find(',', begin), text.size());
        const std::string_view item = trim(text.substr(begin, comma - begin));
        begin = comma + 1;
        const std::size_t at = item.find('@');
        if (at == std::string_view::npos)
            return fail(ErrorCode::kInvalidArgument,
                        "'{}' in the schedule is not WHAT@TIME: write it like loss=1e-2@3s or down@7s", item);
        const std::string_view what = trim(item.substr(0, at));
        LinkChange change;
        auto time = parse_duration(trim(item.substr(at + 1)));
        if (!time) return fail(ErrorCode::kInvalidArgument, "'{}' in the schedule: {}", item, time.error().message);
        change.at = *time;
        const std::size_t equals = what.find('=');
        const std::string_view name = trim(what.substr(0, equals));
        const bool has_value = equals != std::string_view::npos;
        std::string_view value = has_value ? trim(what.substr(equals + 1)) : std::string_view();
        std::optional<Error> error;
        if ((name == "down" || name == "up") && !has_value) {
            change.up = name == "up";
        } else if (name == "loss" && has_value) {
            Loss loss{.probability = 0, .mean_burst_packets = 0};
            if (const std::size_t slash = value.find('/'); slash != std::string_view::npos) {
                if (auto burst = parse_burst(trim(value.substr(slash + 1))))
                    loss.mean_burst_packets = *burst;
                else
                    error = burst.error();
                value = trim(value.substr(0, slash));
            }
            if (auto p = parse_probability(value))
                loss.probability = *p;
            else
                error = p.error();
            change.loss = loss;
        } else if (name == "rate" && has_value) {
            if (auto rate = parse_rate(value))
                change.rate = *rate;
            else
                error = rate.error();
        } else if (name == "delay" && has_value) {
            if (auto delay = parse_duration(value))
                change.delay = *delay;
            else
                error = delay.error();
        } else {
            return fail(ErrorCode::kInvalidArgument,
                        "'{}' in the schedule is unknown: known are loss=P, loss=P/BURST, rate=R, delay=D, down, up",
                        what);
        }
        if (error) return fail(ErrorCode::kInvalidArgument, "'{}' in the schedule: {}", item, error->message);
        changes.push_back(change);
    }
    return changes;
}

}  // namespace farhaul::link
