// The noise of one batch: what dropout and its like decide by, drawn anew for every example of every SGD step.
// The C++ twin of ondevice/client/noise.py, draw for draw.
#pragma once

#include <cstdint>

#include "client/contract/portable_random.h"
#include "client/step/micro_batch.h"

namespace fedss {

class BatchNoise {
 public:
  // `number` counts the SGD steps of the round from 0.
  BatchNoise(uint64_t seed, uint64_t round_index, uint64_t number) : random_(seed, round_index, kNoise + number) {}

  // The noise arrays of the micro-batch, for as many of the `left` examples of the batch as it takes.
  void fill(MicroBatch&, size_t left);

 private:
  PortableRandom random_;
};

}  // namespace fedss
