#include "wire/udp/transmitter.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.hpp"

namespace farhaul::udp {

Transmitter::Transmitter()
    : headers_(kTxBatch * kHeaderBytes),
      parts_(kTxBatch * 2),
      messages_(kTxBatch),
      spans_(kTxBatch),
      controls_(kTxBatch * kControlBytes) {}

std::size_t Transmitter::build(const TxPath& path, const TxFraming& framing,
                               std::span<const sdr::OutgoingPacket> packets, std::span<const std::uint16_t> order,
                               std::size_t from) {
    message_count_ = 0;
    FrameHeader header;
    header.token = framing.token;
    header.type = FrameType::kData;
    header.flags = framing.checksum ? kFlagChecksum : 0;
    std::size_t part = 0;
    std::size_t at = from;
    std::size_t total = 0;
    while (at < order.size() && total < kBuildBytes) {
        const std::size_t segment = kHeaderBytes + packets[order[at]].length;
        const std::size_t first = at;
        const std::size_t first_part = part;
        std::size_t bytes = 0;
        while (at < order.size()) {
            const sdr::OutgoingPacket& packet = packets[order[at]];
            const std::size_t size = kHeaderBytes + packet.length;
            if (at > first && (size > segment || bytes + size > kMaxSuperBytes || at - first == kMaxSegments)) break;
            std::byte* const place = headers_.data() + at * kHeaderBytes;
            header.generation = packet.generation;
            header.immediate = packet.immediate;
            header.crc = 0;
            write_header(place, header);
            if (framing.checksum) {
                header.crc = crc32c(std::span(packet.payload, packet.length),
                                    crc32c(std::span(place + 12, 12), framing.crc_of_token));
                std::memcpy(place + 8, &header.crc, 4);
            }
            parts_[part++] = {place, kHeaderBytes};
            if (packet.length > 0) parts_[part++] = {const_cast<std::byte*>(packet.payload), packet.length};
            bytes += size;
            ++at;
            // A shorter segment can only be the last one.
            if (!path.gso || size < segment) break;
        }
        total += bytes;
        msghdr& message = messages_[message_count_].msg_hdr;
        message = {};
        message.msg_name = const_cast<sockaddr*>(path.to.sockaddr_ptr());
        message.msg_namelen = path.to.length();
        message.msg_iov = &parts_[first_part];
        message.msg_iovlen = part - first_part;
        std::byte* const control = controls_.data() + message_count_ * kControlBytes;
        std::size_t used = path.from.size;
        if (used > 0) std::memcpy(control, path.from.control.data(), used);
        if (at - first > 1) used = append_segment_size(control, used, static_cast<std::uint16_t>(segment));
        if (used > 0) {
            message.msg_control = control;
            message.msg_controllen = used;
        }
        spans_[message_count_++] = {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(at - first)};
    }
    return at;
}

TxResult Transmitter::send(TxPath& path, const TxFraming& framing, std::span<const sdr::OutgoingPacket> packets,
                           std::span<const std::uint16_t> order, UdpWireCounters& counters) {
    TxResult result;
    std::size_t built = build(path, framing, packets, order, 0);
    std::size_t next = 0;  // message
    int attempts = 0;      // for that message
    for (;;) {
        if (next == message_count_) {
            if (built == order.size()) return result;
            built = build(path, framing, packets, order, built);
            next = 0;
        }
        ++counters.send_calls;
        const int sent =
            sendmmsg(path.socket->fd(), &messages_[next], static_cast<unsigned>(message_count_ - next), MSG_NOSIGNAL);
        if (sent > 0) {
            next += static_cast<std::size_t>(sent);
            const Message& last = spans_[next - 1];
            counters.packets_sent += last.first + last.count - result.taken;
            result.taken = last.first + last.count;
            attempts = 0;
            continue;
        }
        const int error = errno;
        const Message& failed = spans_[next];
        if (error == EINTR) continue;
        if (error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM) {
            ++counters.would_block;
            result.stop =
                error == EAGAIN || error == EWOULDBLOCK ? TxResult::Stop::kSocketFull : TxResult::Stop::kNoBuffers;
            return result;
        }
        // The first failure may be an earlier packet's, reported late: it is consumed now, so the second is this
        // message's own.
        if (++attempts == 1) continue;
        if (failed.count > 1 && (error == EIO || error == EINVAL || error == EMSGSIZE)) {
            path.gso = false;
            counters.gso_fallbacks += failed.count;
            log().warn(
                "UDP to {}: the kernel cannot segment packets on this route ({}); sending them one by one, which costs "
                "more CPU",
                path.to.to_string(), std::strerror(error));
            built = build(path, framing, packets, order, failed.first);
            next = 0;
            attempts = 0;
            continue;
        }
        if (error == EMSGSIZE) ++counters.too_big;
        if (error == EMSGSIZE && attempts == 2) {
            path.socket->allow_fragmentation();
            if (!std::exchange(counters.fragmenting, true))
                log().warn(
                    "UDP to {}: the path no longer carries packets of {} bytes; from here on they are fragmented. "
                    "Reconnect to use smaller ones",
                    path.to.to_string(), kHeaderBytes + packets[order[failed.first]].length);
            continue;
        }
        counters.send_errors += failed.count;
        result.error = error;
        result.taken = failed.first + failed.count;
        ++next;
        attempts = 0;
    }
}

}  // namespace farhaul::udp
