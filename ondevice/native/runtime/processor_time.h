// Processor time of this process, of all its threads.
#pragma once

#include <time.h>

#include <cstdint>

namespace fedss {

inline int64_t processor_nanoseconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

}  // namespace fedss
