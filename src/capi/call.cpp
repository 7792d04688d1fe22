#include "capi/call.hpp"

#include <algorithm>
#include <cstring>

namespace farhaul::capi {

namespace {

// A fixed buffer: an error can be kept when there is no memory, and the pointer handed out stays valid.
constexpr std::size_t kTextSize = 1024;
thread_local char last_text[kTextSize] = "";

}  // namespace

void set_last_error(std::string_view text) noexcept {
    const std::size_t size = std::min(text.size(), kTextSize - 1);
    std::memcpy(last_text, text.data(), size);
    last_text[size] = '\0';
}

const char* last_error() noexcept { return last_text; }

int code_of(const Error& error) noexcept {
    if (error.code == ErrorCode::kRetry) return SDR_RETRY;
    set_last_error(error.message.empty() ? to_string(error.code) : std::string_view(error.message));
    return SDR_ERROR;
}

std::unexpected<Error> null_argument(const char* function, const char* argument) {
    return fail(ErrorCode::kInvalidArgument, "{}: argument `{}` is NULL", function, argument);
}

}  // namespace farhaul::capi
