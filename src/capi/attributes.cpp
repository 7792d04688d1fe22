// From the attributes of the C structs to a queue pair's configuration.
#include <algorithm>

#include "capi/call.hpp"
#include "capi/queue_pair.hpp"
#include "wire/udp/parameters.hpp"

namespace farhaul::capi {

namespace {

/// What both kinds of attributes have in common, checked when all is filled in.
Result<QpParameters> validate(QpParameters parameters) {
    const auto& config = parameters.config;
    if (!config.send_enable && !config.receive_enable)
        return fail(ErrorCode::kInvalidArgument,
                    "neither send_enable nor recv_enable is set: such a queue pair can do nothing");
    const std::uint64_t most = std::uint64_t{config.layout.max_packets()} * config.payload_bytes;
    if (config.max_message_bytes > most)
        return fail(ErrorCode::kInvalidArgument,
                    "messages of {} bytes need more packets than the {} that a packet index of {} bits can number: at "
                    "most {} bytes with {}-byte "
                    "packets",
                    config.max_message_bytes, config.layout.max_packets(), config.layout.packet_bits, most,
                    config.payload_bytes);
    return parameters;
}

}  // namespace

Result<QpParameters> read_attributes(const sdr_qp_attr& attributes) {
    QpParameters parameters;
    auto& config = parameters.config;
    const unsigned mtu = number_in(attributes.mtu);
    if (mtu > SDR_MTU_4096) return fail(ErrorCode::kInvalidArgument, "mtu is {}: use SDR_MTU_64 .. SDR_MTU_4096", mtu);
    const std::uint32_t log_mtu = 6 + mtu;
    config.payload_bytes = 1u << log_mtu;
    const std::uint32_t log_chunk = attributes.bitmap_chunk_size_log_bytes;
    if (log_chunk < log_mtu || log_chunk > log_mtu + 6)
        return fail(ErrorCode::kInvalidArgument,
                    "bitmap_chunk_size_log_bytes is {}: a chunk has 1 to 64 packets, which is {} to {} with packets of "
                    "{} bytes",
                    log_chunk, log_mtu, log_mtu + 6, config.payload_bytes);
    config.packets_per_chunk = 1u << (log_chunk - log_mtu);
    if (attributes.max_log_num_msgs > config.layout.message_bits)
        return fail(ErrorCode::kInvalidArgument, "max_log_num_msgs is {}: at most {}, which is {} messages",
                    attributes.max_log_num_msgs, config.layout.message_bits, config.layout.message_ids());
    config.max_messages = 1u << attributes.max_log_num_msgs;
    const std::size_t log_flight = attributes.max_in_flight_log_bytes;
    if (log_flight < attributes.max_log_num_msgs + log_chunk || log_flight > 63)
        return fail(ErrorCode::kInvalidArgument,
                    "max_in_flight_log_bytes is {}: 2^max_log_num_msgs messages of at least a chunk need {} or more "
                    "(at most 63)",
                    log_flight, attributes.max_log_num_msgs + log_chunk);
    config.max_message_bytes = std::uint64_t{1} << (log_flight - attributes.max_log_num_msgs);
    config.send_enable = attributes.send_enable != 0;
    config.receive_enable = attributes.recv_enable != 0;
    config.rate_limit = BitRate::from_bits_per_second(std::uint64_t{attributes.rate_limit} * 1'000'000);
    return validate(parameters);
}

Result<QpParameters> read_attributes(const sdr_qp_attr_ext& attributes) {
    if (attributes.struct_size < sizeof(sdr_qp_attr_ext))
        return fail(ErrorCode::kInvalidArgument,
                    "struct_size is {}: set it to sizeof(struct sdr_qp_attr_ext), which is {}", attributes.struct_size,
                    sizeof(sdr_qp_attr_ext));
    if (attributes.reserved0 != 0 || attributes.reserved1[0] != 0 || attributes.reserved1[1] != 0)
        return fail(ErrorCode::kInvalidArgument, "a reserved field is not 0: clear the struct before filling it in");
    QpParameters parameters;
    auto& config = parameters.config;
    if (attributes.immediate_message_bits != 0 || attributes.immediate_packet_bits != 0 ||
        attributes.immediate_fragment_bits != 0) {
        config.layout = {attributes.immediate_message_bits, attributes.immediate_packet_bits,
                         attributes.immediate_fragment_bits};
        if (auto ok = config.layout.validate(); !ok) return propagate(ok);
    }
    if (attributes.payload_bytes != 0) config.payload_bytes = attributes.payload_bytes;
    if (config.payload_bytes < 64 || config.payload_bytes > udp::kMaxPayloadBytes)
        return fail(ErrorCode::kInvalidArgument, "payload_bytes is {}: use 64 to {}", config.payload_bytes,
                    udp::kMaxPayloadBytes);
    if (attributes.packets_per_chunk != 0) config.packets_per_chunk = attributes.packets_per_chunk;
    if (config.packets_per_chunk > 64)
        return fail(ErrorCode::kInvalidArgument, "packets_per_chunk is {}: use 1 to 64", config.packets_per_chunk);
    config.max_messages =
        attributes.max_messages != 0 ? attributes.max_messages : std::min(64u, config.layout.message_ids());
    if (config.max_messages > config.layout.message_ids())
        return fail(ErrorCode::kInvalidArgument, "max_messages is {}: a message id of {} bits can tell {} apart",
                    config.max_messages, config.layout.message_bits, config.layout.message_ids());
    const std::uint64_t most = std::uint64_t{config.layout.max_packets()} * config.payload_bytes;
    config.max_message_bytes =
        attributes.max_message_bytes != 0 ? attributes.max_message_bytes : std::min<std::uint64_t>(16u << 20, most);
    config.rate_limit = BitRate::from_bits_per_second(attributes.rate_limit_bps);
    constexpr std::uint64_t kLongest = 3'600'000'000'000;  // an hour
    if (attributes.initial_rtt_ns > kLongest || attributes.control_timeout_ns > kLongest)
        return fail(ErrorCode::kInvalidArgument,
                    "initial_rtt_ns is {} and control_timeout_ns is {}: neither may exceed an hour",
                    attributes.initial_rtt_ns, attributes.control_timeout_ns);
    const auto duration = [](std::uint64_t ns) { return Duration::from_nanoseconds(static_cast<std::int64_t>(ns)); };
    if (attributes.initial_rtt_ns != 0) config.initial_rtt = duration(attributes.initial_rtt_ns);
    if (attributes.control_timeout_ns != 0) config.control_timeout = duration(attributes.control_timeout_ns);
    config.send_enable = attributes.send_enable != 0;
    config.receive_enable = attributes.recv_enable != 0;
    parameters.checksum = attributes.checksum_disable == 0;
    return validate(parameters);
}

}  // namespace farhaul::capi
