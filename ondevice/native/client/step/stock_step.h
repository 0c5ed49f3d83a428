// The baseline: ExecuTorch's own joint training graph, `stock_step.pte`, with the runtime's own kernels.
#pragma once

#include <memory>

#include "client/step/training_step.h"

namespace fedss {

std::unique_ptr<TrainingStep> open_stock_step(const Artifact&);

}  // namespace fedss
