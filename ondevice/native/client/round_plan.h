// What the server tells a client of a round, and the client's number in it: the C++ twin of RoundPlan in ondevice/contract/vocabulary.py.
#pragma once

#include <cstdint>

#include "wire.h"

namespace fedss {

enum class Method { fedss, negatives_only, positives_only, full_softmax };

struct LocalTraining {
  int64_t epochs, batch_size;
  float learning_rate, weight_decay, momentum;
};

struct RoundPlan {
  Envelope envelope;
  Precision precision;
  int64_t num_classes, num_negatives;
  Method method;
  LocalTraining local_training;
};

}  // namespace fedss
