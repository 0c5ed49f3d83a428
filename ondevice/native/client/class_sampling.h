// Which classes a client asks for, and what is added to their logits: the C++ twin of ondevice/client/class_sampling.py.
#pragma once

#include <cstdint>
#include <vector>

#include "round_plan.h"

namespace fedss {

// S_k as the client knows it; only `class_ids` ever leaves the device.
struct ClassSample {
  std::vector<int64_t> class_ids;  // sorted; a class's position is its local label
  std::vector<float> adjust;       // added to the logit of every class that is not the example's own
};

// The same labels, plan and seed give the same sample, here and in Python.
ClassSample sample_classes(const std::vector<int64_t>& labels, const RoundPlan&, uint64_t private_seed);

}  // namespace fedss
