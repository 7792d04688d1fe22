// The reliability schemes a connection can use, and how users name them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace farhaul::plan {

/// One scheme with its parameters. Both ends of a connection must use the same.
struct Scheme {
    enum class Kind : std::uint8_t {
        kGoBackN,          ///< `gbn`: what commodity NICs do: the receiver takes packets in order only, a gap resends
                           ///< everything behind it
        kSelectiveRepeat,  ///< `sr`: each packet has a timeout RTO; what is not acknowledged by then is sent again
        kSelectiveRepeatNack,  ///< `sr-nack`: the receiver reports what is missing; the sender repairs about one round
                               ///< trip after the loss
        kErasure,     ///< `ec:K,M`: Reed-Solomon: any M losses of K+M symbols are repaired without asking; then as
                      ///< `sr-nack`
        kErasureXor,  ///< `ec-xor:K,M`: parity i repairs one loss among the data symbols j with j mod M = i
        kAuto,        ///< `auto`: as `sr-nack`, and parity for the last round trip's worth of data, sent when nothing
                      ///< else waits, as much as the losses seen so far ask for
    };
    Kind kind = Kind::kSelectiveRepeatNack;
    std::uint8_t data_symbols = 0;    ///< K, of coded schemes
    std::uint8_t parity_symbols = 0;  ///< M
    bool chunk_symbols = false;       ///< a symbol is a chunk instead of a packet: `ec:32,8/chunk`

    bool coded() const { return kind == Kind::kErasure || kind == Kind::kErasureXor; }
    /// Every message brings a message of parity.
    bool paired() const { return coded() || kind == Kind::kAuto; }
    bool operator==(const Scheme&) const = default;

    static const Scheme kGoBackN, kSelectiveRepeat, kSelectiveRepeatNack, kAuto;
};
inline constexpr Scheme Scheme::kGoBackN{Scheme::Kind::kGoBackN, 0, 0, false};
inline constexpr Scheme Scheme::kSelectiveRepeat{Scheme::Kind::kSelectiveRepeat, 0, 0, false};
inline constexpr Scheme Scheme::kSelectiveRepeatNack{Scheme::Kind::kSelectiveRepeatNack, 0, 0, false};
inline constexpr Scheme Scheme::kAuto{Scheme::Kind::kAuto, 0, 0, false};

/// Parses what to_string() writes. Errors: kInvalidArgument naming the schemes there are, or what is wrong with the
/// code's parameters.
Result<Scheme> parse_scheme(std::string_view text);
std::string to_string(const Scheme& scheme);
/// A scheme as a number, for handshakes: kind | K << 8 | M << 16 | chunk_symbols << 24.
std::uint32_t encode_scheme(const Scheme& scheme);
/// Errors: kProtocol for a number that is no scheme of this version.
Result<Scheme> decode_scheme(std::uint32_t number);
/// Every form that parse_scheme takes, for help texts.
std::string scheme_names();

}  // namespace farhaul::plan
