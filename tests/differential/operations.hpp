// One process of the differential test: draws operations from a seed, does each on every root by system calls, and
// compares what they return.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <sys/types.h>

#include "base/random.hpp"

namespace farhaul::differential {

/// What an operation gave on one root, in words that must be equal on all roots.
struct Outcome {
    long result = 0;  ///< file descriptors count as 0
    int error = 0;
    std::string detail;
    bool operator==(const Outcome&) const = default;
};
std::string to_string(const Outcome& outcome);

struct Root {
    std::string name;  ///< for messages
    std::string path;
};

class Process {
 public:
    /// `folder`: below each root; "" is the root itself.
    /// `watch`: a path below it whose attributes are printed before each operation, when `verbose`.
    Process(std::vector<Root> roots, std::string folder, bool verbose, std::string watch = {});
    ~Process();
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    /// Does the operation that `seed` stands for. Empty, or what differs.
    std::string step(std::uint64_t seed);
    /// chmod() sets no S_ISUID and S_ISGID from now on.
    void without_set_id() { set_id_ = false; }
    /// Walks all roots and compares everything: names, attributes, contents, extended attributes, which names are one
    /// inode.
    std::string compare_trees();
    /// Operations done so far, by kind and by outcome, for the closing report.
    const std::map<std::string, std::pair<std::uint64_t, std::uint64_t>>& counts() const { return counts_; }

 private:
    struct OpenFile {
        std::vector<int> fds;  // one for each root
        bool append = false;
    };
    using Each = Outcome (Process::*)(std::size_t root);

    std::string random_name();
    std::string random_path();
    std::string at(std::size_t root, const std::string& path) const;
    Outcome perform(std::size_t root);
    Outcome open_file(std::size_t root);
    Outcome data(std::size_t root, int fd);
    Outcome seek_data(int fd, int whence, off_t size);
    Outcome metadata(std::size_t root);
    Outcome attributes(std::size_t root);
    Outcome handle(std::size_t root, int fd);
    void draw();

    std::vector<Root> roots_;
    std::string folder_;
    bool verbose_;
    bool set_id_ = true;
    std::string watch_;
    std::vector<OpenFile> files_;
    std::vector<std::string> known_;  // paths that were seen to exist lately
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> counts_;

    // What was drawn for the operation at hand: the same for every root.
    Random random_{0};
    std::string kind_;
    std::string path_, other_path_, name_;
    int flags_ = 0;
    mode_t mode_ = 0;
    std::uint64_t offset_ = 0, offset2_ = 0, size_ = 0, value_ = 0;
    std::size_t file_ = 0, file2_ = 0;
    std::vector<char> payload_;
    std::vector<int> opened_;
};

/// All that lstat, readlink, the content and the extended attributes say of `path`, in words. Directory sizes are left
/// out: no two file systems agree on them.
std::string describe_stat(const struct stat& stat);

}  // namespace farhaul::differential
