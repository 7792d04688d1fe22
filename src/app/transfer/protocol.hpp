// The transfer protocol of `sdr send` and `sdr recv`, as bytes: pure encoding and decoding, no file and no connection.
//
// It runs on top of a reliable connection, whose Writes arrive whole and in order. The sender is the client. Its Writes
// are *blocks*: at most block_bytes of back-to-back records, so that thousands of small files share one Write and a
// large file is a row of blocks with one data record each. The receiver posts a ring of equal buffers and answers with
// Writes of reply records.
//
//   handshake   Offer -> Answer          (the application blobs of the connection's handshake: the sender chooses, the
//   receiver may lower
//                                         the window or refuse with a reason)
//   stream      { Folder ... FolderEnd | File Data* (FileEnd | FileAbandoned) }* End
//   replies     FileFailed*  Finish
//
// A record is type (1 byte), three zero bytes, body length (4 bytes), body. Integers are little-endian. A file's bytes
// come in order; its FileEnd carries the SHA-256 that the sender computed while reading, which the receiver compares
// with that of what it wrote before the file gets its name. A folder's records lie between its Folder and FolderEnd,
// and carry names, not paths: neither side needs memory for the tree, and the receiver only ever opens one component
// below a folder that it holds open. FileFailed is sent as soon as a file is known to fail, so that the sender need not
// go on with its data; Finish ends the transfer, early when the receiver cannot go on (no space). Nothing here needs a
// timer: the connection below retransmits, and reports a peer that is gone.
//
// Nothing from the peer is trusted: lengths, types, order, names and sizes are checked here and in FileSink.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.hpp"
#include "reliable/scheme.hpp"

namespace farhaul::app::transfer {

inline constexpr std::uint16_t kProtocolVersion = 2;  ///< 2: acks tell of rebuilt packets
inline constexpr std::size_t kRecordHeaderBytes = 8;
inline constexpr std::size_t kDigestBytes = 32;
inline constexpr std::size_t kMaxNameBytes = 255;      ///< of a file or folder
inline constexpr std::size_t kMaxDepth = 200;          ///< of folders: each level costs both sides an open descriptor
inline constexpr std::size_t kMaxMessageBytes = 1000;  ///< of a text for the user
inline constexpr std::uint32_t kMinBlockBytes = 16u << 10;
inline constexpr std::uint32_t kMaxBlockBytes = 64u << 20;
inline constexpr std::uint32_t kMinBlocks = 2;
inline constexpr std::uint32_t kMaxBlocks = 512;  ///< half of the message ids of the default split
inline constexpr std::uint32_t kReplyBytes = 16u << 10;

using Digest = std::array<std::byte, kDigestBytes>;
std::string to_hex(const Digest& digest);

/// What the sender proposes when it connects.
struct Offer {
    reliable::Scheme scheme = reliable::Scheme::kSelectiveRepeatNack;
    std::uint32_t payload_bytes = 0;        ///< per packet; 0 = what the path allows
    std::uint32_t chunk_bytes = 64u << 10;  ///< rounded down to whole packets, 1..64 of them
    std::uint32_t block_bytes = 1u << 20;
    std::uint32_t blocks = 16;  ///< blocks in flight: the window is blocks * block_bytes
    double rto_rtts = 3;
    std::uint64_t total_files = 0;  ///< as counted beforehand: for display only
    std::uint64_t total_bytes = 0;
};

/// What the receiver makes of it.
struct Answer {
    bool accepted = false;
    std::uint32_t blocks = 0;  ///< at most what was offered
    std::string reason;        ///< when refused
};

std::vector<std::byte> encode(const Offer& offer);
std::vector<std::byte> encode(const Answer& answer);
/// Errors: kProtocol for another protocol or version, or a field out of range.
Result<Offer> decode_offer(std::span<const std::byte> bytes);
Result<Answer> decode_answer(std::span<const std::byte> bytes);

/// How a file or a transfer ended, as it travels in replies.
enum class Outcome : std::uint8_t {
    kOk = 0,
    kFailed = 1,     ///< any other error of the receiver's system
    kNoSpace = 2,    ///< disk full or quota used up
    kIntegrity = 3,  ///< the digest differs
    kNotPermitted = 4,
    kNameRefused = 5,  ///< the name would leave the folder
    kExists = 6,       ///< there already, and the receiver does not replace
    kAbandoned = 7,    ///< the sender could not read it to its end
    kProtocol = 8,     ///< the peer broke the protocol
    kInterrupted = 9,  ///< the receiver was told to stop
};
const char* to_string(Outcome outcome);

/// Mode and time of last change that travel with a file or folder. Only the nine permission bits are kept.
struct Attributes {
    std::uint32_t mode = 0644;
    std::int64_t modified_ns = 0;  ///< since the epoch
};

// Records of the stream. Views point into the block.
struct FolderRecord {
    std::string_view name;
    Attributes attributes;
};
struct FolderEndRecord {};
struct FileRecord {
    std::uint32_t index = 0;  ///< counts the files of a transfer from 0
    std::uint64_t size = 0;
    std::string_view name;
    Attributes attributes;
};
struct DataRecord {
    std::span<const std::byte> bytes;
};
struct FileEndRecord {
    Digest digest{};
};
struct FileAbandonedRecord {
    std::string_view message;
};
struct EndRecord {
    std::uint64_t files = 0;  ///< sent, without abandoned ones
    std::uint64_t bytes = 0;
};
// Records of replies.
inline constexpr std::uint32_t kNoFile = ~0u;
struct FileFailedRecord {
    std::uint32_t index = 0;  ///< kNoFile for a folder
    Outcome outcome = Outcome::kFailed;
    std::string_view message;
};
struct FinishRecord {
    Outcome outcome = Outcome::kOk;
    std::uint64_t files_stored = 0;
    std::uint64_t bytes_stored = 0;
    std::uint64_t files_failed = 0;
    std::string_view message;
};

using Record = std::variant<FolderRecord, FolderEndRecord, FileRecord, DataRecord, FileEndRecord, FileAbandonedRecord,
                            EndRecord, FileFailedRecord, FinishRecord>;

/// Appends records to a buffer of fixed size. Every add returns false, and changes nothing, when the record does not
/// fit.
class BlockWriter {
 public:
    explicit BlockWriter(std::span<std::byte> block) : block_(block) {}

