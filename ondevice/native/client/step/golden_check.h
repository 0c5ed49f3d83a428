// Whether this client reproduces the artifact's golden step: the C++ twin of ondevice/contract/golden_step.py,
// tolerance for tolerance.
#pragma once

#include <string>

#include "client/step/training_step.h"

namespace fedss {

struct Comparison {
  int outputs = 0, missed = 0;
  std::string worst_tensor;
  double worst_relative_error = 0;
  double worst_excess = 0;  // how many times the worst distance is what was allowed
};

// All golden steps of the artifact; `slack` widens every tolerance.
Comparison check_golden(const Artifact&, TrainingStep&, double slack);

}  // namespace fedss
