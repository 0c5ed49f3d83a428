#include "client/program/measurement.h"

#include <time.h>

#include <algorithm>
#include <cstdio>

namespace fedss {
namespace {

double milliseconds(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

}  // namespace

double wall_ms() { return milliseconds(CLOCK_MONOTONIC); }

double cpu_ms() { return milliseconds(CLOCK_PROCESS_CPUTIME_ID); }

int64_t peak_footprint_bytes() {
  long high_water = 0, resident = 0, swapped = 0;
  char line[256];
  if (std::FILE* status = std::fopen("/proc/self/status", "r")) {
    while (std::fgets(line, sizeof line, status)) {
      std::sscanf(line, "VmHWM: %ld", &high_water);
      std::sscanf(line, "VmRSS: %ld", &resident);
      std::sscanf(line, "VmSwap: %ld", &swapped);
    }
    std::fclose(status);
  }
  return 1024 * std::max(high_water, resident + swapped);
}

}  // namespace fedss
