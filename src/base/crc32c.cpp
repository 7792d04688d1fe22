#include "base/crc32c.hpp"

#include <isa-l/crc.h>

namespace farhaul {

namespace detail {

std::uint32_t crc32c_isal(std::span<const std::byte> bytes, std::uint32_t previous) {
    // ISA-L's function works on the raw register: the initial and final inversions are the caller's. Its signature
    // lacks const; it only reads.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    std::uint32_t crc = ~previous;
    // The length parameter is an int.
    std::size_t left = bytes.size();
    while (left > 0) {
        const int part = static_cast<int>(left < (1u << 30) ? left : (1u << 30));
        crc = crc32_iscsi(data, part, crc);
        data += part;
        left -= static_cast<std::size_t>(part);
    }
    return ~crc;
}

}  // namespace detail

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous) {
    static const auto best = detail::crc32c_has_folding() ? detail::crc32c_folding : detail::crc32c_isal;
    return best(bytes, previous);
}

}  // namespace farhaul
