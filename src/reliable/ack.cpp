#include "reliable/ack.hpp"

#include <algorithm>
#include <string>

namespace farhaul::reliable {
namespace {

constexpr std::uint8_t kGoBackFlag = 1;
constexpr std::size_t kVarintBytes = 5;
// Everything of a section but its runs: sequence, flags, first, end, number of runs.
constexpr std::size_t kSectionHeaderBytes = 3 * kVarintBytes + 1 + 2;

std::uint32_t read_varint(ByteReader& reader, bool& ok) {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 7 * kVarintBytes; shift += 7) {
        const auto byte = reader.read<std::uint8_t>();
        value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            ok = ok && reader.ok() && value <= 0xffffffffu;
            return static_cast<std::uint32_t>(value);
        }
    }
    ok = false;
    return 0;
}

void append_varint(std::vector<std::byte>& out, std::uint64_t value) {
    while (value >= 0x80) {
        out.push_back(static_cast<std::byte>(value | 0x80));
        value >>= 7;
    }
    out.push_back(static_cast<std::byte>(value));
}

}  // namespace

bool decode_ack(std::span<const std::byte> datagram, Ack& ack) {
    ByteReader reader(datagram);
    ack.sections.clear();
    ack.missing.clear();
    ack.completed_ahead.clear();
    if (reader.read<std::uint8_t>() != static_cast<std::uint8_t>(DatagramKind::kAck)) return false;
    ack.event = reader.read<std::uint32_t>();
    ack.probe = reader.read<std::uint32_t>();
    ack.rebuilt = reader.read<std::uint32_t>();
    ack.rebuilt_bursts = reader.read<std::uint32_t>();
    ack.completed_below = reader.read<std::uint64_t>();
    const auto bitmap_bytes = reader.read<std::uint8_t>();
    const auto bitmap = reader.read_bytes(bitmap_bytes);
    if (!reader.ok()) return false;
    ack.completed_ahead.resize((bitmap.size() + 7) / 8);
    for (std::size_t i = 0; i < bitmap.size(); ++i)
        ack.completed_ahead[i / 8] |= static_cast<std::uint64_t>(bitmap[i]) << (i % 8 * 8);
    bool ok = true;
    while (reader.remaining() > 0) {
        AckSection section;
        section.sequence = ack.completed_below + read_varint(reader, ok);
        const auto flags = reader.read<std::uint8_t>();
        section.go_back = flags & kGoBackFlag;
        section.first = read_varint(reader, ok);
        const std::uint32_t covered = read_varint(reader, ok);
        section.runs = reader.read<std::uint16_t>();
        section.first_run = static_cast<std::uint32_t>(ack.missing.size());
        if (!ok || !reader.ok() || flags > kGoBackFlag || section.first > kMaxPacketsPerMessage ||
            covered > kMaxPacketsPerMessage)
            return false;
        section.end = section.first + covered;
        std::uint64_t position = section.first;
        for (std::uint32_t i = 0; i < section.runs; ++i) {
            const std::uint32_t gap = read_varint(reader, ok);
            const std::uint32_t count = read_varint(reader, ok);
            position += gap;
            if (!ok || count == 0 || position + count > section.end) return false;
            ack.missing.push_back({static_cast<std::uint32_t>(position), count});
            position += count;
        }
        ack.sections.push_back(section);
    }
    return reader.ok();
}

std::uint32_t decode_probe(std::span<const std::byte> datagram) {
    ByteReader reader(datagram);
    if (reader.read<std::uint8_t>() != static_cast<std::uint8_t>(DatagramKind::kProbe)) return 0;
    const auto id = reader.read<std::uint32_t>();
    return reader.ok() && reader.remaining() == 0 ? id : 0;
}

bool decode_abort(std::span<const std::byte> datagram, Error& error) {
    ByteReader reader(datagram);
    if (reader.read<std::uint8_t>() != static_cast<std::uint8_t>(DatagramKind::kAbort)) return false;
    const auto code = reader.read<std::uint8_t>();
    if (!reader.ok() || code > static_cast<std::uint8_t>(ErrorCode::kUnsupported)) return false;
    const auto text = reader.read_bytes(std::min<std::size_t>(reader.remaining(), 200));
    error.code = static_cast<ErrorCode>(code);
    error.message.clear();
    for (std::byte b : text) {  // the peer's words end up on somebody's terminal
        const char c = static_cast<char>(b);
        error.message.push_back(c >= ' ' && c < 0x7f ? c : '?');
    }
    return true;
}

void encode_probe(std::uint32_t id, std::vector<std::byte>& out) {
    out.clear();
    ByteWriter writer(out);
    writer.write(static_cast<std::uint8_t>(DatagramKind::kProbe));
    writer.write(id);
}

void encode_abort(const Error& error, std::vector<std::byte>& out) {
    out.clear();
    ByteWriter writer(out);
    writer.write(static_cast<std::uint8_t>(DatagramKind::kAbort));
    writer.write(static_cast<std::uint8_t>(error.code));
    writer.write_bytes(std::as_bytes(std::span(error.message)).first(std::min<std::size_t>(error.message.size(), 200)));
}

void AckEncoder::begin(const AckReport& report, std::span<const std::uint64_t> completed_ahead) {
    bytes_.clear();
    completed_below_ = report.completed_below;
    ByteWriter writer(bytes_);
    writer.write(static_cast<std::uint8_t>(DatagramKind::kAck));
    writer.write(report.event);
    writer.write(report.probe);
    writer.write(report.rebuilt);
    writer.write(report.rebuilt_bursts);
    writer.write(report.completed_below);
    auto bitmap = std::as_bytes(completed_ahead);
    bitmap = bitmap.first(std::min<std::size_t>(bitmap.size(), 255));
    while (!bitmap.empty() && bitmap.back() == std::byte{0}) bitmap = bitmap.first(bitmap.size() - 1);
    writer.write(static_cast<std::uint8_t>(bitmap.size()));
    writer.write_bytes(bitmap);
}

bool AckEncoder::begin_section(std::uint64_t sequence, std::uint32_t first, bool go_back) {
    if (bytes_.size() + kSectionHeaderBytes + 2 * kVarintBytes > max_bytes_) return false;
    section_sequence_ = sequence;
    section_first_ = section_position_ = first;
    section_go_back_ = go_back;
    section_runs_ = 0;
    runs_.clear();
    return true;
}

bool AckEncoder::add_missing(PacketRun run) {
    if (bytes_.size() + kSectionHeaderBytes + runs_.size() + 2 * kVarintBytes > max_bytes_ || section_runs_ == 0xffff)
        return false;
    append_varint(runs_, run.first - section_position_);
    append_varint(runs_, run.count);
    section_position_ = run.end();
    ++section_runs_;
    return true;
}

void AckEncoder::end_section(std::uint32_t end) {
    append_varint(bytes_, section_sequence_ - completed_below_);
    bytes_.push_back(static_cast<std::byte>(section_go_back_ ? kGoBackFlag : 0));
    append_varint(bytes_, section_first_);
    append_varint(bytes_, end - section_first_);
    ByteWriter(bytes_).write(section_runs_);
    bytes_.insert(bytes_.end(), runs_.begin(), runs_.end());
}

}  // namespace farhaul::reliable
