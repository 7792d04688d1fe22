// A bench connection without a reliability scheme: SDR messages as they are; see session.hpp.
#pragma once

#include <deque>

#include "app/bench/session.hpp"
#include "sdr/queue_pair.hpp"

namespace farhaul::app::bench {

class RawSession final : public Session, private sdr::QueuePairListener {
 public:
    static Result<std::unique_ptr<Session>> make(udp::RealLoop& loop, udp::Connected connected, const Plan& plan,
                                                 bool client, Duration timeout);

    void start() override;
    void stop() override { stopping_ = true; }
    bool done() const override;
    const std::optional<Error>& error() const override { return error_; }
    BandwidthRow row() const override;
    const std::vector<std::int64_t>& completions() const override { return completions_; }
    TimePoint started() const override { return first_; }

    /// What the receiving end tells: 56 bytes, see raw_session.cpp.
    struct Figures {
        std::uint64_t complete = 0, incomplete = 0, invalid = 0;
        std::uint64_t nanoseconds = 0;       ///< first packet to last completion
        std::uint64_t peak_nanoseconds = 0;  ///< least time for `depth` completions in a row; 0 = not known
        bool final = false;
    };

 private:
    RawSession(udp::RealLoop& loop, udp::Connected connected, const Plan& plan, bool client, Duration timeout);
    void on_clear_to_send() override { pump(); }
    void on_injected(sdr::SendHandle&, std::uint64_t, std::uint64_t) override {
        reap_timer_.arm_no_later_than(loop_.now());
    }
    void on_receive_progress(sdr::MessageSlot& slot) override;
    void on_datagram(std::span<const std::byte> datagram) override;
    void on_queue_pair_error(const Error& error) override {
        if (!error_) error_ = error;
    }

    bool more() const { return !stopping_ && (plan_.iterations == 0 || sent_ < plan_.iterations); }
    std::byte* slot_memory(std::uint64_t number);
    void pump();
    void reap();
    void tick();
    void post_receives();
    void complete(std::size_t position, bool whole);
    Figures figures() const;

    udp::RealLoop& loop_;
    udp::Connected connected_;
    Plan plan_;
    bool client_;
    Duration timeout_;
    Duration patience_;  // without progress for so long, a message that lost packets is given up
    std::vector<std::byte> memory_;
    std::uint64_t slots_ = 1;
    std::unique_ptr<sdr::QueuePair> queue_pair_;
    Timer reap_timer_, tick_timer_;
    std::optional<Error> error_;
    // sending
    bool running_ = false, stopping_ = false;
    std::uint64_t sent_ = 0;
    std::deque<sdr::SendHandle*> sends_;
    TimePoint asked_since_;  // the end of sending; no time while it goes on
    bool asking_ = false;
    Figures told_;
    // receiving
    struct Posted {
        sdr::MessageSlot* slot;
        std::uint64_t number;
        bool open;
    };
    std::deque<Posted> posted_;
    std::uint64_t next_number_ = 0;
    std::uint64_t complete_ = 0, incomplete_ = 0, invalid_ = 0;
    std::optional<std::uint64_t> announced_;  // messages that the sender has sent in all
    TimePoint first_, last_, progressed_;
    std::vector<std::int64_t> completions_;
};

}  // namespace farhaul::app::bench
