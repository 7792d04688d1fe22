#include "app/transfer/protocol.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.hpp"

namespace farhaul::app::transfer {
namespace {

constexpr std::uint32_t kOfferMagic = 0x46534846;   // "FHSF"
constexpr std::uint32_t kAnswerMagic = 0x41534846;  // "FHSA"

enum RecordType : std::uint8_t {
    kFolder = 1,
    kFile = 2,
    kData = 3,
    kFileEnd = 4,
    kFileAbandoned = 5,
    kFolderEnd = 6,
    kEnd = 7,
    kFileFailed = 0x41,
    kFinish = 0x42,
};

// A data record shorter than this at the end of a block is not worth its header; a file that ends sooner is exempt.
constexpr std::size_t kSmallestPiece = 512;

std::string_view text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string_view cut(std::string_view text, std::size_t most) { return text.substr(0, most); }

}  // namespace

std::string to_hex(const Digest& digest) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * digest.size());
    for (const std::byte b : digest) {
        text += kDigits[std::to_integer<unsigned>(b) >> 4];
        text += kDigits[std::to_integer<unsigned>(b) & 15u];
    }
    return text;
}

const char* to_string(Outcome outcome) {
    switch (outcome) {
        case Outcome::kOk:
            return "ok";
        case Outcome::kFailed:
            return "failed";
        case Outcome::kNoSpace:
            return "no space";
        case Outcome::kIntegrity:
            return "checksum differs";
        case Outcome::kNotPermitted:
            return "not permitted";
        case Outcome::kNameRefused:
            return "name refused";
        case Outcome::kExists:
            return "exists";
        case Outcome::kAbandoned:
            return "abandoned by the sender";
        case Outcome::kProtocol:
            return "protocol error";
        case Outcome::kInterrupted:
            return "interrupted";
    }
    return "unknown";
}

// --- handshake ---

std::vector<std::byte> encode(const Offer& offer) {
    std::vector<std::byte> out;
    ByteWriter w(out);
    w.write(kOfferMagic);
    w.write(kProtocolVersion);
    w.write(reliable::encode_scheme(offer.scheme));
    w.write(offer.payload_bytes);
    w.write(offer.chunk_bytes);
    w.write(offer.block_bytes);
    w.write(offer.blocks);
    w.write(static_cast<std::uint32_t>(std::llround(offer.rto_rtts * 1000)));
    w.write(offer.total_files);
    w.write(offer.total_bytes);
    return out;
}

