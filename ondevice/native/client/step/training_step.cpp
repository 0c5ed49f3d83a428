#include "client/step/training_step.h"

#include <algorithm>

#include "client/contract/failure.h"
#include "client/step/stock_step.h"
#include "runtime/program.h"

namespace fedss {
namespace {

fedss_tensor tensor(const void* data, const Dimensions& shape, Dtype dtype) {
  const int32_t type = dtype == Dtype::F32 ? 0 : dtype == Dtype::I64 ? 1 : 2;
  fedss_tensor result{const_cast<void*>(data), {}, static_cast<int32_t>(shape.size()), type};
  std::copy(shape.begin(), shape.end(), result.sizes);
  return result;
}

// Weights are inputs of the program, read where they lie.
class FunctionalStep final : public TrainingStep {
 public:
  FunctionalStep(const Artifact& artifact, bool profiled)
      : TrainingStep(artifact), trained_(artifact.signature.trained()) {
    const std::string path = artifact.path("step.pte");
    program_.reset(fedss_open(path.c_str(), profiled));
    if (!program_)
      throw BadFile(path + ": " + fedss_last_error() + "; export it again, with this version of ExecuTorch");
  }

  int64_t planned_bytes() override { return fedss_planned_memory(program_.get()); }
  std::vector<int64_t> profile() override {
    std::vector<int64_t> nanoseconds(fedss_profile(program_.get(), nullptr, 0));
    fedss_profile(program_.get(), nanoseconds.data(), static_cast<int64_t>(nanoseconds.size()));
    return nanoseconds;
  }

 protected:
  float run_checked(const StepArrays& arrays, Arrays& gradients) override {
    float loss = 0;
    std::vector<fedss_tensor> inputs, outputs{tensor(&loss, {}, Dtype::F32)};
    for (const ArraySpec& spec : signature().inputs()) {
      const ArrayView& array = arrays.at(spec.name);
      inputs.push_back(tensor(array.data, array.shape, array.dtype));
    }
    for (size_t i = 0; i < trained_.size(); i++)
      outputs.push_back(tensor(gradients[i].data(), trained_[i].sizes(artifact_.bounds), Dtype::F32));
    if (!fedss_run(program_.get(), inputs.data(), inputs.size(), outputs.data(), outputs.size()))
      throw Failure(1, std::string("the training step failed: ") + fedss_last_error());
    return loss;
  }

 private:
  struct Close {
    void operator()(fedss_program* program) const { fedss_close(program); }
  };
  const std::vector<ArraySpec> trained_;
  std::unique_ptr<fedss_program, Close> program_;
};

}  // namespace

std::unique_ptr<TrainingStep> open_step(
    const Artifact& artifact, const std::string& runtime, int threads, bool profiled) {
  if (!fedss_set_threads(threads))
    throw Failure(
        1, "ExecuTorch could not make a pool of " + std::to_string(threads) + " threads; is there a /proc/cpuinfo?");
  if (runtime == "executorch") return std::make_unique<FunctionalStep>(artifact, profiled);
  if (runtime == "executorch-stock") return open_stock_step(artifact);
  throw UsageError("--runtime is '" + runtime + "'; this client has executorch and executorch-stock");
}

void add_weights(StepArrays& arrays, const StepSignature& signature, const Arrays& weights, const Bounds& values) {
  const std::vector<ArraySpec> trained = signature.trained();
  for (size_t i = 0; i < trained.size(); i++)
    arrays[trained[i].name] = {Dtype::F32, trained[i].sizes(values), weights[i].data()};
}

void add_batch(StepArrays& arrays, const MicroBatch& batch) {
  for (const NamedArray& array : batch) arrays[array.spec.name] = array.view();
}

Arrays TrainingStep::gradient_room() const {
  Arrays arrays;
  for (const ArraySpec& spec : signature().trained()) arrays.emplace_back(element_count(spec.sizes(artifact_.bounds)));
  return arrays;
}

float TrainingStep::run(const StepArrays& arrays, Arrays& gradients) {
  const int64_t examples = check_arrays(signature(), arrays, artifact_.bounds).at(kExamples);
  if (examples != micro_batch())
    throw BadFile(
        std::to_string(examples) + " examples; the step takes " + std::to_string(micro_batch()) + ": pad the batch");
  return run_checked(arrays, gradients);
}

}  // namespace fedss
