#include "client/step/golden_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "client/contract/failure.h"

namespace fedss {
namespace {

constexpr double kRelativeTolerance = 1e-5, kEagerMultiple = 3, kAbsoluteTolerance = 1e-7;
constexpr double kLargestEagerDistance = 1e-2, kSmallestNorm = 1e-3;  // as in golden_bounds.py

bool all_finite(const TensorView& view) {
  std::vector<float> values(element_count(view.shape));
  view.floats(values.data());
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) : path_(path), mapped_(path), file_(read_tensors(mapped_.bytes())) {}

  const TensorView& tensor(const std::string& name, Dtype dtype) const {
    const auto found = file_.tensors.find(name);
    if (found == file_.tensors.end() || found->second.dtype != dtype) fail(name);
    return found->second;
  }
  // The input that a spec describes, as many examples and rows as there are in the file.
  NamedArray input(const ArraySpec& spec) const {
    const std::string name = "input/" + spec.name;
    const TensorView& view = tensor(name, spec.dtype);
    if (view.shape.size() != spec.shape.size() || (spec.dtype == Dtype::F32 && !all_finite(view))) fail(name);
    NamedArray array(spec, view.shape);
    if (view.bytes.size) std::memcpy(array.entry(0), view.bytes.data, view.bytes.size);
    return array;
  }
  std::vector<float> floats(const std::string& name, const Dimensions& shape) const {
    const TensorView& view = tensor(name, Dtype::F32);
    if (view.shape != shape || !all_finite(view)) fail(name);
    std::vector<float> values(element_count(shape));
    view.floats(values.data());
    return values;
  }
  [[noreturn]] void fail(const std::string& name) const {
    throw BadFile(path_ + ": " + name + " is missing, or not what the manifest makes it; export it again");
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  const MappedFile mapped_;
  const TensorFile file_;
};

void compare(
    Comparison& so_far, const std::string& name, const float* found, const std::vector<float>& expected,
    double eager_distance, double slack) {
  double norm = 0, distance = 0;
  for (size_t i = 0; i < expected.size(); i++) {
    const double difference = static_cast<double>(found[i]) - expected[i];
    norm += static_cast<double>(expected[i]) * expected[i];
    distance += difference * difference;
  }
  norm = std::sqrt(norm), distance = std::sqrt(distance);
  if (!(eager_distance >= 0 && eager_distance <= kLargestEagerDistance * std::max(norm, kSmallestNorm)))
    throw BadFile(
        "golden.safetensors: eager_distance of " + name + " is " + std::to_string(eager_distance) +
        ", and would excuse a wrong gradient; export it again");
  const double allowed =
      slack * std::max({kRelativeTolerance * norm, kEagerMultiple * eager_distance, kAbsoluteTolerance});
  const double relative = distance / std::max(norm, kAbsoluteTolerance / kRelativeTolerance);
  so_far.outputs++;
  so_far.missed += !(distance <= allowed);  // written so that a NaN misses it too
  if (!(distance / allowed <= so_far.worst_excess)) so_far.worst_excess = distance / allowed;
  if (!so_far.worst_tensor.empty() && relative <= so_far.worst_relative_error) return;
  so_far.worst_tensor = name;
  so_far.worst_relative_error = relative;
}

// The golden step's inputs with the examples that are missing to a micro-batch; `values` become the symbols' sizes.
std::vector<NamedArray> padded_inputs(const GoldenFile& golden, const Artifact& artifact, Bounds& values) {
  std::vector<NamedArray> given, padded;
  StepArrays arrays;
  for (const ArraySpec& spec : artifact.signature.inputs())
    if (spec.role != Role::dense) given.push_back(golden.input(spec));
  for (const NamedArray& array : given) arrays[array.spec.name] = array.view();
  for (const ArraySpec& spec : artifact.signature.of_role({Role::dense}))
    arrays[spec.name] = {Dtype::F32, spec.sizes({}), nullptr};
  try {
    values = check_arrays(artifact.signature, arrays, artifact.bounds);
  } catch (const BadFile& error) {
    throw BadFile(golden.path() + ": " + error.what() + "; export it again");
  }
  values[kExamples] = artifact.micro_batch();
  for (NamedArray& array : given) {
    padded.emplace_back(array.spec, array.spec.sizes(values));
    std::memcpy(padded.back().entry(0), array.entry(0), array.shape[0] * array.entry_bytes);
  }
  return padded;
}

void check_one(
    Comparison& result, const Artifact& artifact, const std::string& name, TrainingStep& step, double slack) {
  const GoldenFile golden(artifact.path(name));
  Bounds values;
  const std::vector<NamedArray> inputs = padded_inputs(golden, artifact, values);
  const Arrays weights = artifact.initial(values);
  StepArrays arrays;
  add_weights(arrays, artifact.signature, weights, values);
  for (const NamedArray& input : inputs) arrays[input.spec.name] = input.view();  // the tables among them
  Arrays gradients = step.gradient_room();
  const float loss = step.run(arrays, gradients);
  const std::vector<ArraySpec> trained = artifact.signature.trained();
  const int64_t outputs = static_cast<int64_t>(trained.size()) + 1;
  const std::vector<float> eager_distance = golden.floats("eager_distance", {outputs});  // the loss's is last
  for (size_t i = 0; i < trained.size(); i++) {
    const std::vector<float> expected =
        golden.floats("output/" + gradient_of(trained[i].name), trained[i].sizes(values));
    compare(result, trained[i].name, gradients[i].data(), expected, eager_distance[i], slack);
  }
  compare(result, "loss", &loss, golden.floats("output/loss", {1}), eager_distance.back(), slack);
}

}  // namespace

Comparison check_golden(const Artifact& artifact, TrainingStep& step, double slack) {
  Comparison result;
  for (const std::string& name : artifact.golden_files()) check_one(result, artifact, name, step, slack);
  return result;
}

}  // namespace fedss
