#include "plan/completion.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/log_gamma.hpp"
#include "plan/loss.hpp"

namespace farhaul::plan {

namespace {

/// log(1 - p^(n+1)) - log(1 - p^n): what one more try adds to a chunk's logarithm of having arrived; for n = 0 the
/// first try's.
double gain(double p, unsigned n) {
    return std::log1p(-std::pow(p, n + 1.0)) - (n == 0 ? 0 : std::log1p(-std::pow(p, static_cast<double>(n))));
}

/// Sum over j < count of 1 - exp(start + j * slope); never rising above exp(0).
double sum_of_rest(double start, double slope, double count) {
    if (slope == 0) return count * -std::expm1(start);
    if (count <= 64) {
        double sum = 0;
        for (double j = 0; j < count; ++j) sum -= std::expm1(start + j * slope);
        return sum;
    }
    return count - std::exp(start + count * slope) * -std::expm1(-count * slope) / std::expm1(slope);
}

}  // namespace

unsigned SelectiveRepeatModel::rounds() const {
    if (chunk_loss <= 0) return 0;
    const double n = (std::log(1e-18) - std::log(chunks)) / std::log(chunk_loss);
    return static_cast<unsigned>(std::clamp(std::ceil(n), 1.0, 20'000.0));
}

double SelectiveRepeatModel::log_cdf(double t) const {
    const double u = (t - rtt) / injection;
    if (u < chunks - 1e-6) return -std::numeric_limits<double>::infinity();
    if (chunk_loss <= 0) return 0;
    double sum = chunks * gain(chunk_loss, 0);
    const unsigned last = rounds();
    for (unsigned n = 1; n <= last; ++n) {
        const double tries = std::floor(u - n * step() + 1e-6);
        if (tries <= 0) break;
        sum += std::min(tries, chunks) * gain(chunk_loss, n);
    }
    return std::min(sum, 0.0);
}

// In units of `injection`, with o = step(): chunk i gets its n-th retransmission at i + n*o, so that log F(u) is the
// sum over n of clamp(floor(u - n*o), 0, M) * gain(n). Between two of the points n*o and n*o + M the same n count up;
// each does so once per unit, at its own phase. So within such a stretch every unit looks like the one before but for a
// constant factor in F.
double SelectiveRepeatModel::mean() const {
    const double first = chunks;
    if (chunk_loss <= 0) return first * injection + rtt;
    const unsigned last = rounds();
    const double o = step();
    std::vector<double> gains(last + 1), cuts{first};
    for (unsigned n = 0; n <= last; ++n) {
        gains[n] = gain(chunk_loss, n);
        if (n > 0 && n * o > first) cuts.push_back(n * o);
        if (n > 0) cuts.push_back(n * o + chunks);
    }
    std::ranges::sort(cuts);

    double integral = 0;  // of 1 - F beyond `first`
    unsigned oldest = 1;  // the first n that is not complete
    std::vector<double> phases;
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
        const double a = cuts[c], b = cuts[c + 1];
        if (b - a < 1e-9) continue;
        const double middle = (a + b) / 2;
        while (oldest <= last && oldest * o + chunks < middle) ++oldest;
        double done = 0, slope = 0;
        for (unsigned n = 0; n < oldest; ++n) done += chunks * gains[n];
        phases.assign({0.0, 1.0});
        unsigned end = oldest;
        for (; end <= last && end * o < middle; ++end) {
            slope += gains[end];
            const double phase = end * o - a - std::floor(end * o - a);
            phases.push_back(phase);
        }
        std::ranges::sort(phases);
        const double units = std::floor(b - a + 1e-9);
        const double rest = b - a - units;
        for (std::size_t s = 0; s + 1 < phases.size(); ++s) {
            const double from = phases[s], to = phases[s + 1];
            if (to - from < 1e-12) continue;
            double start = done;
            for (unsigned n = oldest; n < end; ++n) start += std::floor(a + (from + to) / 2 - n * o) * gains[n];
            if (units > 0) integral += (to - from) * sum_of_rest(start, slope, units);
            if (rest > from) integral -= (std::min(to, rest) - from) * std::expm1(start + units * slope);
        }
    }
    return (first + integral) * injection + rtt;
}

double SelectiveRepeatModel::quantile(double q) const {
    double low = chunks * injection + rtt;  // P(T < low) = 0
    if (log_cdf(low) >= std::log(q)) return low;
    double high = low + (rounds() * step() + 1) * injection;
    while (high - low > injection * 1e-3) {
        const double middle = (low + high) / 2;
        (log_cdf(middle) >= std::log(q) ? high : low) = middle;
    }
    return high;
}

SelectiveRepeatModel ErasureModel::repeat_of(double failed_blocks) const {
    SelectiveRepeatModel part = repeat;
    part.chunks = std::max(std::min(failed_blocks * k, repeat.chunks), 1.0);
    return part;
}

double ErasureModel::published_mean() const {
    const double p = any_failure(block_failure, blocks);
    if (p <= 0) return base();
    const SelectiveRepeatModel part = repeat_of(blocks * block_failure / p);
    return base() + p * (repeat.rtt + fallback + part.mean() - part.rtt);
}

std::vector<ErasureModel::Outcome> ErasureModel::failures() const {
    std::vector<Outcome> outcomes;
    const double q = block_failure;
    if (q <= 0) return outcomes;
    if (q >= 1) return {{1.0, repeat_of(blocks)}};
    const double expected = blocks * q;
    const double spread = 10 * std::sqrt(expected * (1 - q)) + 10;
    const double from = std::max(1.0, std::floor(expected - spread));
    const double to = std::min(blocks, std::ceil(expected + spread));
    const double width = std::max(1.0, std::ceil((to - from + 1) / 100));
    double total = 0;
    for (double f = from; f <= to; f += width) {
        double mass = 0, weighted = 0;
        for (double g = f; g < f + width && g <= to; ++g) {
            const double p = std::exp(log_gamma(blocks + 1) - log_gamma(g + 1) - log_gamma(blocks - g + 1) +
                                      g * std::log(q) + (blocks - g) * std::log1p(-q));
            mass += p;
            weighted += p * g;
        }
        if (mass > 0) outcomes.push_back({mass, repeat_of(weighted / mass)});
        total += mass;
    }
    // The sum is known exactly; what log-gamma lost is put back.
    for (auto& outcome : outcomes) outcome.probability *= any_failure(q, blocks) / total;
    return outcomes;
}

double ErasureModel::mean() const {
    double sum = base();
    for (const auto& [probability, part] : failures()) sum += probability * (fallback + part.mean());
    return sum;
}

double ErasureModel::quantile(double q) const {
    const auto outcomes = failures();
    const double failing = any_failure(block_failure, blocks);
    if (1 - failing >= q) return base();
    double low = base(), high = base();
    for (const auto& outcome : outcomes)
        high = std::max(high, base() + fallback + outcome.repeat.quantile(1 - (1 - q) * 1e-3));
    while (high - low > repeat.injection * 1e-3) {
        const double middle = (low + high) / 2;
        double below = 1 - failing;
        for (const auto& [probability, part] : outcomes)
            below += probability * std::exp(part.log_cdf(middle - base() - fallback));
        (below >= q ? high : low) = middle;
    }
    return high;
}

}  // namespace farhaul::plan
