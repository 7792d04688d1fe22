// The receiver's side of the disk: takes the blocks of a transfer in order and makes files of them. Runs on a thread of
// its own.
//
// A file is written under a temporary name in its folder (O_EXCL, never through a symlink), hashed as it is written,
// and gets its own name by an atomic rename only when the sender's digest agrees and the data is on the disk. Small
// files are synced and renamed in groups, since a sync costs milliseconds and a small file microseconds. Whatever is
// unfinished when the sink is destroyed is removed.
//
// Nothing from the peer is trusted: a name is one component below a folder that the sink holds open (see protocol.hpp),
// folders are entered without following symlinks, only the permission bits of a mode are used, and the order of records
// is checked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/transfer/digest.hpp"
#include "app/transfer/protocol.hpp"
#include "io/unique_fd.hpp"

namespace farhaul::app::transfer {

struct SinkOptions {
    std::string folder = ".";
    bool replace = true;  ///< existing files are replaced; otherwise they are kept and the new file fails with kExists
    bool sync = true;     ///< data reaches the disk before a file gets its name
};

/// A file or folder that failed, to be reported to the sender.
struct SinkFailure {
    std::uint32_t index = 0;  ///< kNoFile for a folder
    Outcome outcome = Outcome::kFailed;
    std::string message;
};

// A folder of the transfer that is open now, held by it and by the files in it that wait for their names.
struct SinkFolder {
    io::UniqueFd fd;
    std::string path;  // for messages
    bool created = false;
    Attributes attributes;
    Outcome broken = Outcome::kOk;  // why nothing below it can be stored
};
struct SinkFile {
    std::shared_ptr<SinkFolder> folder;
    std::uint32_t index = 0;
    std::string name, temporary, path;
    io::UniqueFd fd;
    std::uint64_t size = 0, written = 0;
    Attributes attributes;
    Digest digest{};
    Outcome failed = Outcome::kOk;
};
// What waits for the next commit(), in order: a whole file, or a folder whose attributes are to be set after its
// files are named.
struct SinkPending {
    std::optional<SinkFile> file;
    std::shared_ptr<SinkFolder> folder;
};

class FileSink {
 public:
    /// Errors: kIo when the folder is not there or may not be written to.
    static Result<std::unique_ptr<FileSink>> open(const SinkOptions& options);
    ~FileSink();
    FileSink(const FileSink&) = delete;
    FileSink& operator=(const FileSink&) = delete;

    /// Removes what receivers that were killed have left below the folder; see part_files.hpp. Returns how many files.
    std::size_t remove_stale() const;

    /// Takes the next block. Returns false when the transfer is over: finished, or failed as a whole; outcome() and
    /// message() say how.
    bool consume(std::span<const std::byte> block);
    /// Ends a transfer that will not be finished: files that are whole and verified keep their names, the rest is
    /// removed.
    void abandon();

    /// Failures since the last call.
    std::vector<SinkFailure> take_failures() { return std::exchange(failures_, {}); }
    bool ended() const { return ended_; }
    Outcome outcome() const { return outcome_; }
    const std::string& message() const { return message_; }
    std::uint64_t files_stored() const { return files_stored_; }
    std::uint64_t bytes_stored() const { return bytes_stored_; }
    std::uint64_t files_failed() const { return files_failed_; }
    /// Of the last file that was stored.
    const std::optional<Digest>& last_digest() const { return last_digest_; }
    const std::string& last_path() const { return last_path_; }

 private:
    using Folder = SinkFolder;
    using File = SinkFile;
    using Pending = SinkPending;

    explicit FileSink(const SinkOptions& options) : options_(options) {}
    bool take(const FolderRecord& record);
    bool take(const FolderEndRecord& record);
    bool take(const FileRecord& record);
    bool take(const DataRecord& record);
    bool take(const FileEndRecord& record);
    bool take(const FileAbandonedRecord& record);
    bool take(const EndRecord& record);
    template <typename T>
    bool take(const T&) {
        return broken("a reply record in the stream");
    }

    bool create_temporary();
    bool write_file(std::span<const std::byte> bytes);
    /// Syncs and names everything that waits.
    void commit();
    /// After `error` of opening a file: true if it is worth trying again, since files that waited have been closed.
    bool let_go_of_files(int error);
    void sync_pending();
    void name_file(File& file);
    void remove_temporary(File& file);
    /// The current file fails; the rest of its data is ignored. False when the error ends the transfer (no space).
    bool fail_file(Outcome outcome, const std::string& message);
    bool fail_file_errno(int error, const std::string& what);
    void report(std::uint32_t index, Outcome outcome, std::string message);
    bool broken(const std::string& what);
    bool end(Outcome outcome, std::string message);

    SinkOptions options_;
    std::vector<std::shared_ptr<Folder>> folders_;  // the first is the target itself
    std::optional<File> file_;
    DigestStream digest_;
    std::vector<Pending> pending_;
    std::uint64_t pending_bytes_ = 0;
    std::uint64_t files_ended_ = 0, bytes_ended_ = 0;  // of files that the sender sent whole
    std::uint32_t next_index_ = 0;
    std::vector<SinkFailure> failures_;
    std::uint64_t files_stored_ = 0, bytes_stored_ = 0, files_failed_ = 0;
    std::optional<Digest> last_digest_;
    std::string last_path_;
    Outcome first_failure_ = Outcome::kOk;
    bool ended_ = false;
    Outcome outcome_ = Outcome::kInterrupted;
    std::string message_ = "the transfer was not finished";
};

}  // namespace farhaul::app::transfer
