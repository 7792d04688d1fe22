#include "base/result.hpp"

#include <system_error>

namespace farhaul {

const char* to_string(ErrorCode code) {
    switch (code) {
        case ErrorCode::kInvalidArgument:
            return "invalid argument";
        case ErrorCode::kRetry:
            return "try again";
        case ErrorCode::kTimeout:
            return "timed out";
        case ErrorCode::kPeerGone:
            return "peer gone";
        case ErrorCode::kProtocol:
            return "protocol error";
        case ErrorCode::kCorrupt:
            return "data corrupted";
        case ErrorCode::kIo:
            return "system error";
        case ErrorCode::kClosed:
            return "closed";
        case ErrorCode::kUnsupported:
            return "not supported";
    }
    return "unknown error";
}

std::unexpected<Error> fail_errno(int error_number, const std::string& what) {
    return fail(ErrorCode::kIo, "{}: {}", what, std::generic_category().message(error_number));
}

}  // namespace farhaul
