// A 128-bit product, for exact arithmetic on rates and times. GCC and clang have it; ISO C++ has not.
#pragma once

namespace farhaul {

__extension__ using Uint128 = unsigned __int128;

}  // namespace farhaul
