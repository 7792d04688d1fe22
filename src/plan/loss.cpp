#include "plan/loss.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/log_gamma.hpp"

namespace farhaul::plan {

namespace {

/// P(X > m) for X ~ Binomial(n, p).
double binomial_tail(unsigned n, unsigned m, double p) {
    if (m >= n || p <= 0) return 0;
    if (p >= 1) return 1;
    const double first = m + 1;
    const double log_term = log_gamma(n + 1.0) - log_gamma(first + 1) - log_gamma(n - first + 1) + first * std::log(p) +
                            (n - first) * std::log1p(-p);
    // Relative to the first term; summed from there the terms may grow before they shrink.
    double term = 1, sum = 1;
    const double odds = p / (1 - p);
    for (unsigned i = m + 1; i < n; ++i) {
        term *= (n - i) / (i + 1.0) * odds;
        sum += term;
        if (term < sum * 1e-17 && i > n * p) break;
    }
    return std::min(std::exp(log_term + std::log(sum)), 1.0);
}

}  // namespace

double chunk_loss(const PacketLoss& loss, std::uint64_t packets) {
    const double p = loss.probability;
    if (p <= 0 || packets == 0) return 0;
    if (p >= 1) return 1;
    if (loss.mean_burst_packets <= 1) return -std::expm1(static_cast<double>(packets) * std::log1p(-p));
    // The first packet passes, and no burst begins between any two.
    const double enter = std::min(p / (1 - p) / loss.mean_burst_packets, 1.0);
    return -std::expm1(std::log1p(-p) + static_cast<double>(packets - 1) * std::log1p(-enter));
}

double mds_failure(unsigned k, unsigned m, double p) { return binomial_tail(k + m, m, p); }

double xor_failure(unsigned k, unsigned m, double p) {
    if (k == 0 || m == 0 || p <= 0) return 0;
    if (p >= 1) return 1;
    const unsigned larger = k % m;  // groups with one chunk more
    const double of_larger = binomial_tail(k / m + 2, 1, p);
    const double of_others = binomial_tail(k / m + 1, 1, p);
    return -std::expm1(larger * std::log1p(-of_larger) + (m - larger) * std::log1p(-of_others));
}

double any_failure(double block_failure, double blocks) {
    return block_failure >= 1 ? 1 : -std::expm1(blocks * std::log1p(-block_failure));
}

std::uint64_t losses_exceeded_with(const PacketLoss& loss, double packets, double tail) {
    const double p = loss.probability;
    if (p <= 0 || packets <= 0) return 0;
    const auto all = static_cast<std::uint64_t>(std::ceil(packets));
    if (p >= 1) return all;
    const double burst = std::max(loss.mean_burst_packets, 1.0);
    const double bursts = p * packets / burst;
    const double more = 1 - 1 / burst;  // probability that a burst goes on
    // Many bursts: their sum is normal, with a first-order correction for its skewness. Few: the exact recursion
    // (Polya-Aeppli).
    if (bursts > 500) {
        // Of the sum of `bursts` Poisson-many geometric lengths: variance is bursts * E[length^2], third moment bursts
        // * E[length^3].
        const double variance = bursts * burst * burst * (1 + more);
        const double third = bursts * burst * burst * burst * (1 + 4 * more + more * more);
        double low = 0, high = 40;  // the normal quantile, by bisection of its tail
        for (int i = 0; i < 60; ++i) {
            const double middle = (low + high) / 2;
            (std::erfc(middle / std::sqrt(2.0)) / 2 > tail ? low : high) = middle;
        }
        const double skewness = third / std::pow(variance, 1.5);
        const double count = bursts * burst + std::sqrt(variance) * (high + skewness * (high * high - 1) / 6);
        return std::min(all, static_cast<std::uint64_t>(std::ceil(count)));
    }
    // P(n) = [(2 r (n-1) + l (1-r)) P(n-1) - r^2 (n-2) P(n-2)] / n, with r = `more`, l = `bursts`.
    double before = 0, current = std::exp(-bursts);
    double rest = -std::expm1(-bursts);  // P(losses > n)
    std::uint64_t n = 0;
    while (rest > tail && n < all) {
        ++n;
        const double count = static_cast<double>(n);
        const double next =
            ((2 * more * (count - 1) + bursts * (1 - more)) * current - more * more * (count - 2) * before) / count;
        before = current;
        current = std::max(next, 0.0);
        rest -= current;
        // What is left beyond the accuracy of the subtraction falls off at least as fast as the last ratio of terms.
        if (current < 1e-15 && count > bursts * burst) break;
    }
    return n;
}

std::optional<unsigned> parity_needed(unsigned k, const PacketLoss& loss, double tail, unsigned most) {
    for (unsigned m = 0; m <= most; ++m) {
        const bool enough = loss.mean_burst_packets <= 1 ? mds_failure(k, m, loss.probability) <= tail
                                                         : losses_exceeded_with(loss, k + m, tail) <= m;
        if (enough) return m;
    }
    return std::nullopt;
}

}  // namespace farhaul::plan
