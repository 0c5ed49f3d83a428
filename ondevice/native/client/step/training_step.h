// The training step, open and ready: named arrays in, the weighted loss and gradients out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/contract/artifact.h"
#include "client/step/micro_batch.h"

namespace fedss {

class TrainingStep {
 public:
  virtual ~TrainingStep() = default;

  const StepSignature& signature() const { return artifact_.signature; }
  int64_t micro_batch() const { return artifact_.micro_batch(); }
  MicroBatch empty_batch() const { return fedss::empty_batch(signature(), artifact_.bounds); }
  // Arrays for gradients: as the weights, but with room for the most rows that a step takes.
  Arrays gradient_room() const;
  // The signature's inputs, of a whole micro-batch; read where they lie.  Writes the gradients and returns the loss.
  float run(const StepArrays&, Arrays& gradients);

  virtual int64_t planned_bytes() = 0;
  // Nanoseconds of every instruction of the program in the last run, of a step that was opened `profiled`.
  virtual std::vector<int64_t> profile() { return {}; }

 protected:
  explicit TrainingStep(const Artifact& artifact) : artifact_(artifact) {}
  // `run` after the arrays were checked.
  virtual float run_checked(const StepArrays&, Arrays& gradients) = 0;

  const Artifact& artifact_;
};

// What a step is given: views of the weights, with so many rows of every table, of side arrays and of a batch.
void add_weights(StepArrays&, const StepSignature&, const Arrays& weights, const Bounds& values);
void add_batch(StepArrays&, const MicroBatch&);

// The names of `ondevice.backends.opening`: `executorch`, our step with our kernels (`step.pte`), or
// `executorch-stock`, the baseline to compare with (`stock_step.pte`).
std::unique_ptr<TrainingStep> open_step(
    const Artifact&, const std::string& runtime, int threads, bool profiled = false);

}  // namespace fedss
