#include "wire/udp/blast.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include <poll.h>

#include "wire/udp/endpoint.hpp"
#include "wire/udp/socket.hpp"

namespace farhaul::udp {

namespace {

constexpr std::size_t kPacketsPerCall = 256;
constexpr std::size_t kMaxSegments = 64;
constexpr std::size_t kMaxSuperBytes = 65487;
constexpr std::size_t kReceiveBuffers = 4;

Address loopback() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

Status validate(const BlastOptions& options) {
    if (options.payload_bytes < 64 || options.payload_bytes + options.header_bytes > kMaxSuperBytes)
        return fail(ErrorCode::kInvalidArgument, "payload of {} bytes is out of range", options.payload_bytes);
    if (options.buffer_bytes < options.payload_bytes)
        return fail(ErrorCode::kInvalidArgument, "the buffer must hold at least one payload");
    return {};
}

/// What the two threads share.
struct Progress {
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> sent_bytes{0};
    std::atomic<std::uint64_t> received_bytes{0};
    std::atomic<std::int64_t> sender_cpu_ns{0};
    std::atomic<std::int64_t> receiver_cpu_ns{0};
};

std::int64_t thread_cpu_ns() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

BlastResult finish(BlastResult result, const Progress& progress) {
    const auto per_second = [](std::uint64_t bytes, std::int64_t ns) {
        return ns > 0 ? static_cast<double>(bytes) * 1e9 / static_cast<double>(ns) : 0.0;
    };
    result.sent_bytes_per_cpu_second = per_second(progress.sent_bytes.load(), progress.sender_cpu_ns.load());
    result.received_bytes_per_cpu_second = per_second(progress.received_bytes.load(), progress.receiver_cpu_ns.load());
    return result;
}

/// Lets the threads run in (they first fill their buffers, which takes a slow build long), then reads the counters over
/// `duration`.
BlastResult measure(Progress& progress, const BlastOptions& options) {
    const TimePoint latest = RealLoop::clock() + Duration::from_milliseconds(10'000);
    while (progress.received_bytes.load() == 0 && !progress.stop.load() && RealLoop::clock() < latest)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const std::uint64_t sent = progress.sent_bytes.load(), received = progress.received_bytes.load();
    const TimePoint start = RealLoop::clock();
    std::this_thread::sleep_for(std::chrono::nanoseconds(options.duration.nanoseconds()));
    const std::uint64_t sent_end = progress.sent_bytes.load(), received_end = progress.received_bytes.load();
    const double seconds = (RealLoop::clock() - start).seconds();
    progress.stop.store(true);
    BlastResult result;
    result.bytes_per_second = static_cast<double>(received_end - received) / seconds;
    result.packets_per_second = result.bytes_per_second / options.payload_bytes;
    result.sent_bytes_per_second = static_cast<double>(sent_end - sent) / seconds;
    return result;
}

void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
    counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

void send_bare(UdpSocket& socket, const Address& to, const BlastOptions& options, Progress& progress) {
    std::vector<std::byte> source(options.buffer_bytes, std::byte{0x5a});
    std::vector<std::byte> header(options.header_bytes);
    const std::size_t packet = options.header_bytes + options.payload_bytes;
    const std::size_t per_message =
        options.segmentation_offload && socket.has_gso() ? std::min(kMaxSegments, kMaxSuperBytes / packet) : 1;
    const std::size_t count = kPacketsPerCall / per_message;
    std::vector<iovec> parts(count * per_message * 2);
    std::vector<mmsghdr> messages(count);
    std::vector<std::byte> controls(count * 32);
    std::size_t at = 0;
    const std::int64_t cpu_start = thread_cpu_ns();
    while (!progress.stop.load(std::memory_order_relaxed)) {
        std::size_t part = 0;
        for (std::size_t i = 0; i < count; ++i) {
            msghdr& message = messages[i].msg_hdr;
            message = {};
            message.msg_name = const_cast<sockaddr*>(to.sockaddr_ptr());
            message.msg_namelen = to.length();
            message.msg_iov = &parts[part];
            message.msg_iovlen = per_message * 2;
            if (per_message > 1) {
                message.msg_control = controls.data() + i * 32;
                message.msg_controllen =
                    append_segment_size(controls.data() + i * 32, 0, static_cast<std::uint16_t>(packet));
            }
            for (std::size_t k = 0; k < per_message; ++k) {
                parts[part++] = {header.data(), header.size()};
                parts[part++] = {source.data() + at, options.payload_bytes};
                at += options.payload_bytes;
                if (at + options.payload_bytes > source.size()) at = 0;
            }
        }
        const int sent = sendmmsg(socket.fd(), messages.data(), static_cast<unsigned>(count), 0);
        if (sent > 0) add(progress.sent_bytes, static_cast<std::uint64_t>(sent) * per_message * options.payload_bytes);
    }
    progress.sender_cpu_ns.store(thread_cpu_ns() - cpu_start);
}

void receive_bare(UdpSocket& socket, const BlastOptions& options, Progress& progress) {
    std::vector<std::byte> target(options.buffer_bytes);
    std::vector<std::byte> buffers(kReceiveBuffers * 65536);
    std::vector<std::byte> controls(kReceiveBuffers * kReceiveControlBytes);
    std::vector<iovec> parts(kReceiveBuffers);
    std::vector<mmsghdr> messages(kReceiveBuffers);
    std::size_t at = 0;
    const std::int64_t cpu_start = thread_cpu_ns();
    while (!progress.stop.load(std::memory_order_relaxed)) {
        for (std::size_t i = 0; i < kReceiveBuffers; ++i) {
            parts[i] = {buffers.data() + i * 65536, 65536};
            messages[i] = {};
            messages[i].msg_hdr.msg_iov = &parts[i];
            messages[i].msg_hdr.msg_iovlen = 1;
            messages[i].msg_hdr.msg_control = controls.data() + i * kReceiveControlBytes;
            messages[i].msg_hdr.msg_controllen = kReceiveControlBytes;
        }
        const int count = recvmmsg(socket.fd(), messages.data(), kReceiveBuffers, MSG_DONTWAIT, nullptr);
        if (count <= 0) {
            pollfd fd{socket.fd(), POLLIN, 0};
            poll(&fd, 1, 1);
            continue;
        }
        std::uint64_t bytes = 0;
        for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
            const std::size_t length = messages[i].msg_len;
            const std::uint32_t merged = read_control(messages[i].msg_hdr).segment_bytes;
            const std::size_t segment = merged == 0 ? length : merged;
            for (std::size_t begin = 0; begin + options.header_bytes < length; begin += segment) {
                const std::size_t payload = std::min(segment, length - begin) - options.header_bytes;
                std::memcpy(target.data() + at, buffers.data() + i * 65536 + begin + options.header_bytes, payload);
                at += payload;
                if (at + options.payload_bytes > target.size()) at = 0;
                bytes += payload;
            }
        }
        add(progress.received_bytes, bytes);
    }
    progress.receiver_cpu_ns.store(thread_cpu_ns() - cpu_start);
}

/// Copies each payload into place, as a message table does.
class CopyingSink final : public sdr::WireSink {
 public:
    CopyingSink(std::uint64_t buffer_bytes, std::uint32_t payload_bytes, Progress& progress)
        : target_(buffer_bytes),
          slots_(buffer_bytes / payload_bytes),
          payload_bytes_(payload_bytes),
          progress_(progress) {}
    void on_arrivals(std::uint32_t, std::span<const sdr::Arrival> arrivals) override {
        std::uint64_t bytes = 0;
        for (const sdr::Arrival& arrival : arrivals) {
            std::memcpy(target_.data() + arrival.immediate % slots_ * payload_bytes_, arrival.payload, arrival.length);
            bytes += arrival.length;
        }
        add(progress_.received_bytes, bytes);
    }
    void on_datagram(std::span<const std::byte>) override {}
    void on_writable() override { writable = true; }
    void on_wire_error(const Error&) override { progress_.stop.store(true); }
    bool writable = true;

