// Figure 11: how fast this host encodes, and how often coded Writes need the fallback.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "base/random.hpp"
#include "erasure/code.hpp"
#include "figure.hpp"
#include "plan/loss.hpp"

using namespace farhaul;
using namespace farhaul::experiments;

namespace {

constexpr std::size_t kChunk = 64 << 10;
constexpr unsigned kData = 32, kParity = 8;

struct Free {
    void operator()(std::byte* p) const { std::free(p); }
};

/// Bytes of data per second that `threads` threads encode, each over a working set of its own that no cache holds.
double encode_rate(erasure::Kind kind, unsigned threads, double seconds) {
    constexpr std::size_t kBlocks = 24;  // 48 MiB of data per thread
    auto code = erasure::Code::create({kind, kData, kParity});
    if (!code) std::abort();
    std::barrier start(static_cast<std::ptrdiff_t>(threads) + 1);
    std::atomic<bool> stop = false;
    std::atomic<std::uint64_t> blocks_done = 0;
    std::vector<std::jthread> workers;
    for (unsigned t = 0; t < threads; ++t)
        workers.emplace_back([&, t] {
            const std::size_t bytes = kBlocks * (kData + kParity) * kChunk;
            const std::unique_ptr<std::byte, Free> memory(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
            if (!memory) std::abort();
            Random random(t + 1);
            for (std::size_t i = 0; i < bytes; i += 8) {
                const std::uint64_t word = random();
                std::memcpy(memory.get() + i, &word, 8);
            }
            std::vector<std::byte*> chunks;
            for (std::size_t i = 0; i < kBlocks * (kData + kParity); ++i) chunks.push_back(memory.get() + i * kChunk);
            std::uint64_t done = 0;
            start.arrive_and_wait();
            for (std::size_t i = 0; !stop.load(std::memory_order_relaxed); i = (i + 1) % kBlocks, ++done) {
                const auto block = std::span(chunks).subspan(i * (kData + kParity), kData + kParity);
                if (!code->encode({kChunk, kChunk, block.first(kData), block.last(kParity)})) std::abort();
            }
            blocks_done += done;
        });
    start.arrive_and_wait();
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    stop = true;
    workers.clear();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return static_cast<double>(blocks_done * kData * kChunk) / took.count();
}

}  // namespace

int main(int argc, char** argv) {
    Figure figure(
        argc, argv,
        {.name = "fig11",
         .title = "Encode throughput, and fallback against loss",
         .published =
             "400 Gbit/s of (32,8) with 64 KiB chunks take 4 cores with XOR, 8 with MDS (4 GHz Xeon 8580); XOR falls "
             "back at about 1e-3 (128 MiB), MDS beyond 1e-2",
         .setting = "encode: this host, 64 KiB chunks, 48 MiB of data per thread; fallback: 128 MiB, 400 Gbit/s, 25 ms "
                    "RTT, loss of "
                    "packets, chunks (coding units) of one 4 KiB packet",
         .differs =
             "Another CPU. The share of Writes that fall back is counted in runs of the protocol (packets sent again), "
             "the line is computed from the code. With coding units of one packet a 128 MiB Write has 1024 blocks; "
             "with 64 KiB units it would have 64, each unit 16 times as likely to be hit."});
    figure.columns({"panel", "code", "x", "runs", "value", "model"});
    const bool quick = figure.quick();

    Plot encode{.name = "encode",
                .caption = "Encoding (32,8), 64 KiB chunks, data per second, this host",
                .x = "threads",
                .y = "GB/s of data",
                .log_x = false,
                .log_y = false,
                .series = {},
                .x_ticks = {},
                .y_range = "[0:]"};
    double per_core[2] = {0, 0};
    for (const bool mds : {false, true}) {
        Series series{.name = mds ? "MDS (Reed-Solomon)" : "XOR", .points = {}};
        for (unsigned threads = 1; threads <= cores(); threads = threads < 4 ? threads + 1 : threads * 2) {
            figure.progress(fmt::format("{}, {} threads", series.name, threads));
            double best = 0;
            for (int repeat = 0; repeat < 3; ++repeat)
                best = std::max(best, encode_rate(mds ? erasure::Kind::kReedSolomon : erasure::Kind::kXor, threads,
                                                  quick ? 0.2 : 1.0));
            if (threads == 1) per_core[mds] = best;
            series.points.emplace_back(threads, best / 1e9);
            figure.row(
                {"encode_gbytes_per_s", mds ? "mds" : "xor", std::to_string(threads), "3", number(best / 1e9), ""});
        }
        encode.series.push_back(series);
        Ticks ticks;
        for (const auto& [x, y] : series.points) ticks.emplace_back(x, fmt::format("{:g}", x));
        encode.x_ticks = ticks;
    }
    encode.series.push_back({.name = "400 Gbit/s", .points = {{1, 50}, {std::max(2u, cores()), 50}}, .dashed = true});
    figure.add(encode);

    Plot fallback{.name = "fallback",
                  .caption = "Share of 128 MiB Writes that need the fallback (measured, and computed from the code)",
                  .x = "packet loss",
                  .y = "share of Writes",
                  .log_x = true,
                  .log_y = false,
                  .series = {},
                  .x_ticks = {},
                  .y_range = "[0:1.05]"};
    const auto losses = quick ? std::vector<double>{1e-4, 1e-3, 1e-2}
                              : std::vector<double>{1e-5, 1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 1e-2, 3e-2, 5e-2, 7e-2, 1e-1};
    const std::uint32_t runs = figure.runs(100, 12);
    double half[2] = {0, 0}, worst_error = 0, mds_at_1e2 = 0, xor_at_1e2 = 0;
    for (const bool mds : {false, true}) {
        Series measured{.name = mds ? "ec:32,8" : "ec-xor:32,8", .points = {}},
            model{.name = "", .points = {}, .dashed = true};
        const auto computed = [&](double loss) {
            const double block =
                mds ? plan::mds_failure(kData, kParity, loss) : plan::xor_failure(kData, kParity, loss);
            return plan::any_failure(block, 128.0 * kMiB / 4096 / kData);
        };
        for (const double loss : losses) {
            auto config = write_config(128 * kMiB, loss, measured.name);
            config.runs = runs;
            const auto report = simulate(figure, config);
            const auto hit = std::ranges::count_if(report.runs, [](const auto& run) { return run.packets_resent > 0; });
            const double share = static_cast<double>(hit) / runs, expected = computed(loss);
            measured.points.emplace_back(loss, share);
            // Four standard deviations of the count, and one Write.
            const double allowed = 4 * std::sqrt(expected * (1 - expected) / runs) + 1.0 / runs;
            worst_error = std::max(worst_error, std::abs(share - expected) / allowed);
            if (loss == 1e-2) (mds ? mds_at_1e2 : xor_at_1e2) = share;
            figure.row({"fallback_share", mds ? "mds" : "xor", number(loss), std::to_string(runs), number(share),
                        number(expected)});
        }
        for (double loss = 1e-5; loss < 0.11; loss *= 1.1) {
            model.points.emplace_back(loss, computed(loss));
            if (half[mds] == 0 && computed(loss) >= 0.5) half[mds] = loss;
        }
        model.name = mds ? "computed" : "";
        fallback.series.push_back(measured), fallback.series.push_back(model);
    }
    figure.add(fallback);

    const double xor_cores = 50e9 / per_core[0], mds_cores = 50e9 / per_core[1];
    figure.check(
        xor_at_1e2 >= 0.9 && mds_at_1e2 <= 0.05,
        fmt::format("at 1e-2 XOR falls back in {:.0f}% of the Writes (at least 90%), MDS in {:.0f}% (at most 5%)",
                    xor_at_1e2 * 100, mds_at_1e2 * 100));
    figure.check(worst_error <= 1, "every measured share is within four standard deviations of the computed one");
    figure.check(per_core[1] >= 0.5e9 && per_core[0] >= 1e9,
                 fmt::format("one core encodes {:.1f} GB/s XOR (at least 1), {:.1f} GB/s MDS (at least 0.5)",
                             per_core[0] / 1e9, per_core[1] / 1e9));
    figure.depends_on_host();
    return figure.finish(
        fmt::format("XOR {:.1f} cores ({:.2f} of the published), MDS {:.1f} cores ({:.2f}), as one core does; half of "
                    "the Writes fall back at {:.1e} "
                    "(XOR) and {:.1e} (MDS)",
                    xor_cores, xor_cores / 4, mds_cores, mds_cores / 8, half[0], half[1]));
}
