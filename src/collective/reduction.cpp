#include "collective/reduction.hpp"

#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

// One body, compiled for what the machine has: chosen once by the loader. Sanitizers do not get along with that.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FARHAUL_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FARHAUL_VECTOR_CLONES
#endif

namespace farhaul::collective {
namespace {

constexpr std::pair<DataType, std::string_view> kTypes[] = {{DataType::kFloat32, "float32"},
                                                            {DataType::kFloat64, "float64"},
                                                            {DataType::kBfloat16, "bfloat16"},
                                                            {DataType::kInt32, "int32"},
                                                            {DataType::kInt64, "int64"}};
constexpr std::pair<Operation, std::string_view> kOperations[] = {
    {Operation::kSum, "sum"}, {Operation::kMin, "min"}, {Operation::kMax, "max"}};

template <typename T>
T load(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}
template <typename T>
void store(std::byte* at, T value) {
    std::memcpy(at, &value, sizeof value);
}

template <typename T>
struct Sum {
    T operator()(T a, T b) const {
        if constexpr (std::is_integral_v<T>) {
            using U = std::make_unsigned_t<T>;
            return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
        } else {
            return a + b;
        }
    }
};
// `a != a` is a NaN; the sum of both keeps it whichever of them it was. Written so that compilers make vectors of it.
template <typename T>
struct Min {
    T operator()(T a, T b) const {
        const T least = b < a ? b : a;
        if constexpr (std::is_floating_point_v<T>) return a != a || b != b ? a + b : least;
        return least;
    }
};
template <typename T>
struct Max {
    T operator()(T a, T b) const {
        const T most = a < b ? b : a;
        if constexpr (std::is_floating_point_v<T>) return a != a || b != b ? a + b : most;
        return most;
    }
};

template <typename T, typename Op>
[[gnu::always_inline]] inline void combine(std::byte* __restrict into, const std::byte* __restrict from,
                                           std::size_t count, Op op) {
    for (std::size_t i = 0; i < count; ++i)
        store<T>(into + i * sizeof(T), op(load<T>(into + i * sizeof(T)), load<T>(from + i * sizeof(T))));
}

template <typename Op>
[[gnu::always_inline]] inline void combine_bfloat16(std::byte* __restrict into, const std::byte* __restrict from,
                                                    std::size_t count, Op op) {
    for (std::size_t i = 0; i < count; ++i)
        store(into + i * 2, to_bfloat16(op(from_bfloat16(load<std::uint16_t>(into + i * 2)),
                                           from_bfloat16(load<std::uint16_t>(from + i * 2)))));
}

#define FARHAUL_COMBINE(name, body)                                                                                   \
    FARHAUL_VECTOR_CLONES void name(Operation operation, std::byte* into, const std::byte* from, std::size_t count) { \
        switch (operation) {                                                                                          \
            case Operation::kSum:                                                                                     \
                body(Sum);                                                                                            \
                break;                                                                                                \
            case Operation::kMin:                                                                                     \
                body(Min);                                                                                            \
                break;                                                                                                \
            case Operation::kMax:                                                                                     \
                body(Max);                                                                                            \
                break;                                                                                                \
        }                                                                                                             \
    }
#define FARHAUL_FLOAT32(op) combine<float>(into, from, count, op<float>())
#define FARHAUL_FLOAT64(op) combine<double>(into, from, count, op<double>())
#define FARHAUL_INT32(op) combine<std::int32_t>(into, from, count, op<std::int32_t>())
#define FARHAUL_INT64(op) combine<std::int64_t>(into, from, count, op<std::int64_t>())
#define FARHAUL_BFLOAT16(op) combine_bfloat16(into, from, count, op<float>())
FARHAUL_COMBINE(reduce_float32, FARHAUL_FLOAT32)
FARHAUL_COMBINE(reduce_float64, FARHAUL_FLOAT64)
FARHAUL_COMBINE(reduce_int32, FARHAUL_INT32)
FARHAUL_COMBINE(reduce_int64, FARHAUL_INT64)
FARHAUL_COMBINE(reduce_bfloat16, FARHAUL_BFLOAT16)

template <typename T, std::size_t N>
std::string names_of(const std::pair<T, std::string_view> (&table)[N]) {
    std::string names;
    for (std::size_t i = 0; i < N; ++i) {
        if (i > 0) names += i + 1 == N ? " or " : ", ";
        names += table[i].second;
    }
    return names;
}

}  // namespace

float from_bfloat16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

std::uint16_t to_bfloat16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const std::uint32_t quiet = bits >> 16 | 0x40;
    return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

std::size_t size_of(DataType type) {
    switch (type) {
        case DataType::kBfloat16:
            return 2;
        case DataType::kFloat32:
        case DataType::kInt32:
            return 4;
        case DataType::kFloat64:
        case DataType::kInt64:
            return 8;
    }
    return 0;
}

Result<DataType> parse_data_type(std::string_view text) {
    if (text == "float") return DataType::kFloat32;
    if (text == "double") return DataType::kFloat64;
    for (const auto& [type, name] : kTypes)
        if (text == name) return type;
    return fail(ErrorCode::kInvalidArgument, "there is no data type '{}': it is {}", text, names_of(kTypes));
}

std::string_view to_string(DataType type) {
    for (const auto& [known, name] : kTypes)
        if (known == type) return name;
    return "?";
}

Result<Operation> parse_operation(std::string_view text) {
    for (const auto& [operation, name] : kOperations)
        if (text == name) return operation;
    return fail(ErrorCode::kInvalidArgument, "there is no operation '{}': it is {}", text, names_of(kOperations));
}

std::string_view to_string(Operation operation) {
    for (const auto& [known, name] : kOperations)
        if (known == operation) return name;
    return "?";
}

void reduce(DataType type, Operation operation, std::byte* into, const std::byte* from, std::size_t count) {
    switch (type) {
        case DataType::kFloat32:
            return reduce_float32(operation, into, from, count);
        case DataType::kFloat64:
            return reduce_float64(operation, into, from, count);
        case DataType::kBfloat16:
            return reduce_bfloat16(operation, into, from, count);
        case DataType::kInt32:
            return reduce_int32(operation, into, from, count);
        case DataType::kInt64:
            return reduce_int64(operation, into, from, count);
    }
}

}  // namespace farhaul::collective
