// Where work for another core goes: encoding and decoding. Protocol code has no threads; it hands a Job to an Executor
// and is told when it is done, on the thread of its Loop. In real time that is a pool of workers; in virtual time, a
// modelled cost.
#pragma once

#include <cstdint>

namespace farhaul {

/// A piece of work and what to call when it is done. Nothing is copied or allocated: `context` must stay valid until
/// `done` was called.
struct Job {
    /// May run on another thread, beside the loop. Touches nothing that the loop's thread touches before `done`.
    void (*work)(void* context) = nullptr;
    /// Runs on the loop's thread, once, after `work`. May be called from within submit(): leave your own state
    /// consistent first.
    void (*done)(void* context) = nullptr;
    void* context = nullptr;
    /// Bytes that `work` reads, by which a modelled executor prices it.
    std::uint64_t bytes = 0;
};

class Executor {
 public:
    virtual ~Executor() = default;
    /// Takes the job. Jobs of one executor may run side by side and end in any order.
    virtual void submit(const Job& job) = 0;
};

/// Does the work at once, on the caller's thread: for tests, and where there is no core to spare.
class InlineExecutor final : public Executor {
 public:
    void submit(const Job& job) override {
        job.work(job.context);
        job.done(job.context);
    }
};

}  // namespace farhaul
