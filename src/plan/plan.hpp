// Which reliability scheme suits a transfer: what each would take, in time, bytes and cores, and the one to use.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/units.hpp"
#include "plan/loss.hpp"
#include "plan/scheme.hpp"

namespace farhaul::plan {

/// What is compared unless told otherwise: auto, sr, sr-nack, ec:32,8, ec-xor:32,8, and codes with less and more
/// parity.
std::vector<Scheme> default_schemes();

struct PlanInput {
    std::uint64_t bytes = 0;   ///< of the message, at least 1
    BitRate rate;              ///< not unlimited
    Duration rtt;              ///< above 0
    PacketLoss loss = {};      ///< of packets; probability below 1
    std::uint32_t mtu = 4096;  ///< payload bytes of a packet
    std::uint32_t chunk_bytes =
        4096;                  ///< what sr and sr-nack repeat and what `/chunk` schemes code; a multiple of the MTU
    double rto_rtts = 3;       ///< timeout of `sr`; `sr-nack` has 1
    double fallback_rtts = 1;  ///< a coded message gives up on parity so long after its last chunk is due
    double mds_bytes_per_second = 0;  ///< what one core encodes; 0: cores are not told
    double xor_bytes_per_second = 0;
    std::uint64_t seed = 1;  ///< of the simulation, used for bursts
};

struct Prediction {
    Scheme scheme;
    double mean = 0, p999 = 0;  ///< seconds from the first packet to the acknowledgement of all
    double parity_bytes = 0;    ///< sent in any case
    double resent_bytes = 0;    ///< expected
    double encode_cores = 0;    ///< busy while the message is sent at the link's rate
    double failure = 0;         ///< of coded schemes: probability that some block needs the fallback
    bool simulated = false;     ///< drawn, not computed
    double overhead_bytes() const { return parity_bytes + resent_bytes; }
};

struct Plan {
    std::vector<Prediction> predictions;  ///< in the order of the schemes given
    std::size_t pick = 0;
    std::string reason;  ///< one line
    double bound = 0;    ///< seconds that no scheme beats: size / rate / (1 - packet loss) + RTT
    double chunk_loss = 0;
};

/// Cores that encoding keeps busy while the message leaves at the link's rate, when one encodes `bytes_per_second` of
/// data.
double encode_cores(const PlanInput& input, const Scheme& scheme, double bytes_per_second);

/// Errors: kInvalidArgument saying which number is out of range.
Result<Prediction> predict(const PlanInput& input, const Scheme& scheme);
Result<Plan> plan(const PlanInput& input, std::span<const Scheme> schemes);

}  // namespace farhaul::plan
