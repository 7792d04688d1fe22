// CRC32C (Castagnoli, RFC 3720 appendix B.4), the checksum of frames and files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace farhaul {

/// The CRC of `bytes` appended to data whose CRC is `previous` (0 for none): crc32c(b, crc32c(a)) == crc32c(ab).
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous = 0);

}  // namespace farhaul
