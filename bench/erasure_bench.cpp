// Coding on one core over a working set that no cache holds: our engines beside ISA-L called directly. Bytes per second
// are of data.
//   erasure_bench --benchmark_filter='32,8'
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <isa-l/erasure_code.h>
#include <isa-l/raid.h>

#include "base/random.hpp"
#include "erasure/accumulator.hpp"
#include "erasure/code.hpp"
#include "erasure/decoder.hpp"

namespace {

using namespace farhaul;
using namespace farhaul::erasure;

constexpr std::size_t kChunk = 64 << 10;
constexpr std::size_t kWorkingSet = 128 << 20;

/// Blocks of k data and m parity chunks with 128 MiB of data, as a message and its parity lie in memory.
class WorkingSet {
 public:
    WorkingSet(unsigned k, unsigned m) : k_(k), m_(m), blocks_(kWorkingSet / kChunk / k) {
        const std::size_t bytes = blocks_ * (k + m) * kChunk;
        memory_.reset(static_cast<std::byte*>(
            std::aligned_alloc(2 << 20, (bytes + (2 << 20) - 1) & ~std::size_t{(2 << 20) - 1})));
        if (!memory_) std::abort();
        Random random(1);
        for (std::size_t i = 0; i < bytes; i += 8) {
            const std::uint64_t word = random();
            std::memcpy(memory_.get() + i, &word, 8);
        }
        data_.resize(blocks_ * k);
        parity_.resize(blocks_ * m);
        for (std::size_t i = 0; i < data_.size(); ++i) data_[i] = memory_.get() + i * kChunk;
        for (std::size_t i = 0; i < parity_.size(); ++i) parity_[i] = memory_.get() + (data_.size() + i) * kChunk;
    }
    std::size_t blocks() const { return blocks_; }
    std::size_t data_bytes() const { return data_.size() * kChunk; }
    Block block(std::size_t i) const {
        return {kChunk, kChunk, std::span(data_).subspan(i * k_, k_), std::span(parity_).subspan(i * m_, m_)};
    }

 private:
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    std::size_t k_, m_, blocks_;
    std::unique_ptr<std::byte, Free> memory_;
    std::vector<std::byte*> data_, parity_;
};

void report(benchmark::State& state, const WorkingSet& set, std::string_view engine) {
    state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * set.data_bytes()));
    state.SetLabel(std::string(engine));
}

Code code_for(Kind kind, unsigned k, unsigned m, const Engine* engine) {
    return std::move(Code::create({kind, k, m}, *engine).value());
}

void encode(benchmark::State& state, Kind kind, unsigned k, unsigned m, const Engine* engine) {
    const WorkingSet set(k, m);
    const Code code = code_for(kind, k, m, engine);
    for (auto _ : state) {
        for (std::size_t i = 0; i < set.blocks(); ++i) {
            if (!code.encode(set.block(i))) state.SkipWithError("encode failed");
        }
    }
    report(state, set, kind == Kind::kXor ? engine->xor_name : engine->name);
}

/// The parity of each block built up one chunk after the other.
void encode_incrementally(benchmark::State& state, unsigned k, unsigned m, const Engine* engine) {
    const WorkingSet set(k, m);
    const Code code = code_for(Kind::kReedSolomon, k, m, engine);
    Accumulator accumulator(code);
    for (auto _ : state) {
        for (std::size_t i = 0; i < set.blocks(); ++i) {
            const Block block = set.block(i);
            bool ok = accumulator.begin(block.parity, kChunk).has_value();
            for (unsigned j = 0; j < k; ++j) {
                const std::byte* const chunk = block.data[j];
                ok = ok && accumulator.add(j, std::span(&chunk, 1), kChunk).has_value();
            }
            if (!ok) state.SkipWithError("add failed");
        }
    }
    report(state, set, engine->name);
}

