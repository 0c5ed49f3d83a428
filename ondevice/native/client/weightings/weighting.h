// What a weighting sees, and what it gives: the C++ twin of ondevice/client/weightings/weighting.py.
#pragma once

#include <cstdint>
#include <vector>

#include "client/contract/vocabulary.h"

namespace fedss {

// What a client lets its weighting see, once it has its slice.
struct WeightingView {
  const RoundPlan& plan;
  const std::vector<int64_t>& labels;  // of all its examples: global row ids
  const RowIds& ids;                   // the rows of the slice
  const Sides& sides;                  // the slice's, an entry per row
  uint64_t private_seed;
};

class Weighting {
 public:
  virtual ~Weighting() = default;
  // Positions of the examples that this round trains on; one may come more than once.
  virtual std::vector<int64_t> examples(
      const RoundPlan&, const std::vector<int64_t>& labels, uint64_t private_seed) const = 0;
  // What each example of a batch weighs; they add up to 1, so that the loss is a mean.
  virtual std::vector<float> weights(const WeightingView&, const std::vector<int64_t>& batch) const = 0;
};

}  // namespace fedss
