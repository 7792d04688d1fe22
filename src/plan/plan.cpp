#include "plan/plan.hpp"

#include <algorithm>
#include <cmath>

#include "erasure/code.hpp"
#include "plan/completion.hpp"
#include "plan/simulate.hpp"
#include "plan/tail_model.hpp"

namespace farhaul::plan {

namespace {

erasure::Parameters parameters_of(const Scheme& scheme) {
    return {scheme.kind == Scheme::Kind::kErasureXor ? erasure::Kind::kXor : erasure::Kind::kReedSolomon,
            scheme.data_symbols, scheme.parity_symbols};
}

Status validate(const PlanInput& input) {
    const auto refuse = [](const char* what) { return fail(ErrorCode::kInvalidArgument, "{}", what); };
    if (input.bytes == 0 || input.bytes > std::uint64_t{1} << 50)
        return refuse("the size must be from 1 byte to 1 PiB");
    if (input.rate.unlimited()) return refuse("the rate must not be 0: how long injection takes depends on it");
    if (input.rtt <= Duration{} || input.rtt > Duration::from_seconds(3600))
        return refuse("the RTT must be above 0 and at most 1 h");
    if (!(input.loss.probability >= 0 && input.loss.probability <= 0.9))
        return refuse("the packet loss must be from 0 to 0.9");
    if (!(input.loss.mean_burst_packets >= 0 && input.loss.mean_burst_packets <= 1e6))
        return refuse("the mean burst must be at most 1e6 packets");
    if (input.mtu == 0 || input.chunk_bytes == 0 || input.chunk_bytes % input.mtu != 0) {
        return fail(ErrorCode::kInvalidArgument,
                    "the chunk ({} bytes) must be a whole number of MTUs ({} bytes); try {}", input.chunk_bytes,
                    input.mtu, std::max<std::uint32_t>(input.chunk_bytes / std::max(input.mtu, 1u), 1) * input.mtu);
    }
    if (!(input.rto_rtts > 0 && input.rto_rtts <= 1000)) return refuse("the RTO must be above 0 and at most 1000 RTTs");
    if (!(input.fallback_rtts >= 0 && input.fallback_rtts <= 1000))
        return refuse("the fallback must be at most 1000 RTTs");
    if (input.bytes / input.chunk_bytes > std::uint64_t{1} << 36)
        return refuse("the message has too many chunks; use larger ones");
    return {};
}

/// Bursts are drawn: as many transfers as cost a fraction of a second, but enough for the p99.9 to mean something.
void simulate_into(Prediction& prediction, const PlanInput& input, const SimulatedTransfer& transfer) {
    const double packets = static_cast<double>(transfer.chunks * transfer.packets_per_chunk);
    const double losses = packets * input.loss.probability + 1;
    const auto runs = static_cast<std::size_t>(std::clamp(4e6 / losses, 1000.0, 20'000.0));
    Random random(input.seed);
    std::vector<double> seconds(runs);
    double sum = 0, resent = 0;
    std::size_t repaired = 0;
    for (double& run : seconds) {
        const Sample sample = simulate(transfer, random);
        run = sample.seconds;
        sum += run;
        resent += sample.resent_chunks;
        repaired += sample.resent_chunks > 0;
    }
    std::ranges::sort(seconds);
    prediction.mean = sum / static_cast<double>(runs);
    prediction.p999 = seconds[static_cast<std::size_t>(std::ceil(0.999 * static_cast<double>(runs))) - 1];
    prediction.resent_bytes = resent / static_cast<double>(runs) * input.chunk_bytes;
    if (transfer.m > 0) prediction.failure = static_cast<double>(repaired) / static_cast<double>(runs);
    prediction.simulated = true;
}

std::string reason_for(const Plan& plan) {
    const Prediction& pick = plan.predictions[plan.pick];
    const std::string name = to_string(pick.scheme);
    const Prediction* other = nullptr;  // the fastest of the other kind
    for (const Prediction& p : plan.predictions) {
        if (p.scheme.coded() != pick.scheme.coded() && (!other || p.mean < other->mean)) other = &p;
    }
    const auto text = [](double seconds) { return format_duration(Duration::from_seconds(seconds)); };
    const double over = 100 * (pick.mean / plan.bound - 1);
    if (pick.scheme.kind == Scheme::Kind::kAuto) {
        if (pick.overhead_bytes() < 0.5)
            return fmt::format("{}: next to nothing is lost, so it sends no parity either: {}, {:.1f}% above the bound",
                               name, text(pick.mean), over);
        for (const Prediction& p : plan.predictions)
            if (p.scheme != pick.scheme && (!other || p.mean < other->mean)) other = &p;
        const std::string beside =
            other ? fmt::format(" instead of {} with {}", text(other->mean), to_string(other->scheme)) : std::string();
        return fmt::format(
            "{}: {} of parity, sent after the data of the last round trip, saves asking for it again: {}{}, "
            "{:.1f}% above the bound",
            name, format_size(static_cast<std::uint64_t>(pick.parity_bytes)), text(pick.mean), beside, over);
    }
    if (!other) return fmt::format("{}: the fastest mean of those compared, {:.1f}% above the bound", name, over);
    if (pick.scheme.coded()) {
        return fmt::format(
            "{}: {} of parity in the air saves waiting for retransmissions: {} instead of {} with {}, {:.1f}% above "
            "the bound",
            name, format_size(static_cast<std::uint64_t>(pick.parity_bytes)), text(pick.mean), text(other->mean),
            to_string(other->scheme), over);
    }
    if (pick.resent_bytes < 0.5) {
        return fmt::format("{}: next to nothing is lost, so parity would only add bytes: {} instead of {} with {}",
                           name, text(pick.mean), text(other->mean), to_string(other->scheme));
    }
    return fmt::format(
        "{}: repairing what is lost costs less than sending parity for all of it: {} instead of {} with {}", name,
        text(pick.mean), text(other->mean), to_string(other->scheme));
}

}  // namespace

std::vector<Scheme> default_schemes() {
    std::vector<Scheme> schemes;
    for (const char* name :
         {"auto", "sr", "sr-nack", "ec:32,2", "ec:32,4", "ec:32,8", "ec:128,8", "ec:223,32", "ec-xor:32,8"})
        schemes.push_back(*parse_scheme(name));
    return schemes;
}

namespace {

/// Bytes of what a scheme repeats and codes.
std::uint32_t unit_bytes(const PlanInput& input, const Scheme& scheme) {
    return scheme.coded() && !scheme.chunk_symbols ? input.mtu : input.chunk_bytes;
}

TailModel::Result predict_tail(const PlanInput& input) {
    const double bytes_per_second = static_cast<double>(input.rate.bits_per_second()) / 8;
    const TailModel model{(input.bytes + input.mtu - 1) / input.mtu,
                          static_cast<double>(std::min<std::uint64_t>(input.mtu, input.bytes)) / bytes_per_second,
                          input.rtt.seconds(), input.loss};
    return model.predict(input.seed);
}

/// The tail is encoded while it is injected, eight rows at a time.
double tail_encode_cores(const PlanInput& input, const TailModel::Result& tail, double bytes_per_second) {
    if (!(bytes_per_second > 0)) return 0;
    const double passes = std::ceil(tail.rows / 8.0) + (tail.columns ? 0.5 : 0);
    return static_cast<double>(input.rate.bits_per_second()) / 8 * passes / bytes_per_second;
}

}  // namespace

double encode_cores(const PlanInput& input, const Scheme& scheme, double bytes_per_second) {
    if (scheme.kind == Scheme::Kind::kAuto && input.mtu > 0)
        return tail_encode_cores(input, predict_tail(input), bytes_per_second);
    if (!scheme.coded() || scheme.data_symbols == 0 || input.chunk_bytes == 0 || !(bytes_per_second > 0)) return 0;
    // Data leaves at its share of the rate; that much must be encoded per second.
    const double chunks = std::ceil(static_cast<double>(input.bytes) / unit_bytes(input, scheme));
    const double parity = std::ceil(chunks / scheme.data_symbols) * scheme.parity_symbols;
    return static_cast<double>(input.rate.bits_per_second()) / 8 * chunks / (chunks + parity) / bytes_per_second;
}

Result<Prediction> predict(const PlanInput& input, const Scheme& scheme) {
    if (auto valid = validate(input); !valid) return propagate(valid);
    if (scheme.kind == Scheme::Kind::kGoBackN)
        return fail(ErrorCode::kInvalidArgument, "there is no model of gbn; `sdr sim --scheme gbn` simulates it");
    if (scheme.coded()) {
        if (auto valid = erasure::validate(parameters_of(scheme)); !valid) return propagate(valid);
    }
    const double rtt = input.rtt.seconds();
    const double bytes_per_second = static_cast<double>(input.rate.bits_per_second()) / 8;
    const std::uint32_t unit = unit_bytes(input, scheme);
    const std::uint64_t chunks = (input.bytes + unit - 1) / unit;
    const std::uint64_t packets_per_chunk = unit / input.mtu;
    // A message shorter than a chunk is one short chunk.
    const double chunk_bytes = static_cast<double>(std::min<std::uint64_t>(unit, input.bytes));
    const double injection = chunk_bytes / bytes_per_second;
    const double rto = scheme.kind == Scheme::Kind::kSelectiveRepeatNack ? rtt : input.rto_rtts * rtt;
    const double lost = chunk_loss(input.loss, packets_per_chunk);
    const bool bursts = input.loss.mean_burst_packets > 1 && input.loss.probability > 0;
    const SelectiveRepeatModel repeat{static_cast<double>(chunks), injection, rto, rtt, lost};

    Prediction prediction{.scheme = scheme};
    if (scheme.kind == Scheme::Kind::kAuto) {
        const auto result = predict_tail(input);
        prediction.mean = result.mean;
        prediction.p999 = result.p999;
        prediction.parity_bytes = result.parity_packets * input.mtu;
        prediction.resent_bytes = result.resent_packets * input.mtu;
        prediction.failure = result.failure;
        prediction.simulated = bursts;
        prediction.encode_cores = tail_encode_cores(input, result, input.mds_bytes_per_second);
        return prediction;
    }
    SimulatedTransfer transfer{.chunks = chunks,
                               .packets_per_chunk = packets_per_chunk,
                               .injection = injection,
                               .timeout = rto,
                               .rtt = rtt,
                               .loss = input.loss};
    if (!scheme.coded()) {
        if (bursts) {
            simulate_into(prediction, input, transfer);
        } else {
            prediction.mean = repeat.mean();
            prediction.p999 = repeat.quantile(0.999);
            prediction.resent_bytes = repeat.chunks * lost / (1 - lost) * chunk_bytes;
        }
        return prediction;
    }

    const bool exclusive_or = scheme.kind == Scheme::Kind::kErasureXor;
    const std::uint64_t blocks = (chunks + scheme.data_symbols - 1) / scheme.data_symbols;
    const double parity_chunks = static_cast<double>(blocks * scheme.parity_symbols);
    const double speed = exclusive_or ? input.xor_bytes_per_second : input.mds_bytes_per_second;
    prediction.encode_cores = encode_cores(input, scheme, speed);
    prediction.parity_bytes = parity_chunks * chunk_bytes;
    const double fallback = input.fallback_rtts * rtt;
    if (bursts) {
        transfer.k = scheme.data_symbols, transfer.m = scheme.parity_symbols;
        transfer.exclusive_or = exclusive_or;
        transfer.fallback = fallback;
        simulate_into(prediction, input, transfer);
        return prediction;
    }
    ErasureModel model{repeat, parity_chunks, static_cast<double>(blocks), static_cast<double>(scheme.data_symbols),
                       0,      fallback};
    model.block_failure = exclusive_or ? xor_failure(scheme.data_symbols, scheme.parity_symbols, lost)
                                       : mds_failure(scheme.data_symbols, scheme.parity_symbols, lost);
    prediction.failure = any_failure(model.block_failure, model.blocks);
    prediction.mean = model.mean();
    prediction.p999 = model.quantile(0.999);
    prediction.resent_bytes =
        std::min(model.blocks * model.block_failure * model.k, repeat.chunks) * chunk_bytes / (1 - lost);
    return prediction;
}

Result<Plan> plan(const PlanInput& input, std::span<const Scheme> schemes) {
    if (schemes.empty()) return fail(ErrorCode::kInvalidArgument, "there is no scheme to plan with");
    Plan result;
    for (const Scheme& scheme : schemes) {
        auto prediction = predict(input, scheme);
        if (!prediction) return propagate(prediction);
        result.predictions.push_back(*prediction);
    }
    const double rtt = input.rtt.seconds();
    result.bound = static_cast<double>(input.bytes) * 8 / static_cast<double>(input.rate.bits_per_second()) /
                       (1 - input.loss.probability) +
                   rtt;
    result.chunk_loss = chunk_loss(input.loss, input.chunk_bytes / input.mtu);
    // The fastest mean; of those within 1% the steadiest, and of those the one that sends least.
    const auto better = [&](const Prediction& a, const Prediction& b) {
        if (std::abs(a.p999 - b.p999) > 0.01 * std::min(a.p999, b.p999)) return a.p999 < b.p999;
        if (a.overhead_bytes() != b.overhead_bytes()) return a.overhead_bytes() < b.overhead_bytes();
        return a.mean < b.mean;
    };
    double fastest = result.predictions[0].mean;
    for (const Prediction& p : result.predictions) fastest = std::min(fastest, p.mean);
    bool picked = false;
    for (std::size_t i = 0; i < result.predictions.size(); ++i) {
        if (result.predictions[i].mean > fastest * 1.01) continue;
        if (!picked || better(result.predictions[i], result.predictions[result.pick])) result.pick = i, picked = true;
    }
    result.reason = reason_for(result);
    return result;
}

}  // namespace farhaul::plan
