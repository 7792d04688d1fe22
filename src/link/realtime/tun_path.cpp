#include "link/realtime/tun_path.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/random.hpp"

namespace farhaul::link {
namespace {

constexpr std::size_t kBufferBytes = sizeof(VnetHeader) + 65536 + 64;
constexpr int kReadsPerStep = 64;  // then what is due gets its turn
constexpr std::uint32_t kMaxMergedPayload = 64'000;
constexpr std::size_t kMaxSpare = 1024;

// Flips a bit behind the IP header, of which checksums other than IPv4's own take notice.
void corrupt(std::vector<std::byte>& built, std::uint64_t seed) {
    complete_checksum(built);
    const bool ipv6 = std::to_integer<unsigned>(built[sizeof(VnetHeader)]) >> 4 == 6;
    const std::size_t begin = sizeof(VnetHeader) + (ipv6 ? 40 : 20);
    if (built.size() <= begin) return;
    const std::uint64_t bit = Random(seed).below((built.size() - begin) * 8);
    built[begin + bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
}

}  // namespace

Result<std::unique_ptr<TunPath>> TunPath::create(const TunConfig& a, const TunConfig& b, LinkPair models) {
    auto first = TunDevice::open(a);
    if (!first) return propagate(first);
    auto second = TunDevice::open(b);
    if (!second) return propagate(second);
    return std::unique_ptr<TunPath>(new TunPath(std::move(*first), std::move(*second), std::move(models)));
}

TunPath::TunPath(TunDevice a, TunDevice b, LinkPair models)
    : models_{std::move(models.forward), std::move(models.backward)},
      devices_{std::move(a), std::move(b)},
      buffer_(std::make_unique<std::byte[]>(kBufferBytes)) {
    merge_udp_ = devices_[0].offloads() == "TCP and UDP" && devices_[1].offloads() == devices_[0].offloads();
    if (!merge_udp_)
        notes_.push_back(fmt::format(
            "the kernel segments {} on TUN devices, not UDP: expect at most about 100,000 UDP packets per second",
            devices_[0].offloads()));
}

void TunPath::note(bool& said, std::string text) {
    if (!said) notes_.push_back(std::move(text));
    said = true;
}

Status TunPath::step(Duration longest_wait) {
    now_ = clock_.now();
    const TimePoint next_due = std::min(lanes_[kForward].line.next_due(), lanes_[kBackward].line.next_due());
    const Duration until_due = next_due > now_ ? next_due - now_ : Duration();
    std::array<pollfd, 2> descriptors{pollfd{devices_[0].fd(), POLLIN, 0}, pollfd{devices_[1].fd(), POLLIN, 0}};
    // While packets flow, sleep without watching the devices and take what came meanwhile as one batch.
    if (received_last_step_)
        stalls_.wait(clock_, {}, std::min(kNap, longest_wait));
    else
        stalls_.wait(clock_, descriptors, std::min(std::max(until_due, kNap), longest_wait));
    received_last_step_ = false;
    for (std::size_t side = 0; side < 2; ++side) {
        if (auto ok = read_from(side); !ok) return ok;
        deliver(kForward);
        deliver(kBackward);
    }
    return {};
}

Status TunPath::read_from(std::size_t side) {
    for (int i = 0; i < kReadsPerStep; ++i) {
        const std::ptrdiff_t n = devices_[side].read({buffer_.get(), kBufferBytes});
        if (n == 0) return {};
        if (n < 0) return fail_errno(static_cast<int>(-n), fmt::format("device {} is gone", devices_[side].name()));
        if (i % 16 == 0) now_ = clock_.now();
        received_last_step_ = true;
        enter(side == 0 ? kForward : kBackward, {buffer_.get(), static_cast<std::size_t>(n)});
    }
    return {};
}

std::vector<std::byte> TunPath::take_buffer() {
    if (spare_.empty()) return {};
    auto buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
}

void TunPath::enter(Direction direction, std::span<const std::byte> received) {
    Lane& lane = lanes_[direction];
    VnetHeader vnet;
    if (received.size() < sizeof vnet) {
        ++lane.report.unusable_packets;
        return;
    }
    std::memcpy(&vnet, received.data(), sizeof vnet);
    const auto packet = received.subspan(sizeof vnet);
    const auto layout = parse_super_packet(vnet, packet);
    if (!layout) {
        ++lane.report.unusable_packets;
        return;
    }
    const auto size_of = [&](std::uint32_t i) { return layout->segment_bytes(i); };
    split_into_runs(models_[direction], now_, layout->segments, size_of, [&](const Run& run) {
        Packet p{take_buffer(), run.count, run.first_due, run.last_due};
        build_run(vnet, *layout, packet, run.first, run.count, p.built);
        // Which bit is flipped follows from the packet's number, so that a seed replays.
        if (run.corrupted) corrupt(p.built, models_[direction].counters().corrupted);
        lane.pending_segments += p.segments;
        lane.line.push(run.last_due, run.in_order, std::move(p));
    });
}

// Collects what leaves with the next write: a run, or several of one UDP flow. Returns how many of the line's items it
// takes.
std::size_t TunPath::gather(Lane& lane, std::size_t& parts) {
    Packet& first = lane.line.front();
    io_[0] = iovec{first.built.data(), first.built.size()};
    parts = 1;
    if (!merge_udp_ || lane.line.nth_in_order(0) == nullptr) return 1;
    const UdpSegment head = describe_udp(first.built);
    if (!head.mergeable) return 1;
    std::uint32_t payload = head.payload_bytes, segments = first.segments;
    while (parts < kMaxMerged && payload % head.segment_payload == 0) {
        const Packet* next = lane.line.nth_in_order(parts);
        if (next == nullptr || next->last_due > now_) break;
        const UdpSegment u = describe_udp(next->built);
        const bool fits = u.mergeable && (next->segments == 1 ? u.payload_bytes <= head.segment_payload
                                                              : u.segment_payload == head.segment_payload);
        if (!fits || payload + u.payload_bytes > kMaxMergedPayload || segments + next->segments > kMaxMerged ||
            !same_udp_flow(first.built, next->built, head))
            break;
        io_[parts++] = iovec{const_cast<std::byte*>(next->built.data()) + u.header_bytes, u.payload_bytes};
        payload += u.payload_bytes;
        segments += next->segments;
    }
    if (parts > 1) finish_udp_merge(std::span(first.built).first(head.header_bytes), payload, head.segment_payload);
    return parts;
}

void TunPath::deliver(Direction direction) {
    Lane& lane = lanes_[direction];
    const TunDevice& out = devices_[direction == kForward ? 1 : 0];
    now_ = clock_.now();
    for (int writes = 0; lane.line.next_due() <= now_; ++writes) {
        if (writes % 16 == 15) now_ = clock_.now();
        std::size_t parts = 0;
        const std::size_t items = gather(lane, parts);
        const int error = out.write({io_.data(), parts});
        if (error != 0)
            note(said_write_error_, fmt::format("device {} refused a packet: {}{}", out.name(), std::strerror(error),
                                                error == EIO ? " (is it up?)" : ""));
        for (std::size_t i = 0; i < items; ++i) {
            Packet& p = lane.line.front();
            for (std::uint32_t k = 0; error == 0 && k < p.segments; ++k) {
                const TimePoint due =
                    p.segments < 2 ? p.last_due : p.first_due + (p.last_due - p.first_due) * k / (p.segments - 1);
                lane.report.lateness.add(now_ - due);
            }
            (error == 0 ? lane.report.sent_packets : lane.report.lost_after_model) += p.segments;
            lane.pending_segments -= p.segments;
            if (spare_.size() < kMaxSpare) spare_.push_back(std::move(p.built));
            lane.line.pop();
        }
    }
}

ForwarderReport TunPath::report() {
    ForwarderReport r;
    r.running = clock_.now() - TimePoint();
    r.cpu = clock_.cpu();
    r.longest_stall = stalls_.longest();
    r.notes = notes_;
    for (const Direction d : {kForward, kBackward}) {
        const TunDevice& in = devices_[d == kForward ? 0 : 1];
        const TunDevice& out = devices_[d == kForward ? 1 : 0];
        r.directions[d] = lanes_[d].report;
        r.directions[d].model = models_[d].counters();
        r.directions[d].waiting_packets = lanes_[d].pending_segments;
        r.directions[d].lost_before_model = in.dropped_before_read();
        r.directions[d].lost_after_model += out.dropped_after_write();
    }
    return r;
}

}  // namespace farhaul::link
