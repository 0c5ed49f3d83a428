// E local epochs of SGD on a client's own examples: the C++ twin of ondevice/client/local_training.py, operation for operation.
#pragma once

#include <cstdint>
#include <vector>

#include "class_sampling.h"
#include "device_files.h"
#include "training_step.h"

namespace fedss {

// SGD with optional weight decay and momentum; gradients of micro-batches add up until they are applied.
class LocalSgd {
 public:
  LocalSgd(const LocalTraining& training, TrainingStep& step) : training_(training), step_(step) {}

  // Where the next micro-batch's gradients go, and what to call once they are there.
  Arrays& next_gradients();
  void accumulate();
  void apply(Arrays& weights);
  void discard() { accumulated_ = 0; }

 private:
  const LocalTraining training_;
  TrainingStep& step_;
  Arrays total_, fresh_, velocities_;  // each made when it is first needed
  int accumulated_ = 0;
};

// Moves `weights`, the columns among them, and returns the mean loss over all examples and epochs.
double train_locally(
    TrainingStep&, const Artifact&, const ExampleSet&, const ClassSample&, const RoundPlan&, uint64_t private_seed,
    Arrays& weights);

}  // namespace fedss