void decode(benchmark::State& state, Kind kind, unsigned k, unsigned m, const Engine* engine) {
    const WorkingSet set(k, m);
    const Code code = code_for(kind, k, m, engine);
    const auto erasures = static_cast<unsigned>(state.range(0));
    for (std::size_t i = 0; i < set.blocks(); ++i) {
        if (!code.encode(set.block(i))) state.SkipWithError("encode failed");
    }
    Decoder decoder(code);
    Pattern present = Pattern::first(k + m);
    for (unsigned e = 0; e < erasures; ++e) present.clear(kind == Kind::kXor ? e : e * k / erasures);
    for (auto _ : state) {
        for (std::size_t i = 0; i < set.blocks(); ++i) {
            const auto rebuilt = decoder.decode(set.block(i), present);
            if (!rebuilt || *rebuilt != erasures) state.SkipWithError("decode failed");
        }
    }
    report(state, set, kind == Kind::kXor ? engine->xor_name : engine->name);
}

void isal_encode(benchmark::State& state, unsigned k, unsigned m) {
    const WorkingSet set(k, m);
    std::vector<unsigned char> matrix(k * (k + m)), tables(32 * k * m);
    gf_gen_cauchy1_matrix(matrix.data(), static_cast<int>(k + m), static_cast<int>(k));
    ec_init_tables(static_cast<int>(k), static_cast<int>(m), matrix.data() + k * k, tables.data());
    std::vector<unsigned char*> data(k), parity(m);
    for (auto _ : state) {
        for (std::size_t i = 0; i < set.blocks(); ++i) {
            const Block block = set.block(i);
            for (unsigned j = 0; j < k; ++j) data[j] = reinterpret_cast<unsigned char*>(block.data[j]);
            for (unsigned j = 0; j < m; ++j) parity[j] = reinterpret_cast<unsigned char*>(block.parity[j]);
            ec_encode_data(kChunk, static_cast<int>(k), static_cast<int>(m), tables.data(), data.data(), parity.data());
        }
    }
    report(state, set, "ec_encode_data");
}

void isal_xor(benchmark::State& state, unsigned k, unsigned m) {
    const WorkingSet set(k, m);
    std::array<void*, 256> group;
    for (auto _ : state) {
        for (std::size_t i = 0; i < set.blocks(); ++i) {
            const Block block = set.block(i);
            for (unsigned r = 0; r < m; ++r) {
                int count = 0;
                for (unsigned j = r; j < k; j += m) group[static_cast<std::size_t>(count++)] = block.data[j];
                group[static_cast<std::size_t>(count++)] = block.parity[r];
                if (xor_gen(count, kChunk, group.data()) != 0) state.SkipWithError("xor_gen failed");
            }
        }
    }
    report(state, set, "xor_gen");
}

template <typename... Args>
auto* add(const std::string& name, void (*function)(benchmark::State&, Args...), std::type_identity_t<Args>... args) {
    return benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { function(state, args...); })
        ->Unit(benchmark::kMillisecond)
        ->MinTime(0.5);
}

}  // namespace

int main(int argc, char** argv) {
    for (const auto& [k, m] : {std::pair{32u, 8u}, {223u, 32u}}) {
        const std::string shape = fmt::format("({},{})", k, m);
        add(fmt::format("encode{}/ISA-L", shape), isal_encode, k, m);
        for (const Engine* engine : engines()) {
            add(fmt::format("encode{}/{}", shape, engine->name), encode, Kind::kReedSolomon, k, m, engine);
        }
    }
    for (const Engine* engine : engines()) {
        add(fmt::format("encode_incrementally(32,8)/{}", engine->name), encode_incrementally, 32, 8, engine);
        auto* decoding = add(fmt::format("decode(32,8)/{}", engine->name), decode, Kind::kReedSolomon, 32, 8, engine);
        for (int erasures = 1; erasures <= 8; ++erasures) decoding->Arg(erasures);
        add(fmt::format("decode(223,32)/{}", engine->name), decode, Kind::kReedSolomon, 223, 32, engine)
            ->Arg(1)
            ->Arg(8)
            ->Arg(32);
    }
    add("xor(32,8)/ISA-L", isal_xor, 32, 8);
    add("xor(32,8)/ours", encode, Kind::kXor, 32, 8, &best_engine());
    add("xor_decode(32,8)", decode, Kind::kXor, 32, 8, &best_engine())->Arg(1)->Arg(8);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    benchmark::AddCustomContext("coding engine", std::string(best_engine().name));
    benchmark::AddCustomContext("xor engine", std::string(best_engine().xor_name));
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
