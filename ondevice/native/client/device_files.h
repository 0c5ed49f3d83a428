// What lies on a device beside the artifact and the plan: the client's examples and its private seed.  The formats are
// described, and written, in ondevice/client/device_files.py.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "client/contract/files/whole_file.h"
#include "client/contract/safetensors.h"

namespace fedss {

// Labelled examples: `feature/NAME` U8, I64 or F32 [N, ...], left where they lie in the file, and `labels` I64 [N].
class ExampleSet {
 public:
  explicit ExampleSet(const std::string& path);

  const std::vector<int64_t>& labels() const { return labels_; }
  const std::map<std::string, TensorView>& features() const { return features_; }  // by NAME
  // All values of an I64 feature of these examples.  Raises BadFile where there is none.
  std::vector<int64_t> numbers(const std::string& name, const std::vector<int64_t>& positions) const;

 private:
  MappedFile file_;
  std::vector<int64_t> labels_;
  std::map<std::string, TensorView> features_;
};

uint64_t read_seed(const std::string& path);

}  // namespace fedss
