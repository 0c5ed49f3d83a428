// Timed steps on made-up examples: JSON lines on stdout, one when the step is open, one per step, one at the end; a
// profile is one more before that.
//
// A step here is the gradients of one batch, in micro-batches; the optimizer's update is left out, being the same for
// all runtimes.  The examples come from a formula that android_harness/bundles/onnxruntime_client/bench.py repeats, so
// that the losses of two runtimes can be compared.
#pragma once

#include <string>

#include "client/contract/artifact.h"

namespace fedss {

struct BenchJob {
  std::string runtime;
  int64_t width, batch, micro_batch, steps, warmup;
  int threads;
  bool profiled;
};

void bench(const Artifact&, const BenchJob&);

}  // namespace fedss
