// Walks files and folders in a fixed order with memory for one folder per level. Never follows a symlink inside a
// folder.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sys/stat.h>

#include "base/result.hpp"
#include "io/unique_fd.hpp"

namespace farhaul::app::transfer {

/// One step of a walk. `name` and `path` are valid until the next step.
struct WalkStep {
    enum class Kind { kFolder, kFolderEnd, kFile, kEnd };
    Kind kind = Kind::kEnd;
    int parent_fd = -1;     ///< of kFile and kFolder: AT_FDCWD for what the user named
    std::string open_name;  ///< to open relative to parent_fd
    std::string name;       ///< what the receiver should call it
    std::string path;       ///< for messages
    struct stat status{};
    bool follow = false;  ///< named by the user: a symlink there is followed
};

/// What the user named: where it is, and its name at the other side.
struct WalkRoot {
    std::string path;
    std::string name;
};

/// The roots of `sdr send PATH...`. Errors: kIo for one that is not there or is neither a file nor a folder;
/// kInvalidArgument for one without a usable name (`/`) and for two of the same name.
Result<std::vector<WalkRoot>> walk_roots(const std::vector<std::string>& paths);

class TreeWalker {
 public:
    /// `warn` is told of everything that is left out: symlinks, sockets, devices, pipes (`skipped`), and what cannot be
    /// read (`failed`).
    using Warn = std::function<void(const std::string& message, bool failed)>;
    TreeWalker(std::vector<WalkRoot> roots, Warn warn) : roots_(std::move(roots)), warn_(std::move(warn)) {}

    /// The next file, folder or end of a folder.
    WalkStep next();

 private:
    struct Level {
        io::UniqueFd fd;
        std::vector<std::string> names;  // sorted in reverse: taken from the back
        std::string path;
    };
    bool classify(WalkStep& step);
    bool enter(const WalkStep& step);

    std::vector<WalkRoot> roots_;
    Warn warn_;
    std::size_t next_root_ = 0;
    std::vector<Level> levels_;
};

}  // namespace farhaul::app::transfer
