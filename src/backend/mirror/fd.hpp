// Descriptors with an owner, and ways to name what a descriptor stands for.
#pragma once

#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

#include "io/unique_fd.hpp"

namespace farhaul::backend::mirror {

using Fd = io::UniqueFd;

/// A descriptor that is used and maybe owned.
class PathFd {
 public:
    /// `keeper` keeps the descriptor open; without one, the caller knows that it stays.
    void borrow(int fd, std::shared_ptr<const void> keeper = nullptr) {
        owned_.reset();
        keeper_ = std::move(keeper);
        fd_ = fd;
    }
    void own(Fd fd) {
        fd_ = fd.get();
        owned_ = std::move(fd);
    }
    int get() const { return fd_; }

 private:
    int fd_ = -1;
    Fd owned_;
    std::shared_ptr<const void> keeper_;
};

/// "/proc/self/fd/N", which names what the descriptor N stands for, whatever its type; for calls that take paths only.
class FdPath {
 public:
    explicit FdPath(int fd) {
        std::memcpy(text_, kFolder, sizeof(kFolder));
        *std::to_chars(text_ + sizeof(kFolder) - 1, text_ + sizeof(text_) - 1, fd).ptr = '\0';
    }
    const char* c_str() const { return text_; }
    /// In that folder.
    const char* name() const { return text_ + sizeof(kFolder) - 1; }

 private:
    static constexpr char kFolder[] = "/proc/self/fd/";
    char text_[32];
};

/// Opens what `fd` stands for again. -1 and errno.
int reopen(int fd, int flags);

}  // namespace farhaul::backend::mirror