 private:
    std::vector<std::byte> target_;
    std::uint64_t slots_;
    std::uint32_t payload_bytes_;
    Progress& progress_;
};

/// One end of the wire: its loop, endpoint and connection, all used by one thread at a time.
struct WireEnd {
    std::unique_ptr<RealLoop> loop;
    std::unique_ptr<UdpEndpoint> endpoint;
    std::unique_ptr<UdpWire> wire;

    Status open(const BlastOptions& options) {
        auto made = RealLoop::create();
        if (!made) return propagate(made);
        loop = std::move(*made);
        UdpOptions udp;
        udp.bind = loopback();
        udp.gso = udp.gro = options.segmentation_offload;
        auto opened = UdpEndpoint::open(*loop, udp);
        if (!opened) return propagate(opened);
        endpoint = std::move(*opened);
        return {};
    }
};

void send_wire(WireEnd& end, const BlastOptions& options, Progress& progress) {
    std::vector<std::byte> source(options.buffer_bytes, std::byte{0x5a});
    CopyingSink sink(options.payload_bytes, options.payload_bytes, progress);
    end.wire->attach(&sink);
    std::vector<sdr::OutgoingPacket> packets(kPacketsPerCall);
    const auto slots = static_cast<std::uint32_t>(options.buffer_bytes / options.payload_bytes);
    std::uint32_t next = 0;
    const std::int64_t cpu_start = thread_cpu_ns();
    while (!progress.stop.load(std::memory_order_relaxed)) {
        for (auto& packet : packets) {
            packet = {source.data() + std::uint64_t{next} * options.payload_bytes, options.payload_bytes, next, 0, 0};
            next = next + 1 == slots ? 0 : next + 1;
        }
        const std::size_t taken = end.wire->tx_burst(packets);
        add(progress.sent_bytes, taken * options.payload_bytes);
        if (taken < packets.size()) sink.writable = false;
        do end.loop->run_once(sink.writable ? Duration{} : Duration::from_milliseconds(1));
        while (!sink.writable && !progress.stop.load(std::memory_order_relaxed));
    }
    end.wire->attach(nullptr);
    progress.sender_cpu_ns.store(thread_cpu_ns() - cpu_start);
}

}  // namespace

Result<BlastResult> run_blast(const BlastOptions& options) {
    if (auto ok = validate(options); !ok) return propagate(ok);
    SocketOptions socket_options;
    socket_options.bind = loopback();
    socket_options.gso = socket_options.gro = options.segmentation_offload;
    auto sender = UdpSocket::open(socket_options);
    if (!sender) return propagate(sender);
    auto receiver = UdpSocket::open(socket_options);
    if (!receiver) return propagate(receiver);
    Progress progress;
    std::thread receiving([&] { receive_bare(*receiver, options, progress); });
    std::thread sending([&] { send_bare(*sender, receiver->local(), options, progress); });
    const BlastResult result = measure(progress, options);
    sending.join();
    receiving.join();
    return finish(result, progress);
}

Result<BlastResult> run_wire_blast(const BlastOptions& options) {
    if (auto ok = validate(options); !ok) return propagate(ok);
    if (options.payload_bytes > kMaxPayloadBytes)
        return fail(ErrorCode::kInvalidArgument, "payload of {} bytes is out of range", options.payload_bytes);
    WireEnd sender, receiver;
    if (auto ok = sender.open(options); !ok) return propagate(ok);
    if (auto ok = receiver.open(options); !ok) return propagate(ok);
    ConnectParameters parameters;
    parameters.payload_bytes = options.payload_bytes;
    parameters.checksum = options.checksum;
    const auto info = receiver.endpoint->local_info(parameters), peer = sender.endpoint->local_info(parameters);
    auto rx = receiver.endpoint->create_wire(info, peer);
    if (!rx) return propagate(rx);
    auto tx = sender.endpoint->create_wire(peer, info);
    if (!tx) return propagate(tx);
    receiver.wire = std::move(*rx);
    sender.wire = std::move(*tx);
    Progress progress;
    CopyingSink sink(options.buffer_bytes, options.payload_bytes, progress);
    receiver.wire->attach(&sink);
    std::thread receiving([&] {
        const std::int64_t cpu_start = thread_cpu_ns();
        while (!progress.stop.load(std::memory_order_relaxed)) receiver.loop->run_once(Duration::from_milliseconds(1));
        progress.receiver_cpu_ns.store(thread_cpu_ns() - cpu_start);
    });
    std::thread sending([&] { send_wire(sender, options, progress); });
    const BlastResult result = measure(progress, options);
    sending.join();
    receiving.join();
    receiver.wire->attach(nullptr);
    return finish(result, progress);
}

}  // namespace farhaul::udp
