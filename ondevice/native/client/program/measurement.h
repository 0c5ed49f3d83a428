// What a process can say of itself: clocks, and the most memory that it has held.
#pragma once

#include <cstdint>

namespace fedss {

double wall_ms();
double cpu_ms();  // of all threads of this process

// The most bytes held so far: the larger of VmHWM and VmRSS + VmSwap now.  A phone moves pages to compressed swap.
int64_t peak_footprint_bytes();

}  // namespace fedss
