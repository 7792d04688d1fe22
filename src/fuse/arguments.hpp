// The fixed part and the names of one request, copied out of the client's memory and taken apart.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include "fuse/request.hpp"

namespace farhaul::fuse {

inline constexpr std::size_t kNameMax = 255;  // NAME_MAX: what the kernel hands to applications in one entry

/// A cursor over the arguments. The first thing that is wrong sticks: error() is then its errno, and what is taken is
/// empty.
class Arguments {
 public:
    explicit Arguments(std::span<const std::byte> bytes) : rest_(bytes) {}

    /// The operation's own struct.
    template <typename T>
    T take() {
        T value{};
        if (rest_.size() < sizeof(T)) {
            set_error(EINVAL);
            return value;
        }
        std::memcpy(&value, rest_.data(), sizeof(T));
        rest_ = rest_.subspan(sizeof(T));
        return value;
    }
    /// The name of a directory entry. `dots`: "." and ".." are allowed.
    Name take_name(bool dots = false) {
        const Name name = take_string();
        if (error_ != 0) return {};
        if (name.empty() || name.find('/') != std::string_view::npos) return set_error(EINVAL);
        if (name.size() > kNameMax) return set_error(ENAMETOOLONG);
        if (!dots && (name == "." || name == "..")) return set_error(EINVAL);
        return name;
    }
    /// A symlink's target: 1 to 4095 bytes.
    Name take_target() {
        const Name target = take_string();
        if (error_ != 0) return {};
        if (target.empty()) return set_error(ENOENT);
        if (target.size() > 4095) return set_error(ENAMETOOLONG);
        return target;
    }
    /// The name of an extended attribute: 1 to 255 bytes (XATTR_NAME_MAX), any but NUL.
    Name take_xattr_name() {
        const Name name = take_string();
        if (error_ != 0) return {};
        if (name.empty() || name.size() > 255) return set_error(ERANGE);
        return name;
    }
    std::span<const std::byte> take_bytes(std::size_t size) {
        if (rest_.size() < size) {
            set_error(EINVAL);
            return {};
        }
        const auto bytes = rest_.first(size);
        rest_ = rest_.subspan(size);
        return bytes;
    }
    /// 0, or the errno of the request; to be asked when all is taken: what is left over is an error as well.
    int end() {
        if (error_ == 0 && !rest_.empty()) set_error(EINVAL);
        return error_;
    }
    int error() const { return error_; }
    std::size_t remaining() const { return rest_.size(); }
    Name set_error(int error_number) {
        if (error_ == 0) error_ = error_number;
        rest_ = {};
        return {};
    }

 private:
    Name take_string() {
        const auto* terminator =
            rest_.empty() ? nullptr : static_cast<const std::byte*>(std::memchr(rest_.data(), 0, rest_.size()));
        if (terminator == nullptr) return set_error(EINVAL);
        const auto length = static_cast<std::size_t>(terminator - rest_.data());
        const Name name(std::string_view(reinterpret_cast<const char*>(rest_.data()), length));
        rest_ = rest_.subspan(length + 1);
        return name;
    }
    std::span<const std::byte> rest_;
    int error_ = 0;
};

/// `offset` and the end of `size` bytes from there are file offsets (off_t).
inline bool is_file_range(std::uint64_t offset, std::uint64_t size) {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return offset <= kMost && size <= kMost - offset;
}

}  // namespace farhaul::fuse
