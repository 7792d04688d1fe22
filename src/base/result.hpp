// Results of operations that can fail at run time: a value, or an Error that says what, where and what to do.
#pragma once

#include <expected>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace farhaul {

enum class ErrorCode {
    kInvalidArgument,  ///< the caller's request is wrong and stays wrong
    kRetry,            ///< no resources now, or the peer is not ready yet: the same call may succeed later
    kTimeout,          ///< a bounded wait ended
    kPeerGone,         ///< the peer vanished or closed the connection
    kProtocol,         ///< the peer said something that this version cannot accept
    kCorrupt,          ///< data failed an integrity check
    kIo,               ///< the operating system refused: `message` has its words
    kClosed,           ///< the object was closed or destroyed under the operation
    kUnsupported,      ///< this build, kernel or device cannot do it
};

struct Error {
    ErrorCode code;
    std::string message;
};

template <typename T>
using Result = std::expected<T, Error>;
using Status = std::expected<void, Error>;

/// Builds the error side of a Result: `return fail(ErrorCode::kIo, "cannot open {}", path);`
template <typename... Args>
std::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    return std::unexpected(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

/// Passes an error on unchanged: `if (!r) return propagate(r);`
template <typename T>
std::unexpected<Error> propagate(std::expected<T, Error>& result) {
    return std::unexpected(std::move(result.error()));
}

const char* to_string(ErrorCode code);

/// `fail` for a failed system call: appends the text of `error_number` (an errno value).
std::unexpected<Error> fail_errno(int error_number, const std::string& what);

}  // namespace farhaul
