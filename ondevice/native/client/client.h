// A client of the federation: it asks for rows, trains the slice it gets, and answers with the difference.  The C++
// twin of ondevice/client/client.py.
#pragma once

#include <cstdint>
#include <string>

#include "client/contract/link.h"
#include "client/contract/wire.h"
#include "client/device_files.h"
#include "client/step/exported_program.h"

namespace fedss {

// Holds what never leaves the device: the examples and the private seed.
class Client {
 public:
  // Programs are opened once there is a slice for them: a device that only asks for rows needs no runtime.
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
