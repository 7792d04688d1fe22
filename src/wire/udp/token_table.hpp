// Which connection a token belongs to, as receive threads look it up: an immutable open-addressing table behind one
// atomic pointer. The loop's thread replaces it whole when a connection comes or goes; the old one is freed when no
// receive thread can hold it any more (the endpoint waits for their epochs).
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/time.hpp"
#include "sdr/wire.hpp"
#include "wire/udp/parameters.hpp"

namespace farhaul::udp {

/// What a receive thread needs to know of a connection, and what it tells back. Counters have one writer per channel at
/// most but for `packets` and `calls`, which several channels add to once per batch.
struct ReceiveTarget {
    std::uint64_t token = 0;
    std::uint32_t crc_of_token = 0;
    bool checksum = true;
    std::uint32_t payload_bytes = 0;
    std::uint32_t channels = 1;
    /// Address::fingerprint() of where each channel's frames come from.
    std::array<std::atomic<std::uint64_t>, kMaxChannels> peers{};
    std::atomic<sdr::WireSink*> sink{nullptr};
    std::atomic<std::int64_t> last_heard_ns{0};
    std::atomic<std::uint64_t> packets{0};
    std::atomic<std::uint64_t> calls{0};
};

class TokenTable {
 public:
    TokenTable() { snapshot_.store(new Snapshot); }
    ~TokenTable() { delete snapshot_.load(); }
    TokenTable(const TokenTable&) = delete;
    TokenTable& operator=(const TokenTable&) = delete;

    ReceiveTarget* find(std::uint64_t token) const {
        const Snapshot* snapshot = snapshot_.load(std::memory_order_seq_cst);
        if (snapshot->slots.empty()) return nullptr;
        // Tokens are random: their low bits are as good as any hash.
        for (std::uint64_t at = token;; ++at) {
            ReceiveTarget* target = snapshot->slots[at & (snapshot->slots.size() - 1)];
            if (target == nullptr || target->token == token) return target;
        }
    }

    /// Both publish a new table; `wait` must return only when no receive thread uses the old one.
    template <typename Wait>
    void insert(ReceiveTarget* target, Wait wait) {
        targets_.push_back(target);
        publish(wait);
    }
    template <typename Wait>
    void remove(ReceiveTarget* target, Wait wait) {
        std::erase(targets_, target);
        publish(wait);
    }

 private:
    struct Snapshot {
        std::vector<ReceiveTarget*> slots;  // a power of two, at most half full
    };
    template <typename Wait>
    void publish(Wait wait) {
        auto fresh = std::make_unique<Snapshot>();
        if (!targets_.empty()) fresh->slots.resize(std::bit_ceil(targets_.size() * 2 + 2));
        for (ReceiveTarget* target : targets_) {
            std::uint64_t at = target->token;
            while (fresh->slots[at & (fresh->slots.size() - 1)] != nullptr) ++at;
            fresh->slots[at & (fresh->slots.size() - 1)] = target;
        }
        const std::unique_ptr<const Snapshot> old(snapshot_.exchange(fresh.release(), std::memory_order_seq_cst));
        wait();
    }
    std::atomic<const Snapshot*> snapshot_;
    std::vector<ReceiveTarget*> targets_;
};

}  // namespace farhaul::udp
