#include "wire/udp/receiver.hpp"

#include <cerrno>

namespace farhaul::udp {

Receiver::Receiver(std::uint32_t channel, UdpSocket& socket, const TokenTable& table, OtherFrames& others)
    : channel_(channel),
      socket_(socket),
      table_(table),
      others_(others),
      buffers_(kBuffers * kBufferBytes),
      messages_(kBuffers),
      parts_(kBuffers),
      names_(kBuffers),
      controls_(kBuffers * kReceiveControlBytes),
      arrivals_(kMaxArrivals) {
    for (std::size_t i = 0; i < kBuffers; ++i) {
        parts_[i] = {buffers_.data() + i * kBufferBytes, kBufferBytes};
        messages_[i].msg_hdr.msg_iov = &parts_[i];
        messages_[i].msg_hdr.msg_iovlen = 1;
        messages_[i].msg_hdr.msg_name = &names_[i];
        messages_[i].msg_hdr.msg_control = controls_.data() + i * kReceiveControlBytes;
    }
}

Receiver::Outcome Receiver::receive(TimePoint now) {
    for (mmsghdr& message : messages_) {
        message.msg_hdr.msg_namelen = sizeof(sockaddr_storage);
        message.msg_hdr.msg_controllen = kReceiveControlBytes;
    }
    const int count = recvmmsg(socket_.fd(), messages_.data(), kBuffers, MSG_DONTWAIT, nullptr);
    if (count <= 0) return count < 0 && errno != EAGAIN && errno != EINTR ? Outcome::kError : Outcome::kIdle;
    now_ = now;
    target_ = nullptr;
    batch_frames_ = batch_bytes_ = 0;
    new_address_told_ = false;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        const msghdr& message = messages_[i].msg_hdr;
        const std::size_t length = messages_[i].msg_len;
        const ReceivedControl control = read_control(message);
        if (control.dropped && *control.dropped != dropped_before_) {
            counters_.kernel_drops.add(*control.dropped - dropped_before_);  // modulo 2^32, as the kernel counts
            dropped_before_ = *control.dropped;
        }
        if ((message.msg_flags & MSG_TRUNC) != 0) {
            counters_.truncated.add(1);
            continue;
        }
        const Address from =
            Address::from_sockaddr(static_cast<const sockaddr*>(message.msg_name), message.msg_namelen);
        from_fingerprint_ = from.fingerprint();
        const std::size_t segment = control.segment_bytes == 0 ? length : control.segment_bytes;
        const std::span<const std::byte> all(static_cast<const std::byte*>(parts_[i].iov_base), length);
        if (length == 0) counters_.malformed.add(1);
        for (std::size_t at = 0; at < length; at += segment)
            on_frame(all.subspan(at, std::min(segment, length - at)), from, message);
    }
    flush();
    counters_.frames.add(batch_frames_);
    counters_.bytes.add(batch_bytes_);
    return Outcome::kReceived;
}

void Receiver::on_frame(std::span<const std::byte> frame, const Address& from, const msghdr& message) {
    if (frame.size() < kHeaderBytes) return counters_.malformed.add(1);
    const FrameHeader header = read_header(frame.data());
    if (target_ == nullptr || target_->token != header.token) {
        flush();
        target_ = table_.find(header.token);
    }
    if (target_ == nullptr || header.type != FrameType::kData) {
        // In order: the sink sees the data that came before a control datagram before it.
        flush();
        others_.on_other_frame(channel_, frame, from, message);
        return;
    }
    switch (check_frame(frame, header, target_->crc_of_token, !target_->checksum)) {
        case FrameCheck::kMalformed:
            return counters_.malformed.add(1);
        case FrameCheck::kCorrupt:
            return counters_.corrupt.add(1);
        case FrameCheck::kOk:
            break;
    }
    if (frame.size() - kHeaderBytes > target_->payload_bytes || channel_ >= target_->channels)
        return counters_.malformed.add(1);
    if (target_->peers[channel_].load(std::memory_order_relaxed) != from_fingerprint_ && !new_address_told_ &&
        (header.flags & kFlagChecksum) != 0) [[unlikely]] {
        new_address_told_ = true;
        others_.on_new_address(channel_, header.token, from, message);
    }
    if (arrival_count_ == kMaxArrivals) {
        ReceiveTarget* const same = target_;
        flush();
        // The sink may have closed the connection; looking it up again is the only safe way to go on.
        target_ = table_.find(header.token);
        if (target_ != same) return counters_.early.add(1);
    }
    arrivals_[arrival_count_++] = {frame.data() + kHeaderBytes, static_cast<std::uint32_t>(frame.size() - kHeaderBytes),
                                   header.immediate, header.generation};
    ++batch_frames_;
    batch_bytes_ += frame.size();
}

void Receiver::flush() {
    if (arrival_count_ > 0) {
        const std::span<const sdr::Arrival> arrivals(arrivals_.data(), arrival_count_);
        arrival_count_ = 0;
        sdr::WireSink* const sink = target_->sink.load(std::memory_order_seq_cst);
        target_->last_heard_ns.store(now_.nanoseconds(), std::memory_order_relaxed);
        if (sink == nullptr) {
            counters_.early.add(arrivals.size());
        } else {
            target_->packets.fetch_add(arrivals.size(), std::memory_order_relaxed);
            target_->calls.fetch_add(1, std::memory_order_relaxed);
            sink->on_arrivals(channel_, arrivals);  // may destroy the connection, and the target with it
        }
    }
    target_ = nullptr;
}

}  // namespace farhaul::udp
