#include "erasure/code.hpp"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>
#include <isa-l/erasure_code.h>

#include "blocks.hpp"
#include "emulated_engine.hpp"
#include "erasure/accumulator.hpp"
#include "erasure/decoder.hpp"

namespace farhaul::erasure {
namespace {

/// Loses the chunks that are not in `present`, decodes, and checks what is claimed against what is in memory.
void lose_and_decode(const Code& code, Decoder& decoder, TestBlock& block, const Pattern& present) {
    const auto chunks = static_cast<unsigned>(block.data().size());
    for (unsigned j = 0; j < chunks; ++j) {
        if (!present.test(j)) block.wreck(j);
    }
    std::vector<std::byte*> parity = block.parity();
    for (unsigned i = 0; i < parity.size(); ++i) {
        if (!present.test(code.k() + i)) parity[i] = nullptr;  // must not be touched
    }
    Block view = block.view();
    view.parity = parity;
    const Pattern repairable = code.repairable(present, chunks);
    const auto rebuilt = decoder.decode(view, present);
    ASSERT_TRUE(rebuilt) << rebuilt.error().message;
    ASSERT_EQ(*rebuilt, repairable.count());
    for (unsigned j = 0; j < chunks; ++j)
        ASSERT_EQ(block.intact(j), present.test(j) || repairable.test(j)) << "chunk " << j;
    block.restore();
}

TEST(Code, RefusesWhatIsNoCode) {
    for (const Kind kind : {Kind::kXor, Kind::kReedSolomon}) {
        EXPECT_FALSE(Code::create({kind, 0, 1}));
        EXPECT_FALSE(Code::create({kind, 1, 0}));
        EXPECT_TRUE(Code::create({kind, 1, 1}));
        EXPECT_TRUE(Code::create({kind, 254, 1}));
        for (const unsigned k : {200u, 222u}) {
            EXPECT_TRUE(Code::create({kind, k, 254 - k}));
            EXPECT_TRUE(Code::create({kind, k, 255 - k}));
            EXPECT_FALSE(Code::create({kind, k, 256 - k}));
            EXPECT_FALSE(Code::create({kind, k, 257 - k}));
        }
        EXPECT_FALSE(Code::create({kind, 0xffffffffu, 2}));
        EXPECT_FALSE(Code::create({kind, 2, 0xffffffffu}));
    }
    const auto refused = Code::create({Kind::kReedSolomon, 248, 8});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("248 + 8"), std::string::npos) << refused.error().message;
    EXPECT_TRUE(Code::create({Kind::kReedSolomon, 2, 6}));
    EXPECT_FALSE(Code::create({Kind::kXor, 2, 6}));
}

TEST(Code, MatrixIsTheCauchyMatrixOfIsal) {
    for (const auto& [k, m] : {std::pair{4u, 2u}, {32u, 8u}, {223u, 32u}, {2u, 253u}}) {
        std::vector<std::uint8_t> expected(k * (k + m));
        gf_gen_cauchy1_matrix(expected.data(), static_cast<int>(k + m), static_cast<int>(k));
        const Code code = make_code(Kind::kReedSolomon, k, m);
        for (unsigned i = 0; i < m; ++i)
            EXPECT_TRUE(std::ranges::equal(code.row(i), std::span(expected).subspan((k + i) * k, k)));
    }
}

TEST(Code, EncodesBitForBitAsIsal) {
    for (const Engine* engine : all_engines()) {
        for (const auto& [k, m] : {std::pair{32u, 8u}, {223u, 32u}, {5u, 3u}}) {
            const Code code = make_code(Kind::kReedSolomon, k, m, *engine);
            TestBlock block(k, m, 4097, 4097, k);
            std::vector<std::uint8_t> matrix(k * (k + m)), tables(32 * k * m);
            gf_gen_cauchy1_matrix(matrix.data(), static_cast<int>(k + m), static_cast<int>(k));
            ec_init_tables(static_cast<int>(k), static_cast<int>(m), matrix.data() + k * k, tables.data());
            std::vector<std::vector<unsigned char>> parity(m, std::vector<unsigned char>(4097));
            std::vector<unsigned char*> in, out;
            for (std::byte* p : block.data()) in.push_back(reinterpret_cast<unsigned char*>(p));
            for (auto& p : parity) out.push_back(p.data());
            ec_encode_data(4097, static_cast<int>(k), static_cast<int>(m), tables.data(), in.data(), out.data());
            ASSERT_TRUE(code.encode(block.view()));
            for (unsigned i = 0; i < m; ++i)
                EXPECT_EQ(std::memcmp(block.parity()[i], out[i], 4097), 0) << engine->name << " row " << i;
        }
    }
}

TEST(Code, FirstRowsOfALongerCodeAreTheShorterCode) {
    const Code wide = make_code(Kind::kReedSolomon, 20, 12);
    const Code narrow = make_code(Kind::kReedSolomon, 20, 3);
    for (unsigned i = 0; i < 3; ++i) EXPECT_TRUE(std::ranges::equal(wide.row(i), narrow.row(i)));
}

struct Shape {
    Kind kind;
    unsigned k, m;
};

class EveryPattern : public testing::TestWithParam<Shape> {};

TEST_P(EveryPattern, IsRepairedExactlyWhenItCanBe) {
    const auto [kind, k, m] = GetParam();
    const Code code = make_code(kind, k, m);
    for (const unsigned chunks : {k, k - 1}) {  // a full block, and a short one with an odd tail
        if (chunks == 0) continue;
        Decoder decoder(code, 4);
        TestBlock block(chunks, m, 67, chunks == k ? 67 : 13, 1 + chunks);
        ASSERT_TRUE(code.encode(block.view()));
        for (unsigned bits = 0; bits < 1u << (k + m); ++bits) {
            Pattern present;
            unsigned lost = 0, parity = 0;
            for (unsigned i = 0; i < k + m; ++i) {
                if (bits >> i & 1)
                    present.set(i), parity += i >= k;
                else
                    lost += i < chunks;
            }
            bool expected = lost <= parity;
            if (kind == Kind::kXor) {
                expected = true;
                for (unsigned group = 0; group < m; ++group) {
                    unsigned lost_here = 0;
                    for (unsigned j = group; j < chunks; j += m) lost_here += !present.test(j);
                    expected = expected && (lost_here == 0 || (lost_here == 1 && present.test(k + group)));
                }
            }
            ASSERT_EQ(code.recoverable(present, chunks), expected) << "pattern " << bits;
            ASSERT_NO_FATAL_FAILURE(lose_and_decode(code, decoder, block, present)) << "pattern " << bits;
        }
        EXPECT_TRUE(block.guards_hold());
    }
}

INSTANTIATE_TEST_SUITE_P(SmallCodes, EveryPattern,
                         testing::Values(Shape{Kind::kReedSolomon, 4, 2}, Shape{Kind::kReedSolomon, 8, 4},
                                         Shape{Kind::kReedSolomon, 1, 1}, Shape{Kind::kReedSolomon, 5, 1},
                                         Shape{Kind::kReedSolomon, 1, 4}, Shape{Kind::kReedSolomon, 3, 5},
                                         Shape{Kind::kXor, 4, 2}, Shape{Kind::kXor, 8, 4}, Shape{Kind::kXor, 7, 3},
                                         Shape{Kind::kXor, 5, 1}, Shape{Kind::kXor, 4, 4}, Shape{Kind::kXor, 1, 1}),
                         [](const auto& shape) {
                             return std::string(shape.param.kind == Kind::kXor ? "Xor" : "Ec") +
                                    std::to_string(shape.param.k) + "_" + std::to_string(shape.param.m);
                         });

class RandomPatterns : public testing::TestWithParam<Shape> {};

TEST_P(RandomPatterns, OfEveryNumberOfLosses) {
    const auto [kind, k, m] = GetParam();
    for (const Engine* engine : engines()) {
        const Code code = make_code(kind, k, m, *engine);
        Decoder decoder(code);
        Random random(k * 1000 + m);
        TestBlock block(k, m, 131, 77, k, 9);
        ASSERT_TRUE(code.encode(block.view()));
        for (unsigned losses = 0; losses <= std::min(m + 1, k + m); ++losses) {
            for (unsigned repeat = 0; repeat < 5; ++repeat) {
                Pattern present = Pattern::first(k + m);
                while (present.count() > k + m - losses) present.clear(static_cast<unsigned>(random.below(k + m)));
                if (kind == Kind::kReedSolomon && losses <= m) {
                    ASSERT_TRUE(code.recoverable(present));
                }
                ASSERT_NO_FATAL_FAILURE(lose_and_decode(code, decoder, block, present))
                    << engine->name << " losses " << losses;
            }
        }
        // The most that can be lost of the data: everything that parity can stand for.
        Pattern worst = Pattern::first(k + m);
        for (unsigned j = 0; j < std::min(k, m); ++j) worst.clear(k - 1 - j);
        ASSERT_NO_FATAL_FAILURE(lose_and_decode(code, decoder, block, worst));
        EXPECT_TRUE(block.guards_hold());
    }
}

INSTANTIATE_TEST_SUITE_P(Codes, RandomPatterns,
                         testing::Values(Shape{Kind::kReedSolomon, 32, 8}, Shape{Kind::kReedSolomon, 223, 32},
                                         Shape{Kind::kReedSolomon, 222, 32}, Shape{Kind::kReedSolomon, 128, 127},
                                         Shape{Kind::kReedSolomon, 254, 1}, Shape{Kind::kReedSolomon, 2, 253},
                                         Shape{Kind::kXor, 32, 8}, Shape{Kind::kXor, 223, 32}),
                         [](const auto& shape) {
                             return std::string(shape.param.kind == Kind::kXor ? "Xor" : "Ec") +
                                    std::to_string(shape.param.k) + "_" + std::to_string(shape.param.m);
                         });

TEST(Code, OddSizesTailsAndShortBlocks) {
    std::vector<std::size_t> sizes;
    for (std::size_t size = 1; size <= 65; ++size) sizes.push_back(size);
    for (const std::size_t edge : {96u, 128u, 160u, 256u, 512u}) sizes.insert(sizes.end(), {edge - 1, edge, edge + 1});
    for (const Engine* engine : all_engines()) {
        for (const Shape& shape :
             {Shape{Kind::kReedSolomon, 6, 3}, Shape{Kind::kReedSolomon, 6, 1}, Shape{Kind::kXor, 6, 3}}) {
            const Code code = make_code(shape.kind, shape.k, shape.m, *engine);
            Decoder decoder(code);
            for (const std::size_t size : sizes) {
                for (const std::size_t last : {size, std::size_t{1}, (size + 1) / 2}) {
                    const unsigned chunks = 1 + static_cast<unsigned>((size + last) % shape.k);
                    TestBlock block(chunks, shape.m, size, last, size * 31 + last, size % 5);
                    // The same as a full block whose missing bytes are stored zeros.
                    TestBlock full(shape.k, shape.m, size, size, 1);
                    for (unsigned j = 0; j < shape.k; ++j) {
                        std::memset(full.data()[j], 0, size);
                        if (j < chunks) std::memcpy(full.data()[j], block.data()[j], block.size_of(j));
                    }
                    ASSERT_TRUE(code.encode(block.view()));
                    ASSERT_TRUE(code.encode(full.view()));
                    for (unsigned i = 0; i < shape.m; ++i)
                        ASSERT_EQ(block.parity_bytes(i), full.parity_bytes(i)) << size << " " << last;
                    for (unsigned lost = 0; lost < chunks; ++lost) {
                        Pattern present = Pattern::first(shape.k + shape.m);
                        present.clear(lost);
                        if (shape.kind == Kind::kReedSolomon && shape.m > 1)
                            present.clear((lost + 1) % chunks), present.clear(shape.k);
                        ASSERT_NO_FATAL_FAILURE(lose_and_decode(code, decoder, block, present))
                            << size << " " << last << " " << lost;
                    }
                    ASSERT_TRUE(block.guards_hold()) << size << " " << last;
                }
            }
        }
    }
}

TEST(Code, PartOfTheParity) {
    const Code code = make_code(Kind::kReedSolomon, 10, 6);
    TestBlock all(10, 6, 500, 499, 3);
    ASSERT_TRUE(code.encode(all.view()));
    TestBlock some(10, 6, 500, 499, 3);
    for (unsigned i = 0; i < 6; ++i) some.wreck_parity(i);
    std::vector<std::byte*> wanted{some.parity()[1], nullptr, some.parity()[3], some.parity()[4]};
    Block view = some.view();
    view.parity = wanted;
    ASSERT_TRUE(code.encode(view, 1));
    for (unsigned i : {1u, 3u, 4u}) EXPECT_EQ(some.parity_bytes(i), all.parity_bytes(i));
    for (unsigned i : {0u, 2u, 5u}) EXPECT_EQ(some.parity_bytes(i), std::vector<std::byte>(500, std::byte{0xee}));
}

TEST(Code, RefusesBlocksThatDoNotFit) {
    const Code code = make_code(Kind::kReedSolomon, 4, 2);
    TestBlock block(4, 2, 64, 64, 1);
    const auto refused = [&](auto change) {
        Block view = block.view();
        change(view);
        Decoder decoder(code);
        return !code.encode(view) && !decoder.decode(view, Pattern::first(6));
    };
    EXPECT_TRUE(refused([](Block& view) { view.data = {}; }));
    EXPECT_TRUE(refused([](Block& view) { view.chunk_bytes = 0; }));
    EXPECT_TRUE(refused([](Block& view) { view.last_bytes = 0; }));
    EXPECT_TRUE(refused([](Block& view) { view.last_bytes = 65; }));
    EXPECT_TRUE(refused([](Block& view) { view.chunk_bytes = kMostChunkBytes + 1; }));
    std::vector<std::byte*> five(5, block.data()[0]), three(3, block.parity()[0]), hole = block.data();
    EXPECT_TRUE(refused([&](Block& view) { view.data = five; }));
    EXPECT_TRUE(refused([&](Block& view) { view.parity = three; }));
    hole[2] = nullptr;
    EXPECT_TRUE(refused([&](Block& view) { view.data = hole; }));
    EXPECT_FALSE(code.encode(block.view(), 1));  // rows 1 and 2 of 2
    EXPECT_FALSE(code.encode(block.view(), 0xffffffffu));
}

TEST(Decoder, DoesNotTouchWhatIsNotWanted) {
    for (const Kind kind : {Kind::kReedSolomon, Kind::kXor}) {
        const Code code = make_code(kind, 6, 3);
        TestBlock block(6, 3, 100, 40, 5);
        ASSERT_TRUE(code.encode(block.view()));
        Decoder decoder(code);
        Pattern present = Pattern::first(9);
        for (unsigned lost : {1u, 3u, 5u}) present.clear(lost), block.wreck(lost);
        std::vector<std::byte*> data = block.data();
        data[3] = nullptr;
        Block view = block.view();
        view.data = data;
        EXPECT_EQ(decoder.decode(view, present).value(), 2u);
        for (unsigned j = 0; j < 6; ++j) EXPECT_EQ(block.intact(j), j != 3) << j;
        EXPECT_TRUE(block.guards_hold());
    }
}

TEST(Decoder, RemembersPatternsUpToItsBound) {
    const Code code = make_code(Kind::kReedSolomon, 8, 3);
    Decoder decoder(code, 2);
    TestBlock block(8, 3, 64, 64, 1);
    ASSERT_TRUE(code.encode(block.view()));
    const auto lose = [&](unsigned chunk) {
        Pattern present = Pattern::first(11);
        present.clear(chunk);
        lose_and_decode(code, decoder, block, present);
    };
    lose(0), lose(1), lose(0), lose(1);
    EXPECT_EQ(decoder.misses(), 2u);
    EXPECT_EQ(decoder.hits(), 2u);
    lose(2);  // pushes out 0, the longest unused
    lose(1);
    EXPECT_EQ(decoder.hits(), 3u);
    lose(0);
    EXPECT_EQ(decoder.misses(), 4u);
    // Parity beyond what is needed does not make another pattern.
    Pattern present = Pattern::first(11);
    present.clear(0), present.clear(10);
    lose_and_decode(code, decoder, block, present);
    EXPECT_EQ(decoder.hits(), 4u);
}

// Codes repair erasures and detect nothing: this is what a damaged parity chunk does, so that nobody relies on more.
TEST(Decoder, AFlippedBitInParityComesOutAsWrongData) {
    for (const Kind kind : {Kind::kReedSolomon, Kind::kXor}) {
        const Code code = make_code(kind, 4, 2);
        TestBlock block(4, 2, 64, 64, 9);
        ASSERT_TRUE(code.encode(block.view()));
        block.parity()[0][10] ^= std::byte{4};
        block.wreck(2);
        Pattern present = Pattern::first(6);
        present.clear(2);
        Decoder decoder(code);
        EXPECT_EQ(decoder.decode(block.view(), present).value(), 1u);
        EXPECT_FALSE(block.intact(2));
        unsigned wrong = 0;
        for (unsigned b = 0; b < 64; ++b) wrong += block.data()[2][b] != block.original(2)[b];
        EXPECT_EQ(wrong, 1u);
    }
}

TEST(Accumulator, GivesTheParityOfTheWholeBlockInAnyOrder) {
    for (const Engine* engine : all_engines()) {
        for (const Shape& shape :
             {Shape{Kind::kReedSolomon, 20, 9}, Shape{Kind::kReedSolomon, 20, 1}, Shape{Kind::kXor, 20, 6}}) {
            const Code code = make_code(shape.kind, shape.k, shape.m, *engine);
            for (const std::size_t bytes : {1u, 63u, 64u, 100u, 5000u, 9000u}) {
                TestBlock block(shape.k - 1, shape.m, bytes, (bytes + 2) / 3, bytes);
                ASSERT_TRUE(code.encode(block.view()));
                std::vector<std::vector<std::byte>> expected;
                for (unsigned i = 0; i < shape.m; ++i) expected.push_back(block.parity_bytes(i));

                Accumulator accumulator(code);
                ASSERT_TRUE(accumulator.begin(block.parity(), bytes));
                std::vector<const std::byte*> data(block.data().begin(), block.data().end());
                const std::span chunks(data);
                EXPECT_TRUE(accumulator.add(7, chunks.subspan(7, 5), bytes));
                EXPECT_FALSE(accumulator.add(11, chunks.subspan(11, 2), bytes));  // 11 was there
                EXPECT_TRUE(accumulator.add(12, chunks.subspan(12), block.size_of(shape.k - 2)));
                EXPECT_FALSE(accumulator.complete(shape.k - 1));
                for (unsigned j = 7; j-- > 0;) EXPECT_TRUE(accumulator.add(j, chunks.subspan(j, 1), bytes));
                EXPECT_TRUE(accumulator.complete(shape.k - 1));
                EXPECT_FALSE(accumulator.complete(shape.k));
                for (unsigned i = 0; i < shape.m; ++i)
                    EXPECT_EQ(block.parity_bytes(i), expected[i]) << engine->name << " " << bytes;
                EXPECT_TRUE(block.guards_hold());
            }
        }
    }
}

TEST(Accumulator, RefusesWhatDoesNotFit) {
    const Code code = make_code(Kind::kReedSolomon, 4, 2);
    TestBlock block(4, 2, 64, 64, 1);
    std::vector<const std::byte*> data(block.data().begin(), block.data().end());
    Accumulator accumulator(code);
    EXPECT_FALSE(accumulator.add(0, data, 64));
    EXPECT_FALSE(accumulator.begin({}, 64));
    EXPECT_FALSE(accumulator.begin(block.parity(), 0));
    ASSERT_TRUE(accumulator.begin(block.parity(), 64));
    EXPECT_FALSE(accumulator.add(1, data, 64));
    EXPECT_FALSE(accumulator.add(0xffffffffu, data, 64));
    EXPECT_FALSE(accumulator.add(0, data, 65));
    EXPECT_FALSE(accumulator.add(0, data, 0));
    data[3] = nullptr;
    EXPECT_FALSE(accumulator.add(0, data, 64));
    EXPECT_TRUE(accumulator.added().none());
}

}  // namespace
}  // namespace farhaul::erasure
