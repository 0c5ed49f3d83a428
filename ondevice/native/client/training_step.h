// The training step, open and ready: weights and a micro-batch in, the weighted loss and gradients out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "artifact.h"

namespace fedss {

// Up to `micro_batch` examples; what is left over is padding, which weighs nothing.
struct MicroBatch {
  std::vector<float> images;    // [micro_batch, C, H, W]
  std::vector<int64_t> labels;  // positions among the columns
  std::vector<float> example_weight;
};

class TrainingStep {
 public:
  virtual ~TrainingStep() = default;

  MicroBatch empty_batch() const;
  // Arrays for gradients: as the weights, but with room for the columns of the widest step.
  Arrays gradient_room() const;
  // Reads the weights and writes the gradients where they are; returns the loss.
  float run(const Arrays& weights, const std::vector<float>& adjust, const MicroBatch&, Arrays& gradients);

  virtual int64_t planned_bytes() = 0;

 protected:
  explicit TrainingStep(const Artifact& artifact) : artifact_(artifact) {}
  // `run` after the width was checked.
  virtual float run_checked(const Arrays& weights, const std::vector<float>& adjust, const MicroBatch&, Arrays& gradients) = 0;

  const Artifact& artifact_;
};

// The names of `ondevice.backends.opening`: `executorch`, our step with our kernels (`step.pte`), or `executorch-stock`, the
// baseline to compare with (`stock_step.pte`).
std::unique_ptr<TrainingStep> open_step(const Artifact&, const std::string& runtime, int threads);

}  // namespace fedss
