#include "wire/udp/parameters.hpp"

#include <algorithm>

namespace farhaul::udp {

Status ConnectParameters::validate() const {
    if (payload_bytes < 64 || payload_bytes > kMaxPayloadBytes)
        return fail(ErrorCode::kInvalidArgument, "payload of {} bytes per packet is out of range (64..{})",
                    payload_bytes, kMaxPayloadBytes);
    if (packets_per_chunk < 1 || packets_per_chunk > 64)
        return fail(ErrorCode::kInvalidArgument, "{} packets per chunk is out of range (1..64)", packets_per_chunk);
    if (auto ok = layout.validate(); !ok) return ok;
    if (max_messages < 1 || max_messages > layout.message_ids())
        return fail(ErrorCode::kInvalidArgument,
                    "{} messages in flight is out of range (1..{} with {} bits of message id)", max_messages,
                    layout.message_ids(), layout.message_bits);
    if (max_message_bytes < 1) return fail(ErrorCode::kInvalidArgument, "a largest message of 0 bytes carries nothing");
    if (channels < 1 || channels > kMaxChannels)
        return fail(ErrorCode::kInvalidArgument, "{} channels is out of range (1..{})", channels, kMaxChannels);
    return {};
}

ConnectParameters negotiate(const ConnectParameters& requested, const ConnectParameters& offered) {
    ConnectParameters agreed = requested;
    agreed.payload_bytes = std::min(requested.payload_bytes, offered.payload_bytes);
    agreed.max_messages = std::min(requested.max_messages, offered.max_messages);
    agreed.max_message_bytes = std::min(requested.max_message_bytes, offered.max_message_bytes);
    agreed.checksum = requested.checksum || offered.checksum;
    agreed.channels = std::min(requested.channels, offered.channels);
    return agreed;
}

}  // namespace farhaul::udp
