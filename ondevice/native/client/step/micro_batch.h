// The examples of one step, gathered by what the signature says of every array: the C++ twin of `micro_batches` in
// ondevice/client/local_training.py, with the padding of ondevice/contract/step_signature.py.  Bytes are copied and ids
// looked up; what the numbers mean is the step's business.
#pragma once

#include <cstdint>
#include <vector>

#include "client/contract/step_signature.h"
#include "client/contract/vocabulary.h"
#include "client/device_files.h"

namespace fedss {

// Features, labels, noise and weights of as many examples as a step takes, in the signature's order; what is left over
// is padding, which weighs nothing.
using MicroBatch = std::vector<NamedArray>;

MicroBatch empty_batch(const StepSignature&, const Bounds&);

// Fills a micro-batch from a client's examples by what the signature says of every array; noise is left to
// `BatchNoise`.
class BatchGatherer {
 public:
  // Raises BadFile where the examples lack a feature, or have it in another shape or type.
  BatchGatherer(const StepSignature&, const ExampleSet&, const RowSample&);

  // Examples `batch[first]` and on, as many as a step takes; a copy of bytes per example and array.
  void fill(
      MicroBatch&, const std::vector<int64_t>& batch, const std::vector<float>& example_weight, size_t first) const;

 private:
  struct Source {
    const uint8_t* bytes;                 // of the first example
    const std::vector<int64_t>* row_ids;  // global ids become positions among these; null where values are values
    int64_t num_classes;                  // in every list that targets are made of; 0 where there are none to make
  };
  // The union of the outputs that the classes of a list stand for.
  void set_targets(NamedArray&, int64_t index, const uint8_t* classes, int64_t num_classes) const;

  std::vector<Source> sources_;  // in the order of a MicroBatch
  const RowSample& sample_;
};

}  // namespace fedss
