// CRC32C (Castagnoli, RFC 3720 appendix B.4), the checksum of frames and files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace farhaul {

/// The CRC of `bytes` appended to data whose CRC is `previous` (0 for none): crc32c(b, crc32c(a)) == crc32c(ab).
/// The fastest way that this CPU has is chosen at run time; all give the same result.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous = 0);

namespace detail {

/// ISA-L: three interleaved streams of the crc32 instruction, on any x86-64.
std::uint32_t crc32c_isal(std::span<const std::byte> bytes, std::uint32_t previous);
/// Carry-less multiplication (256 bits) and the crc32 instruction side by side. Only where crc32c_has_folding().
std::uint32_t crc32c_folding(std::span<const std::byte> bytes, std::uint32_t previous);
bool crc32c_has_folding();

}  // namespace detail

}  // namespace farhaul
