// Element types and operations of collectives, and the loop that combines two buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace farhaul::collective {

enum class DataType : std::uint8_t { kFloat32, kFloat64, kBfloat16, kInt32, kInt64 };
enum class Operation : std::uint8_t { kSum, kMin, kMax };

/// Bytes of an element: 2, 4 or 8.
std::size_t size_of(DataType type);
/// `float32`, `float64`, `bfloat16`, `int32`, `int64`; and nccl-tests' `float`, `double`. Errors: kInvalidArgument
/// naming them all.
Result<DataType> parse_data_type(std::string_view text);
std::string_view to_string(DataType type);
/// `sum`, `min`, `max`.
Result<Operation> parse_operation(std::string_view text);
std::string_view to_string(Operation operation);

/// into[i] = operation(into[i], from[i]) for `count` elements; neither needs alignment; they do not overlap.
///
/// Integers wrap around. A sum of bfloat16 is made in float32 and rounded to nearest, ties to even, each time. Of a
/// minimum or maximum with a NaN in either place the result is a NaN, wherever it stood, so that all ranks agree.
void reduce(DataType type, Operation operation, std::byte* into, const std::byte* from, std::size_t count);

/// Conversions of single values, for those who fill or check buffers.
float from_bfloat16(std::uint16_t bits);
/// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
std::uint16_t to_bfloat16(float value);

}  // namespace farhaul::collective