Result<Offer> decode_offer(std::span<const std::byte> bytes) {
    ByteReader r(bytes);
    if (r.read<std::uint32_t>() != kOfferMagic || !r.ok())
        return fail(ErrorCode::kProtocol, "the peer does not offer files: it is not `sdr send`");
    const auto version = r.read<std::uint16_t>();
    if (version != kProtocolVersion)
        return fail(ErrorCode::kProtocol,
                    "the sender speaks version {} of the transfer protocol, this receiver version {}", version,
                    kProtocolVersion);
    Offer offer;
    auto scheme = reliable::decode_scheme(r.read<std::uint32_t>());
    offer.payload_bytes = r.read<std::uint32_t>();
    offer.chunk_bytes = r.read<std::uint32_t>();
    offer.block_bytes = r.read<std::uint32_t>();
    offer.blocks = r.read<std::uint32_t>();
    const auto rto = r.read<std::uint32_t>();
    offer.total_files = r.read<std::uint64_t>();
    offer.total_bytes = r.read<std::uint64_t>();
    if (!r.ok()) return fail(ErrorCode::kProtocol, "the sender's offer is cut short");
    if (!scheme) return propagate(scheme);
    offer.scheme = *scheme;
    offer.rto_rtts = static_cast<double>(rto) / 1000;
    if (offer.payload_bytes > 65535 || offer.chunk_bytes < 1 || offer.block_bytes < kMinBlockBytes ||
        offer.block_bytes > kMaxBlockBytes || offer.blocks < kMinBlocks || offer.blocks > kMaxBlocks || rto < 1000 ||
        rto > 100'000)
        return fail(
            ErrorCode::kProtocol,
            "the sender's offer is out of range: packets of {} bytes, {} blocks of {} bytes, timeout of {} round trips",
            offer.payload_bytes, offer.blocks, offer.block_bytes, offer.rto_rtts);
    return offer;
}

std::vector<std::byte> encode(const Answer& answer) {
    std::vector<std::byte> out;
    ByteWriter w(out);
    const std::string_view reason = cut(answer.reason, 400);
    w.write(kAnswerMagic);
    w.write(kProtocolVersion);
    w.write(static_cast<std::uint8_t>(answer.accepted));
    w.write(std::uint8_t{0});
    w.write(answer.blocks);
    w.write(static_cast<std::uint16_t>(reason.size()));
    w.write_bytes(std::as_bytes(std::span(reason)));
    return out;
}

Result<Answer> decode_answer(std::span<const std::byte> bytes) {
    ByteReader r(bytes);
    if (r.read<std::uint32_t>() != kAnswerMagic || !r.ok())
        return fail(ErrorCode::kProtocol, "the peer is not `sdr recv`: is another program listening on that port?");
    const auto version = r.read<std::uint16_t>();
    Answer answer;
    answer.accepted = r.read<std::uint8_t>() == 1;
    r.read<std::uint8_t>();
    answer.blocks = r.read<std::uint32_t>();
    answer.reason = printable(text_of(r.read_bytes(r.read<std::uint16_t>())), kMaxMessageBytes);
    if (!r.ok()) return fail(ErrorCode::kProtocol, "the receiver's answer is cut short");
    if (answer.accepted && version != kProtocolVersion)
        return fail(ErrorCode::kProtocol,
                    "the receiver speaks version {} of the transfer protocol, this sender version {}", version,
                    kProtocolVersion);
    if (answer.accepted && (answer.blocks < kMinBlocks || answer.blocks > kMaxBlocks))
        return fail(ErrorCode::kProtocol, "the receiver's answer is out of range: {} blocks", answer.blocks);
    return answer;
}

// --- writing records ---

bool BlockWriter::begin(std::uint8_t type, std::size_t body_bytes) {
    if (block_.size() - used_ < kRecordHeaderBytes + body_bytes) return false;
    put(type);
    put(std::uint8_t{0});
    put(std::uint16_t{0});
    put(static_cast<std::uint32_t>(body_bytes));
    return true;
}

template <typename T>
void BlockWriter::put(T value) {
    std::memcpy(block_.data() + used_, &value, sizeof(T));
    used_ += sizeof(T);
}

void BlockWriter::put_bytes(std::span<const std::byte> bytes) {
    if (!bytes.empty()) std::memcpy(block_.data() + used_, bytes.data(), bytes.size());
    used_ += bytes.size();
}

void BlockWriter::put_text(std::string_view text) { put_bytes(std::as_bytes(std::span(text))); }

bool BlockWriter::add(const FolderRecord& record) {
    if (!begin(kFolder, 12 + record.name.size())) return false;
    put(record.attributes.mode);
    put(static_cast<std::uint64_t>(record.attributes.modified_ns));
    put_text(record.name);
    return true;
}

bool BlockWriter::add(const FolderEndRecord&) { return begin(kFolderEnd, 0); }

bool BlockWriter::add(const FileRecord& record) {
    if (!begin(kFile, 24 + record.name.size())) return false;
    put(record.index);
    put(record.attributes.mode);
    put(static_cast<std::uint64_t>(record.attributes.modified_ns));
    put(record.size);
    put_text(record.name);
    return true;
}

bool BlockWriter::add(const FileEndRecord& record) {
    if (!begin(kFileEnd, kDigestBytes)) return false;
    put_bytes(record.digest);
    return true;
}

bool BlockWriter::add(const FileAbandonedRecord& record) {
    const auto text = cut(record.message, kMaxMessageBytes);
    if (!begin(kFileAbandoned, text.size())) return false;
    put_text(text);
    return true;
}

bool BlockWriter::add(const EndRecord& record) {
    if (!begin(kEnd, 16)) return false;
    put(record.files);
    put(record.bytes);
    return true;
}

bool BlockWriter::add(const FileFailedRecord& record) {
    const auto text = cut(record.message, kMaxMessageBytes);
    if (!begin(kFileFailed, 5 + text.size())) return false;
    put(record.index);
    put(static_cast<std::uint8_t>(record.outcome));
    put_text(text);
    return true;
}

bool BlockWriter::add(const FinishRecord& record) {
    const auto text = cut(record.message, kMaxMessageBytes);
    if (!begin(kFinish, 25 + text.size())) return false;
    put(static_cast<std::uint8_t>(record.outcome));
    put(record.files_stored);
    put(record.bytes_stored);
    put(record.files_failed);
    put_text(text);
    return true;
}

std::span<std::byte> BlockWriter::data_room(std::uint64_t most) {
    const std::size_t left = block_.size() - used_;
    if (left <= kRecordHeaderBytes || most == 0) return {};
    const std::size_t room = static_cast<std::size_t>(std::min<std::uint64_t>(left - kRecordHeaderBytes, most));
    if (room < kSmallestPiece && room < most) return {};
    return block_.subspan(used_ + kRecordHeaderBytes, room);
}

void BlockWriter::commit_data(std::size_t written) {
    if (written > 0 && begin(kData, written)) used_ += written;
}

// --- reading records ---

namespace {

Outcome outcome_of(std::uint8_t value) {
    return value <= static_cast<std::uint8_t>(Outcome::kInterrupted) ? static_cast<Outcome>(value) : Outcome::kFailed;
}

Result<std::optional<Record>> cut_short(const char* what) {
    return fail(ErrorCode::kProtocol, "{} record of the wrong length", what);
}

}  // namespace

Result<std::optional<Record>> BlockReader::next() {
    if (rest_.empty()) return std::optional<Record>{};
    ByteReader header(rest_);
    const auto type = header.read<std::uint8_t>();
    const auto zero1 = header.read<std::uint8_t>();
    const auto zero2 = header.read<std::uint16_t>();
    const auto length = header.read<std::uint32_t>();
    const auto body = header.read_bytes(length);
    if (!header.ok() || zero1 != 0 || zero2 != 0)
        return fail(ErrorCode::kProtocol, "a record header that makes no sense, {} bytes before the end of a block",
                    rest_.size());
    rest_ = rest_.subspan(kRecordHeaderBytes + length);
    ByteReader r(body);
    switch (type) {
        case kFolder: {
            FolderRecord record;
            record.attributes.mode = r.read<std::uint32_t>() & 0777u;
            record.attributes.modified_ns = static_cast<std::int64_t>(r.read<std::uint64_t>());
            if (!r.ok()) return cut_short("folder");
            record.name = text_of(r.read_bytes(r.remaining()));
            return Record{record};
        }
        case kFolderEnd:
            if (length != 0) return cut_short("folder end");
            return Record{FolderEndRecord{}};
        case kFile: {
            FileRecord record;
            record.index = r.read<std::uint32_t>();
            record.attributes.mode = r.read<std::uint32_t>() & 0777u;
            record.attributes.modified_ns = static_cast<std::int64_t>(r.read<std::uint64_t>());
            record.size = r.read<std::uint64_t>();
            if (!r.ok()) return cut_short("file");
            if (record.size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
                return fail(ErrorCode::kProtocol, "a file of {} bytes", record.size);
            record.name = text_of(r.read_bytes(r.remaining()));
            return Record{record};
        }
        case kData:
            if (length == 0) return cut_short("data");
            return Record{DataRecord{body}};
        case kFileEnd: {
            if (length != kDigestBytes) return cut_short("file end");
            FileEndRecord record;
            std::copy(body.begin(), body.end(), record.digest.begin());
            return Record{record};
        }
        case kFileAbandoned:
            if (length > kMaxMessageBytes) return cut_short("file abandoned");
            return Record{FileAbandonedRecord{text_of(body)}};
        case kEnd: {
            if (length != 16) return cut_short("end");
            EndRecord record;
            record.files = r.read<std::uint64_t>();
            record.bytes = r.read<std::uint64_t>();
            return Record{record};
        }
        case kFileFailed: {
            FileFailedRecord record;
            record.index = r.read<std::uint32_t>();
            record.outcome = outcome_of(r.read<std::uint8_t>());
            if (!r.ok() || r.remaining() > kMaxMessageBytes) return cut_short("file failed");
            record.message = text_of(r.read_bytes(r.remaining()));
            return Record{record};
        }
        case kFinish: {
            FinishRecord record;
            record.outcome = outcome_of(r.read<std::uint8_t>());
            record.files_stored = r.read<std::uint64_t>();
            record.bytes_stored = r.read<std::uint64_t>();
            record.files_failed = r.read<std::uint64_t>();
            if (!r.ok() || r.remaining() > kMaxMessageBytes) return cut_short("finish");
            record.message = text_of(r.read_bytes(r.remaining()));
            return Record{record};
        }
        default:
            return fail(ErrorCode::kProtocol, "a record of the unknown type {}", type);
    }
}

// --- names ---

Status check_name(std::string_view name) {
    const auto refuse = [&](const char* why) -> Status {
        return fail(ErrorCode::kInvalidArgument, "the name '{}' is refused: {}", printable(name), why);
    };
    if (name.empty()) return refuse("it is empty");
    if (name == "." || name == "..") return refuse("it could leave the folder");
    if (name.find('/') != std::string_view::npos) return refuse("it contains a '/', which could leave the folder");
    if (name.find('\0') != std::string_view::npos) return refuse("it contains a NUL byte");
    if (name.size() > kMaxNameBytes) return refuse("it is longer than 255 bytes");
    return {};
}

std::string printable(std::string_view text, std::size_t most) {
    std::string safe(text.substr(0, most));
    for (char& c : safe) {
        const auto u = static_cast<unsigned char>(c);
        if (u < 0x20 || u == 0x7f) c = '?';
    }
    // C1 controls in UTF-8 are 0xC2 followed by 0x80..0x9F.
    for (std::size_t i = 0; i + 1 < safe.size(); ++i) {
        const auto second = static_cast<unsigned char>(safe[i + 1]);
        if (static_cast<unsigned char>(safe[i]) == 0xc2 && second >= 0x80 && second <= 0x9f)
            safe[i] = safe[i + 1] = '?';
    }
    if (text.size() > most) safe += "...";
    return safe;
}

}  // namespace farhaul::app::transfer
