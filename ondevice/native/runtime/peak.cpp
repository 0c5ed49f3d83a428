// How fast this processor multiplies and adds when nothing else is to do.
#include <algorithm>

#include "kernels/kernels.h"
#include "runtime/processor_time.h"
#include "runtime/program.h"

double fedss_peak_multiply_adds_per_nanosecond() {
  constexpr int kTries = 8;
  constexpr int64_t kRounds = 50000;  // about a tenth of a millisecond: rarely interrupted
  double best = 0;
  for (int i = 0; i < kTries; i++) {
    float numbers[16] = {1, 0.5f, 1};
    const int64_t start = fedss::processor_nanoseconds();
    const int64_t done = fedss::kernels().multiply_adds(kRounds, numbers);
    const int64_t taken = std::max<int64_t>(fedss::processor_nanoseconds() - start, 1);
    best = std::max(best, static_cast<double>(done) / static_cast<double>(taken));
  }
  return best;
}
