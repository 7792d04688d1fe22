// The datagrams of the reliability layer: acknowledgements, probes, and the abort notice. Pure encoding and decoding;
// the protocol that uses them is described in writer.hpp and reader.hpp.
//
// An Ack is a snapshot of the receiver taken at one moment ("event"). It may take several datagrams, each complete in
// itself: all carry the event number, the latest probe seen and which messages are complete; each carries sections, one
// per message or part of a message. A section covers packets [first, end) of a message: those in its list of missing
// runs have not arrived, all others have.
//
//   Ack      u8 kind = 1, u32 event, u32 probe, u32 rebuilt, u32 rebuilt_bursts, u64 completed_below, u8 n, n bytes of
//            bitmap (bit i: message completed_below + i is complete), then sections until the end of the datagram:
//            varint sequence - completed_below, u8 flags (1 = negative acknowledgement of go-back-N), varint first,
//            varint end - first, u16 runs, runs x (varint gap since the end of the previous run, varint length)
//   Probe    u8 kind = 2, u32 id: answered at once by an Ack that echoes it
//   Abort    u8 kind = 3, u8 error code, text: the peer gave up the connection
//
// Integers are little-endian, varints LEB128 of at most 5 bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "base/result.hpp"

namespace farhaul::reliable {

inline constexpr std::uint32_t kMaxPacketsPerMessage = 1u << 30;
/// Most messages beyond completed_below that one Ack can name.
inline constexpr std::uint32_t kMaxCompletedAhead = 8 * 255;

struct PacketRun {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::uint32_t end() const { return first + count; }
};

struct AckSection {
    std::uint64_t sequence = 0;
    std::uint32_t first = 0;
    std::uint32_t end = 0;
    bool go_back = false;
    std::uint32_t first_run = 0;  ///< index into Ack::missing
    std::uint32_t runs = 0;
};

/// What a receiver tells of itself in every Ack.
struct AckReport {
    std::uint32_t event = 0;           ///< number of the snapshot
    std::uint32_t probe = 0;           ///< latest seen; 0: none yet
    std::uint32_t rebuilt = 0;         ///< packets rebuilt from parity since the connection began, modulo 2^32
    std::uint32_t rebuilt_bursts = 0;  ///< runs of neighbours that they were
    std::uint64_t completed_below = 0;
};

struct Ack : AckReport {
    std::vector<std::uint64_t> completed_ahead;  ///< bit i: message completed_below + i is complete
    std::vector<AckSection> sections;
    std::vector<PacketRun> missing;

    std::span<const PacketRun> missing_of(const AckSection& section) const {
        return std::span(missing).subspan(section.first_run, section.runs);
    }
};

enum class DatagramKind : std::uint8_t { kAck = 1, kProbe = 2, kAbort = 3 };

/// Reads an Ack into `ack` (whose vectors are reused). False when the datagram is malformed; `ack` is then unspecified.
bool decode_ack(std::span<const std::byte> datagram, Ack& ack);
/// The probe's id, or 0 when the datagram is malformed.
std::uint32_t decode_probe(std::span<const std::byte> datagram);
bool decode_abort(std::span<const std::byte> datagram, Error& error);

void encode_probe(std::uint32_t id, std::vector<std::byte>& out);
void encode_abort(const Error& error, std::vector<std::byte>& out);

/// Writes an Ack piece by piece and says when a datagram is full.
class AckEncoder {
 public:
    /// max_bytes: at least kMinDatagramBytes.
    explicit AckEncoder(std::size_t max_bytes) : max_bytes_(max_bytes) {}
    static constexpr std::size_t kMinDatagramBytes = 400;

    void begin(const AckReport& report, std::span<const std::uint64_t> completed_ahead);
    /// False when there is no room for a section with at least one run: send, begin() again.
    bool begin_section(std::uint64_t sequence, std::uint32_t first, bool go_back = false);
    /// Runs in ascending order, not touching each other. False when there is no room: end the section at run.first.
    bool add_missing(PacketRun run);
    void end_section(std::uint32_t end);
    std::span<const std::byte> datagram() const { return bytes_; }

 private:
    void write_varint(std::uint64_t value);
    std::size_t max_bytes_;
    std::vector<std::byte> bytes_;
    std::uint64_t completed_below_ = 0;
    std::vector<std::byte> runs_;  // of the open section
    std::uint64_t section_sequence_ = 0;
    std::uint32_t section_first_ = 0, section_position_ = 0;
    std::uint16_t section_runs_ = 0;
    bool section_go_back_ = false;
};

}  // namespace farhaul::reliable
