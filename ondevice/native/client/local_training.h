// E local epochs of SGD on a client's own examples.
// The C++ twin of ondevice/client/local_training.py, operation for operation.
#pragma once

#include <cstdint>
#include <vector>

#include "client/contract/vocabulary.h"
#include "client/device_files.h"
#include "client/step/training_step.h"
#include "client/weightings/weighting.h"

namespace fedss {

// What one client trains on in one round.
struct LocalTask {
  const RoundPlan& plan;
  const ExampleSet& examples;
  const std::vector<int64_t>& positions;  // of the examples that take part, as the weighting chose them
  const Weighting& weighting;
  uint64_t private_seed;
};

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

// Moves `weights` and returns the mean loss over all examples and epochs.  `sides` are the slice's.
double train_locally(TrainingStep&, const LocalTask&, const RowSample&, const Sides& sides, Arrays& weights);

}  // namespace fedss
