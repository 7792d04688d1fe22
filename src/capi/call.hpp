// What every C function is wrapped in: no exception leaves, errors become return codes and a text for sdr_last_error().
#pragma once

#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.hpp"
#include "sdr.h"

namespace farhaul::capi {

/// Remembers `text` as this thread's last error. Never throws: without memory a fixed text is kept.
void set_last_error(std::string_view text) noexcept;
/// This thread's last error; "" before the first.
const char* last_error() noexcept;

/// SDR_RETRY for kRetry, else SDR_ERROR and the text.
int code_of(const Error& error) noexcept;

/// Runs `body`, which returns a Status.
template <typename Body>
int call(Body&& body) noexcept {
    try {
        const Status status = std::forward<Body>(body)();
        return status ? static_cast<int>(SDR_SUCCESS) : code_of(status.error());
    } catch (const std::bad_alloc&) {
        set_last_error("out of memory");
    } catch (const std::exception& problem) {
        set_last_error(problem.what());
    }
    return SDR_ERROR;
}

/// Runs `body`, which returns a Result<T*>; null on failure.
template <typename T, typename Body>
T* call_for_pointer(Body&& body) noexcept {
    T* pointer = nullptr;
    call([&]() -> Status {
        Result<T*> result = std::forward<Body>(body)();
        if (!result) return propagate(result);
        pointer = *result;
        return {};
    });
    return pointer;
}

/// The number in an enum that a C caller filled in: it may be none of the enumerators, which C++ must not even load as
/// such.
template <typename Enum>
unsigned number_in(const Enum& value) noexcept {
    unsigned number = 0;
    static_assert(sizeof(value) == sizeof(number));
    std::memcpy(&number, &value, sizeof(number));
    return number;
}

/// The error for a null argument.
std::unexpected<Error> null_argument(const char* function, const char* argument);

}  // namespace farhaul::capi
