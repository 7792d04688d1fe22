// The sender's side of the disk: turns files and folders into blocks of the transfer protocol, in order, hashing as it
// reads. Runs on a thread of its own, so that a slow disk never stops the loop.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/transfer/digest.hpp"
#include "app/transfer/protocol.hpp"
#include "app/transfer/tree_walker.hpp"

namespace farhaul::app::transfer {

struct SourceTotals {
    std::uint64_t files = 0;
    std::uint64_t bytes = 0;
    std::uint64_t folders = 0;
};

/// Counts what a walk over `roots` would send; nothing is opened but folders.
SourceTotals count_tree(const std::vector<WalkRoot>& roots);

class FileSource {
 public:
    FileSource(std::vector<WalkRoot> roots, TreeWalker::Warn warn);

    /// Fills `block` (at least kMinBlockBytes) and returns how much of it is used; 0 when everything, the End record
    /// included, was handed out.
    std::size_t fill(std::span<std::byte> block);

    /// The receiver has given up on this file: the rest of it is not read. From any thread.
    void give_up(std::uint32_t index);

    // After the end:
    const SourceTotals& sent() const { return sent_; }
    std::uint64_t failed() const {
        return failed_;
    }  ///< could not be read, changed while they were, or refused by the receiver
    std::uint64_t skipped() const { return skipped_; }  ///< symlinks and special files
    /// Of the last file that was read to its end.
    const std::optional<Digest>& last_digest() const { return last_digest_; }

 private:
    bool open_file(const WalkStep& step);
    /// One piece of the current file into the block; false when the block is full.
    bool continue_file(BlockWriter& writer);
    bool end_file(BlockWriter& writer);
    bool add_step(BlockWriter& writer);
    bool given_up(std::uint32_t index) const;

    struct OpenFile {
        io::UniqueFd fd;
        std::string path;
        FileRecord record;
        std::string name;
        std::uint64_t done = 0;
        struct stat status{};
        std::optional<Digest> digest;  // once everything is read
        std::string abandoned;         // why, when it is
    };
    TreeWalker walker_;
    TreeWalker::Warn warn_;
    std::optional<WalkStep> pending_;
    std::optional<OpenFile> file_;
    DigestStream digest_;
    SourceTotals sent_;
    std::uint64_t failed_ = 0;
    std::uint64_t skipped_ = 0;
    std::uint32_t next_index_ = 0;
    std::optional<Digest> last_digest_;
    bool ended_ = false;
    // A small lossy table is enough: an index that is overwritten only means that its file is sent for nothing.
    static constexpr std::size_t kGiveUpSlots = 64;
    std::array<std::atomic<std::uint64_t>, kGiveUpSlots> give_up_{};
};

}  // namespace farhaul::app::transfer
