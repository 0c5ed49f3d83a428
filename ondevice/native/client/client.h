// A client of the federation: it asks for rows, trains the slice it gets, and answers with the difference.  The C++
// twin of ondevice/client/client.py.
#pragma once

#include <cstdint>
#include <string>

#include "client/contract/link.h"
#include "client/contract/wire.h"
#include "client/device_files.h"

namespace fedss {

// Where the step is, and how it is run.
struct StepPlace {
  std::string artifact, runtime;
  int threads;
};

// Holds what never leaves the device: the examples and the private seed.
class Client {
 public:
  // The step is opened once there is a slice to train: a device that only asks needs no runtime.
  Client(const ExampleSet& examples, uint64_t private_seed, const StepPlace& place)
      : examples_(examples), private_seed_(private_seed), place_(place) {}

  // Lines 5-11 of Algorithm 1: writes the update to `out`, and returns what it was trained on and its mean loss.
  // Everything random is a function of (seed, round), so it can be held again from its start.
  struct Trained {
    int64_t num_examples;
    double mean_loss;
  };
  Trained converse(Envelope, const RoundPlan&, const Ask&, const std::string& out) const;

 private:
  const ExampleSet& examples_;
  const uint64_t private_seed_;
  const StepPlace place_;
};

}  // namespace fedss
