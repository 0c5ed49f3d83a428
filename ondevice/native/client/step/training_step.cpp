#include "client/step/training_step.h"

#include "client/contract/failure.h"
#include "client/step/exported_program.h"
#include "client/step/per_length_step.h"
#include "client/step/stock_step.h"

namespace fedss {
namespace {

// Weights are inputs of the program, read where they lie.
class FunctionalStep final : public TrainingStep {
 public:
  FunctionalStep(const Artifact& artifact, bool profiled)
      : TrainingStep(artifact), trained_(artifact.signature.trained()), program_(artifact, "step.pte", profiled) {}

  int64_t planned_bytes() override { return program_.planned_bytes(); }
  std::vector<int64_t> profile() override { return program_.profile(); }

 protected:
  float run_checked(const StepArrays& arrays, Arrays& gradients) override {
    float loss = 0;
    std::vector<ArrayView> inputs;
    for (const ArraySpec& spec : signature().inputs()) inputs.push_back(arrays.at(spec.name));
    std::vector<ExportedProgram::Output> outputs{{&loss, {}}};
    for (size_t i = 0; i < trained_.size(); i++)
      outputs.push_back({gradients[i].data(), trained_[i].sizes(artifact_.bounds)});
    program_.run(inputs, outputs);
    return loss;
  }

 private:
  const std::vector<ArraySpec> trained_;
  ExportedProgram program_;
};

}  // namespace

std::unique_ptr<TrainingStep> open_step(
    const Artifact& artifact, const std::string& runtime, int threads, bool profiled) {
  set_threads(threads);
  if (artifact.lengths.sizes.size() > 1)
    return open_per_length_step(
        artifact, [=](const Artifact& one) { return open_step(one, runtime, threads, profiled); });
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
