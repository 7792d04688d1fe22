#include "app/nearest.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace farhaul::app {

namespace {

/// Optimal string alignment distance: three rows of the usual table.
std::size_t edits(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before_last(b.size() + 1);
    std::vector<std::size_t> last(b.size() + 1);
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before_last[j - 2] + 1);
        }
        std::swap(before_last, last);
        std::swap(last, row);
    }
    return last[b.size()];
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> known) {
    std::string best;
    std::size_t fewest = word.size() / 3 + 1;
    for (const std::string& candidate : known) {
        // A beginning of the word counts as one edit: "--sch" stands for "--scheme".
        const bool beginning = word.size() >= 3 && candidate.starts_with(word);
        const std::size_t distance = beginning ? 1 : edits(word, candidate);
        if (distance < fewest) fewest = distance, best = candidate;
    }
    return best;
}

}  // namespace farhaul::app
