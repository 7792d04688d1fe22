#include "app/transfer/part_files.hpp"

#include <algorithm>
#include <cerrno>
#include <memory>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/unique_fd.hpp"

namespace farhaul::app::transfer {
namespace {

constexpr std::string_view kMark = ".farhaul-";
constexpr std::string_view kEnd = ".part";
constexpr std::size_t kDigits = 8;

bool remove_if_stale(int folder, const char* name) {
    // Opened for writing: over NFS an exclusive lock needs that.
    const io::UniqueFd fd(::openat(folder, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    struct stat opened{}, named{};
    if (!fd || ::fstat(fd.get(), &opened) != 0 || !S_ISREG(opened.st_mode) || opened.st_uid != ::geteuid())
        return false;
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return false;
    // It may have got its real name since it was found.
    return ::fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && named.st_dev == opened.st_dev &&
           named.st_ino == opened.st_ino && ::unlinkat(folder, name, 0) == 0;
}

std::size_t sweep(int folder, dev_t device, std::size_t depth, std::size_t& entries_left) {
    // A description of its own: reading a directory moves its offset.
    const int own = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (own < 0) return 0;
    const std::unique_ptr<DIR, int (*)(DIR*)> list(::fdopendir(own), ::closedir);
    if (!list) {
        ::close(own);
        return 0;
    }
    std::size_t removed = 0;
    while (const dirent* const entry = ::readdir(list.get())) {
        if (entries_left == 0) break;
        --entries_left;
        const std::string_view name = entry->d_name;
        if (is_part_name(name) && remove_if_stale(own, entry->d_name)) ++removed;
        if (depth == 0 || name == "." || name == ".." || (entry->d_type != DT_DIR && entry->d_type != DT_UNKNOWN))
            continue;
        const io::UniqueFd inner(::openat(own, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        struct stat status{};
        if (inner && ::fstat(inner.get(), &status) == 0 && status.st_dev == device)
            removed += sweep(inner.get(), device, depth - 1, entries_left);
    }
    return removed;
}

}  // namespace

std::string part_name(std::string_view name) {
    std::uint32_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random))
        random = static_cast<std::uint32_t>(::getpid());
    return fmt::format(".{}{}{:08x}{}", name.substr(0, 220), kMark, random, kEnd);
}

bool is_part_name(std::string_view name) {
    const std::size_t tail = kMark.size() + kDigits + kEnd.size();
    if (name.size() < 1 + tail || name[0] != '.' || !name.ends_with(kEnd)) return false;
    const std::string_view digits = name.substr(name.size() - kEnd.size() - kDigits, kDigits);
    return name.substr(name.size() - tail, kMark.size()) == kMark &&
           std::ranges::all_of(digits, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool lock_part(int fd) {
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;  // else: no locks here, for anybody
    struct stat status{};
    return ::fstat(fd, &status) == 0 && status.st_nlink > 0;
}

std::size_t remove_stale_parts(int folder, std::size_t depth, std::size_t most_entries) {
    struct stat status{};
    return ::fstat(folder, &status) == 0 ? sweep(folder, status.st_dev, depth, most_entries) : 0;
}

}  // namespace farhaul::app::transfer
