#include "training_step.h"

#include <algorithm>

#include "failure.h"
#include "runtime/program.h"
#include "stock_step.h"

namespace fedss {
namespace {

fedss_tensor tensor(const void* data, const Dimensions& shape, bool is_int64 = false) {
  fedss_tensor result{const_cast<void*>(data), {}, static_cast<int32_t>(shape.size()), is_int64};
  std::copy(shape.begin(), shape.end(), result.sizes);
  return result;
}

// Weights are inputs of the program, read where they lie.
class FunctionalStep final : public TrainingStep {
 public:
  explicit FunctionalStep(const Artifact& artifact) : TrainingStep(artifact) {
    for (const Parameter& parameter : artifact.trainable)
      if (parameter.shape.size() > 4)
        throw BadFile(parameter.name + " is " + describe(parameter.shape) + "; the runtime takes at most 4 dimensions");
    const std::string path = artifact.path("step.pte");
    program_.reset(fedss_open(path.c_str(), /*profiled=*/false));
    if (!program_) throw BadFile(path + ": " + fedss_last_error() + "; export it again, with this version of ExecuTorch");
  }

  int64_t planned_bytes() override { return fedss_planned_memory(program_.get()); }

 protected:
  float run_checked(
      const Arrays& weights, const std::vector<float>& adjust, const MicroBatch& batch, Arrays& gradients) override {
    float loss = 0;
    std::vector<fedss_tensor> inputs, outputs{tensor(&loss, {})};
    for (size_t i = 0; i < artifact_.trainable.size(); i++) {
      inputs.push_back(tensor(weights[i].data(), artifact_.trainable[i].shape));
      outputs.push_back(tensor(gradients[i].data(), artifact_.trainable[i].shape));
    }
    const int64_t size = artifact_.micro_batch, width = static_cast<int64_t>(adjust.size());
    const Dimensions& image = artifact_.image_shape;
    inputs.push_back(tensor(weights.back().data(), {width, artifact_.column_dim}));
    inputs.push_back(tensor(adjust.data(), {width}));
    inputs.push_back(tensor(batch.images.data(), {size, image[0], image[1], image[2]}));
    inputs.push_back(tensor(batch.labels.data(), {size}, /*is_int64=*/true));
    inputs.push_back(tensor(batch.example_weight.data(), {size}));
    outputs.push_back(tensor(gradients.back().data(), {artifact_.max_width, artifact_.column_dim}));
    if (!fedss_run(program_.get(), inputs.data(), inputs.size(), outputs.data(), outputs.size()))
      throw Failure(1, std::string("the training step failed: ") + fedss_last_error());
    return loss;
  }

 private:
  struct Close {
    void operator()(fedss_program* program) const { fedss_close(program); }
  };
  std::unique_ptr<fedss_program, Close> program_;
};

}  // namespace

std::unique_ptr<TrainingStep> open_step(const Artifact& artifact, const std::string& runtime, int threads) {
  if (!fedss_set_threads(threads))
    throw Failure(1, "ExecuTorch could not make a pool of " + std::to_string(threads) + " threads; is there a /proc/cpuinfo?");
  if (runtime == "executorch") return std::make_unique<FunctionalStep>(artifact);
  if (runtime == "executorch-stock") return open_stock_step(artifact);
  throw UsageError("--runtime is '" + runtime + "'; this client has executorch and executorch-stock");
}

MicroBatch TrainingStep::empty_batch() const {
  const size_t size = artifact_.micro_batch;
  return {std::vector<float>(size * element_count(artifact_.image_shape)), std::vector<int64_t>(size), std::vector<float>(size)};
}

Arrays TrainingStep::gradient_room() const {
  Arrays arrays;
  for (const Parameter& parameter : artifact_.trainable) arrays.emplace_back(element_count(parameter.shape));
  arrays.emplace_back(artifact_.max_width * artifact_.column_dim);
  return arrays;
}

float TrainingStep::run(const Arrays& weights, const std::vector<float>& adjust, const MicroBatch& batch, Arrays& gradients) {
  if (adjust.empty() || static_cast<int64_t>(adjust.size()) > artifact_.max_width)
    throw BadFile(std::to_string(adjust.size()) + " columns; the step takes 1 to " + std::to_string(artifact_.max_width) +
                  ": export with a --max-width of " + std::to_string(adjust.size()) + " or more");
  return run_checked(weights, adjust, batch, gradients);
}

}  // namespace fedss
