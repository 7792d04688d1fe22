// A bench connection with a reliability scheme; see session.hpp.
#pragma once

#include "app/bench/session.hpp"
#include "base/executor.hpp"

namespace farhaul::app::bench {

class ReliableSession final : public Session {
 public:
    /// `encoders`: of parity, outlives the session.
    static Result<std::unique_ptr<Session>> make(udp::RealLoop& loop, udp::Connected connected, const Plan& plan,
                                                 bool client, Duration timeout, Executor* encoders);

    void start() override;
    void stop() override;
    bool done() const override;
    const std::optional<Error>& error() const override { return error_; }
    BandwidthRow row() const override;
    const std::vector<std::int64_t>& completions() const override { return completions_; }
    TimePoint started() const override { return started_; }
    std::vector<std::int64_t> take_samples() override { return std::move(samples_); }

 private:
    ReliableSession(udp::Connected connected, const Plan& plan, bool client)
        : connected_(std::move(connected)),
          plan_(plan),
          client_(client),
          sends_(client || plan.both_ways || plan.latency),
          receives_(!client || plan.both_ways || plan.latency) {}
    void prepare();
    std::byte* slot(std::vector<std::byte>& region, std::uint64_t number) const;
    void pump();
    bool more() const;
    bool write(const std::byte* message);
    void ping();
    void post_receive();
    void on_received(std::uint64_t number);
    void note_completion();

    udp::Connected connected_;
    Plan plan_;
    bool client_, sends_, receives_;
    std::vector<std::byte> source_, target_;
    std::uint64_t slots_ = 1;
    std::unique_ptr<reliable::Connection> connection_;
    bool running_ = false, stopping_ = false;
    std::uint64_t writes_ = 0, acknowledged_ = 0, posted_ = 0, received_ = 0, invalid_ = 0;
    TimePoint started_, last_, sent_at_;
    std::vector<std::int64_t> completions_, samples_;
    std::optional<Error> error_;
};

}  // namespace farhaul::app::bench
