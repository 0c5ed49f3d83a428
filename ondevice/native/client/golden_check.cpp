#include "golden_check.h"

#include <algorithm>
#include <cmath>

#include "failure.h"

namespace fedss {
namespace {

constexpr double kRelativeTolerance = 1e-5, kEagerMultiple = 3, kAbsoluteTolerance = 1e-7;
constexpr double kLargestEagerDistance = 1e-2, kSmallestNorm = 1e-3;  // as in ondevice/contract/golden_bounds.py

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) : path_(path), mapped_(path), file_(read_tensors(mapped_.bytes())) {}

  const TensorView& tensor(const std::string& name, Dtype dtype) const {
    const auto found = file_.tensors.find(name);
    if (found == file_.tensors.end() || found->second.dtype != dtype) fail(name);
    return found->second;
  }
  std::vector<float> floats(const std::string& name, int64_t count) const {
    const TensorView& view = tensor(name, Dtype::F32);
    if (element_count(view.shape) != count) fail(name);
    std::vector<float> values(count);
    view.floats(values.data());
    return values;
  }
  [[noreturn]] void fail(const std::string& name) const {
    throw BadFile(path_ + ": " + name + " is missing, or not what the manifest makes it; export it again");
  }

 private:
  const std::string path_;
  const MappedFile mapped_;
  const TensorFile file_;
};

void compare(
    Comparison& so_far, const std::string& name, const float* found, const std::vector<float>& expected, double eager_distance,
    double slack) {
  double norm = 0, distance = 0;
  for (size_t i = 0; i < expected.size(); i++) {
    const double difference = static_cast<double>(found[i]) - expected[i];
    norm += static_cast<double>(expected[i]) * expected[i];
    distance += difference * difference;
  }
  norm = std::sqrt(norm), distance = std::sqrt(distance);
  if (!(eager_distance >= 0 && eager_distance <= kLargestEagerDistance * std::max(norm, kSmallestNorm)))
    throw BadFile("golden.safetensors: eager_distance of " + name + " is " + std::to_string(eager_distance) +
                  ", and would excuse a wrong gradient; export it again");
  const double allowed = slack * std::max({kRelativeTolerance * norm, kEagerMultiple * eager_distance, kAbsoluteTolerance});
  const double relative = distance / std::max(norm, kAbsoluteTolerance / kRelativeTolerance);
  so_far.outputs++;
  so_far.missed += !(distance <= allowed);  // written so that a NaN misses it too
  if (!(distance / allowed <= so_far.worst_excess)) so_far.worst_excess = distance / allowed;
  if (!so_far.worst_tensor.empty() && relative <= so_far.worst_relative_error) return;
  so_far.worst_tensor = name;
  so_far.worst_relative_error = relative;
}

}  // namespace

Comparison check_golden(const Artifact& artifact, TrainingStep& step, double slack) {
  const GoldenFile golden(artifact.path("golden.safetensors"));
  const Dimensions& columns_shape = golden.tensor("columns", Dtype::F32).shape;
  if (columns_shape.size() != 2 || columns_shape[1] != artifact.column_dim) golden.fail("columns");
  const int64_t width = columns_shape[0];
  Arrays weights = artifact.initial(width);
  weights.back() = golden.floats("columns", width * artifact.column_dim);
  const std::vector<int64_t> labels = golden.tensor("labels", Dtype::I64).integers();
  const int64_t examples = static_cast<int64_t>(labels.size());
  const auto out_of_range = [&](int64_t label) { return label < 0 || label >= width; };
  if (examples > artifact.micro_batch || std::any_of(labels.begin(), labels.end(), out_of_range)) golden.fail("labels");
  MicroBatch batch = step.empty_batch();
  const auto fill = [](const auto& from, auto& to) { std::copy(from.begin(), from.end(), to.begin()); };
  fill(golden.floats("images", examples * element_count(artifact.image_shape)), batch.images);
  fill(labels, batch.labels);
  fill(golden.floats("example_weight", examples), batch.example_weight);
  Arrays gradients = step.gradient_room();
  const float loss = step.run(weights, golden.floats("adjust", width), batch, gradients);
  // The distances follow the gradients' order; the columns' is last but one, the loss's is last.
  const std::vector<float> eager_distance = golden.floats("eager_distance", static_cast<int64_t>(gradients.size()) + 1);
  Comparison result;
  for (size_t i = 0; i < gradients.size(); i++) {
    const std::string name = i < artifact.trainable.size() ? artifact.trainable[i].name : "columns";
    const std::vector<float> expected = golden.floats("gradient/" + name, static_cast<int64_t>(weights[i].size()));
    compare(result, name, gradients[i].data(), expected, eager_distance[i], slack);
  }
  compare(result, "loss", &loss, golden.floats("loss", 1), eager_distance.back(), slack);
  return result;
}

}  // namespace fedss
