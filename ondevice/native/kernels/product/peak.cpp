// Nothing but multiply-adds, in registers: what this processor could do at most, to hold the other kernels against.
#include "kernels/kernels.h"
#include "kernels/registers/vector.h"

namespace fedss::FEDSS_ISA {

// As many chains as hide the latency of a multiply-add on today's cores, and as fit into sixteen registers.
constexpr int kChains = 12;

int64_t multiply_adds(int64_t rounds, float* out) {
  Vector sums[kChains];
  for (int i = 0; i < kChains; i++) sums[i] = broadcast(out[0] + i);
  // From memory, so that nothing is known of them; sums go to 1 / (1 - factor), and are numbers of ordinary size.
  const Vector factor = broadcast(out[1]), one = broadcast(out[2]);
  for (int64_t round = 0; round < rounds; round++)
    for (int i = 0; i < kChains; i++) sums[i] = sums[i] * factor + one;
  for (int i = 1; i < kChains; i++) sums[0] += sums[i];
  store(out, sums[0]);
  return rounds * kChains * kLanes;
}

}  // namespace fedss::FEDSS_ISA
