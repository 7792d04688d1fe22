// The 32 bits that travel with every packet of a message: message id | packet index | fragment of the user's immediate.
// Source: SDR-RDMA (SC '25), whose split is 10 + 18 + 4; others such as 8 + 22 + 2 are allowed.
#pragma once

#include <bit>
#include <cstdint>

#include "base/result.hpp"

namespace farhaul::sdr {

/// How the 32 bits are divided. The message id is in the top bits, the fragment in the lowest.
struct ImmediateLayout {
    std::uint8_t message_bits = 10;
    std::uint8_t packet_bits = 18;
    std::uint8_t fragment_bits = 4;

    constexpr bool operator==(const ImmediateLayout&) const = default;

    /// Message ids, and thus receive slots, of a queue pair.
    constexpr std::uint32_t message_ids() const { return 1u << message_bits; }
    /// Most packets that one message can have.
    constexpr std::uint32_t max_packets() const { return 1u << packet_bits; }
    /// Fragments that make up one user immediate: packet i carries fragment i mod this.
    constexpr std::uint32_t fragments() const { return 32u / fragment_bits; }
    /// One bit per fragment.
    constexpr std::uint32_t all_fragments() const { return fragments() == 32 ? ~0u : (1u << fragments()) - 1; }

    constexpr std::uint32_t encode(std::uint32_t message_id, std::uint32_t packet, std::uint32_t fragment) const {
        return message_id << (packet_bits + fragment_bits) | packet << fragment_bits | fragment;
    }
    constexpr std::uint32_t message_id(std::uint32_t immediate) const {
        return immediate >> (packet_bits + fragment_bits);
    }
    constexpr std::uint32_t packet(std::uint32_t immediate) const {
        return immediate >> fragment_bits & (max_packets() - 1);
    }
    constexpr std::uint32_t fragment(std::uint32_t immediate) const { return immediate & ((1u << fragment_bits) - 1); }
    /// The bits of `user_immediate` that packet `packet` carries.
    constexpr std::uint32_t fragment_of(std::uint32_t user_immediate, std::uint32_t packet) const {
        return user_immediate >> (packet % fragments() * fragment_bits) & ((1u << fragment_bits) - 1);
    }

    /// message_bits 1..16, packet_bits 1..30, fragment_bits 1, 2, 4 or 8 (so that fragments tile 32 bits), 32 in all.
    Status validate() const {
        if (message_bits < 1 || message_bits > 16 || packet_bits < 1 || packet_bits > 30 ||
            !std::has_single_bit(fragment_bits) || fragment_bits > 8 ||
            message_bits + packet_bits + fragment_bits != 32)
            return fail(ErrorCode::kInvalidArgument,
                        "immediate split {}+{}+{} is not usable: 1-16 bits of message id, 1-30 of packet index, 1, 2, "
                        "4 or 8 of fragment, 32 in all",
                        message_bits, packet_bits, fragment_bits);
        return {};
    }
};

}  // namespace farhaul::sdr