    bool add(const FolderRecord& record);
    bool add(const FolderEndRecord& record);
    bool add(const FileRecord& record);
    bool add(const FileEndRecord& record);
    bool add(const FileAbandonedRecord& record);
    bool add(const EndRecord& record);
    bool add(const FileFailedRecord& record);
    bool add(const FinishRecord& record);

    /// Where up to `most` bytes of the current file may be written; empty when the block has no room for a useful
    /// piece. Followed by commit_data() with what was written.
    std::span<std::byte> data_room(std::uint64_t most);
    void commit_data(std::size_t written);

    std::size_t size() const { return used_; }
    bool empty() const { return used_ == 0; }

 private:
    bool begin(std::uint8_t type, std::size_t body_bytes);
    template <typename T>
    void put(T value);
    void put_bytes(std::span<const std::byte> bytes);
    void put_text(std::string_view text);

    std::span<std::byte> block_;
    std::size_t used_ = 0;
};

/// Takes a block apart.
class BlockReader {
 public:
    explicit BlockReader(std::span<const std::byte> block) : rest_(block) {}
    /// The next record; nothing at the end of the block. Errors: kProtocol; the reader must not be used after one.
    Result<std::optional<Record>> next();

 private:
    std::span<const std::byte> rest_;
};

/// Checks the name of a file or folder from outside: not empty, not "." or "..", no '/', no NUL, not too long. Errors:
/// kInvalidArgument that says what is wrong with it.
Status check_name(std::string_view name);

/// Text from outside made safe to print: control characters, which could drive a terminal, become '?'. At most `most`
/// bytes.
std::string printable(std::string_view text, std::size_t most = 300);

}  // namespace farhaul::app::transfer
