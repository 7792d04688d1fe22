#include "app/transfer/tree_walker.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <set>
#include <system_error>

#include <dirent.h>
#include <fcntl.h>

#include "app/transfer/protocol.hpp"

namespace farhaul::app::transfer {
namespace {

std::string error_text(int error) {
    std::string text = std::generic_category().message(error);
    if (error == EMFILE) text += " (raise the limit of `ulimit -n`)";
    return text;
}

}  // namespace

Result<std::vector<WalkRoot>> walk_roots(const std::vector<std::string>& paths) {
    std::vector<WalkRoot> roots;
    std::set<std::string> names;
    for (const std::string& path : paths) {
        struct stat status{};
        if (::stat(path.c_str(), &status) != 0)
            return fail(ErrorCode::kIo, "cannot send '{}': {}", path, error_text(errno));
        if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
            return fail(ErrorCode::kIo, "cannot send '{}': it is neither a file nor a folder", path);
        std::string trimmed = path;
        while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
        std::string name = trimmed.substr(trimmed.rfind('/') + 1);
        if (name == "." || name == ".." || name.empty()) {
            const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
            if (!real) return fail(ErrorCode::kIo, "cannot send '{}': {}", path, error_text(errno));
            const std::string_view whole(real.get());
            name = whole.substr(whole.rfind('/') + 1);
            if (name.empty())
                return fail(ErrorCode::kInvalidArgument, "cannot send '/': it has no name; send the folders in it");
        }
        if (!names.insert(name).second)
            return fail(ErrorCode::kInvalidArgument,
                        "two things named '{}' would land on each other at the receiver: send them one after the other",
                        name);
        roots.push_back({trimmed, name});
    }
    return roots;
}

bool TreeWalker::classify(WalkStep& step) {
    if (::fstatat(step.parent_fd, step.open_name.c_str(), &step.status, step.follow ? 0 : AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno != ENOENT || step.follow)
            warn_("cannot look at '" + step.path + "': " + error_text(errno), true);
        else
            warn_("'" + step.path + "' vanished before it was sent", true);
        return false;
    }
    if (S_ISREG(step.status.st_mode))
        step.kind = WalkStep::Kind::kFile;
    else if (S_ISDIR(step.status.st_mode))
        step.kind = WalkStep::Kind::kFolder;
    else {
        warn_(std::string("skipped '") + step.path + "': it is a " +
                  (S_ISLNK(step.status.st_mode)    ? "symbolic link"
                   : S_ISFIFO(step.status.st_mode) ? "pipe"
                   : S_ISSOCK(step.status.st_mode) ? "socket"
                                                   : "device"),
              false);
        return false;
    }
    return step.kind == WalkStep::Kind::kFile || enter(step);
}

bool TreeWalker::enter(const WalkStep& step) {
    if (levels_.size() >= kMaxDepth) {
        warn_("cannot send '" + step.path + "': more than 200 folders inside each other", true);
        return false;
    }
    Level level;
    level.fd.reset(::openat(step.parent_fd, step.open_name.c_str(),
                            O_RDONLY | O_DIRECTORY | O_CLOEXEC | (step.follow ? 0 : O_NOFOLLOW)));
    const int listed = level.fd ? ::fcntl(level.fd.get(), F_DUPFD_CLOEXEC, 0) : -1;
    DIR* folder = listed >= 0 ? ::fdopendir(listed) : nullptr;
    if (!folder) {
        warn_("cannot read the folder '" + step.path + "': " + error_text(errno), true);
        if (listed >= 0) ::close(listed);
        return false;
    }
    for (;;) {
        errno = 0;
        const dirent* entry = ::readdir(folder);
        if (!entry) break;
        const std::string_view name(entry->d_name);
        if (name != "." && name != "..") level.names.emplace_back(name);
    }
    const int error = errno;
    ::closedir(folder);
    if (error != 0) warn_("the folder '" + step.path + "' could not be read to its end: " + error_text(error), true);
    std::sort(level.names.begin(), level.names.end(), std::greater<>());
    level.path = step.path;
    levels_.push_back(std::move(level));
    return true;
}

WalkStep TreeWalker::next() {
    for (;;) {
        WalkStep step;
        if (!levels_.empty()) {
            Level& level = levels_.back();
            if (level.names.empty()) {
                step.kind = WalkStep::Kind::kFolderEnd;
                step.path = level.path;
                levels_.pop_back();
                return step;
            }
            step.open_name = step.name = std::move(level.names.back());
            level.names.pop_back();
            step.path = level.path + "/" + step.name;
            step.parent_fd = level.fd.get();
        } else if (next_root_ < roots_.size()) {
            const WalkRoot& root = roots_[next_root_++];
            step.open_name = step.path = root.path;
            step.name = root.name;
            step.parent_fd = AT_FDCWD;
            step.follow = true;
        } else {
            return step;
        }
        if (classify(step)) return step;
    }
}

}  // namespace farhaul::app::transfer
