// A step of several programs, one per length of texts: every micro-batch goes through the shortest that holds it.  The
// C++ twin of ondevice/backends/per_length.py.
#pragma once

#include <functional>
#include <memory>

#include "client/step/training_step.h"

namespace fedss {

// Opens the programs of an artifact as if all texts had one length.
using OpenOne = std::function<std::unique_ptr<TrainingStep>(const Artifact&)>;

std::unique_ptr<TrainingStep> open_per_length_step(const Artifact&, OpenOne);

}  // namespace fedss
