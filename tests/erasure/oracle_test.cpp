// Block failure rates of the codes, by drawing losses, against reference values.
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "blocks.hpp"

namespace farhaul::erasure {
namespace {

struct Row {
    unsigned k, m;
    double p, mds_failure, xor_success;  ///< xor_success < 0: none given
};

std::vector<Row> read_rows() {
    std::ifstream file(std::string(FARHAUL_TEST_DATA) + "/erasure.csv");
    std::vector<Row> rows;
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
        std::istringstream fields(line);
        std::string f[7];
        for (auto& field : f) std::getline(fields, field, ',');
        rows.push_back({static_cast<unsigned>(std::stoul(f[0])), static_cast<unsigned>(std::stoul(f[1])),
                        std::stod(f[2]), std::stod(f[4]), f[5].empty() ? -1 : std::stod(f[5])});
    }
    return rows;
}

/// Share of `blocks` that cannot be recovered when each chunk is lost with probability p.
double failure_rate(const Code& code, double p, unsigned blocks, Random& random) {
    const std::uint64_t chunks = code.k() + code.m();
    unsigned failed = 0;
    std::uint64_t next = random.geometric(p);  // the next chunk that is lost
    for (std::uint64_t block = 0; block < blocks; ++block) {
        const std::uint64_t begin = block * chunks;
        if (next >= begin + chunks) continue;
        Pattern present = Pattern::first(static_cast<unsigned>(chunks));
        for (; next < begin + chunks; next += 1 + random.geometric(p))
            present.clear(static_cast<unsigned>(next - begin));
        failed += !code.recoverable(present);
    }
    return static_cast<double>(failed) / blocks;
}

TEST(Oracle, BlocksFailAsOftenAsTheyShould) {
    const std::vector<Row> rows = read_rows();
    ASSERT_EQ(rows.size(), 35u);
    Random random(20240101);
    constexpr unsigned kBlocks = 200'000;
    unsigned compared = 0;
    const auto compare = [&](Kind kind, const Row& row, double expected) {
        if (expected * kBlocks < 5) return;  // too rare to be drawn
        const double rate = failure_rate(make_code(kind, row.k, row.m), row.p, kBlocks, random);
        const double sigma = std::sqrt(expected * (1 - expected) / kBlocks);
        EXPECT_NEAR(rate, expected, 5 * sigma)
            << row.k << "," << row.m << " p " << row.p << (kind == Kind::kXor ? " xor" : "");
        ++compared;
    };
    for (const Row& row : rows) {
        compare(Kind::kReedSolomon, row, row.mds_failure);
        if (row.xor_success >= 0) compare(Kind::kXor, row, 1 - row.xor_success);
    }
    EXPECT_EQ(compared, 25u);
}

}  // namespace
}  // namespace farhaul::erasure
