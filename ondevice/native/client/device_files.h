// What lies on a device beside the artifact: the round's plan, the client's examples and its private seed.  The formats are
// described, and written, in ondevice/client/device_files.py.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "files.h"
#include "round_plan.h"

namespace fedss {

// Labelled images, the pixels left where they lie in the file: uint8 [N, C, H, W].
class ExampleSet {
 public:
  explicit ExampleSet(const std::string& path);

  const std::vector<int64_t>& labels() const { return labels_; }
  const Dimensions& image_shape() const { return image_shape_; }  // C, H, W
  const uint8_t* image(int64_t index) const { return pixels_ + index * element_count(image_shape_); }

 private:
  MappedFile file_;
  std::vector<int64_t> labels_;
  Dimensions image_shape_;
  const uint8_t* pixels_;
};

RoundPlan read_plan(const std::string& path);
uint64_t read_seed(const std::string& path);

}  // namespace fedss
