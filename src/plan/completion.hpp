// Completion times of a message in the published model: chunks i = 1 .. M leave every `injection`; a lost one is sent
// again `timeout` + `injection` later, until it arrives; T = max over i of (i * injection + (timeout + injection) *
// (Y_i - 1)) + rtt with Y_i geometric. Losses of chunks are independent. Times in seconds.
//
// The model lets retransmissions pass beside first transmissions: where M * injection exceeds the timeout it is a lower
// bound.
#pragma once

#include <vector>

namespace farhaul::plan {

struct SelectiveRepeatModel {
    double chunks = 1;     ///< M, at least 1
    double injection = 0;  ///< of one chunk, above 0
    double timeout = 0;    ///< RTO
    double rtt = 0;
    double chunk_loss = 0;  ///< 0 .. 1 (exclusive)

    /// Natural logarithm of P(T <= t).
    double log_cdf(double t) const;
    /// E[T], exactly: the distribution is a staircase that is geometric within each stretch of its steps, and is summed
    /// as such.
    double mean() const;
    /// The smallest t with P(T <= t) >= q, q in (0, 1), to a thousandth of `injection`.
    double quantile(double q) const;

 private:
    double step() const { return (timeout + injection) / injection; }  // of retransmissions, in injections
    unsigned rounds() const;                                           // after which a loss is out of the question
};

/// A coded message: L blocks of k data and m parity chunks. If none fails it is complete after all chunks and a round
/// trip; if F fail, their F * k data chunks go by selective repeat once `fallback` (the FTO beyond the injection) has
/// passed and the report has travelled.
struct ErasureModel {
    SelectiveRepeatModel repeat;  ///< of the whole message; its `chunks` are the M data chunks
    double parity_chunks = 0;     ///< of the whole message
    double blocks = 1;            ///< L
    double k = 1;
    double block_failure = 0;  ///< of one block
    double fallback = 0;       ///< beta * rtt

    /// The time when nothing fails.
    double base() const { return (repeat.chunks + parity_chunks) * repeat.injection + repeat.rtt; }
    /// The published form: one failure count stands for all: base + P_fallback * (rtt + fallback + E[max X of (E[F | F
    /// > 0] * k chunks)]).
    double published_mean() const;
    /// E[T], over the distribution of F.
    double mean() const;
    double quantile(double q) const;

 private:
    struct Outcome {
        double probability;
        SelectiveRepeatModel repeat;  // of the failed blocks
    };
    /// F > 0, in at most a hundred buckets.
    std::vector<Outcome> failures() const;
    SelectiveRepeatModel repeat_of(double failed_blocks) const;
};

}  // namespace farhaul::plan
