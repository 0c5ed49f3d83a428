// Every second column of a row, and the way back.
#pragma once

#include "kernels/registers/vector.h"

namespace fedss::FEDSS_ISA {

// The even and the odd columns of two registers.
#if defined(__AVX2__)
constexpr Mask kEven = {0, 2, 4, 6, 8, 10, 12, 14}, kOdd = {1, 3, 5, 7, 9, 11, 13, 15};
// And the way back: the columns of both halves in turn.
constexpr Mask kFirst = {0, 8, 1, 9, 2, 10, 3, 11}, kSecond = {4, 12, 5, 13, 6, 14, 7, 15};
#else
constexpr Mask kEven = {0, 2, 4, 6}, kOdd = {1, 3, 5, 7};
constexpr Mask kFirst = {0, 4, 1, 5}, kSecond = {2, 6, 3, 7};
#endif

}  // namespace fedss::FEDSS_ISA
