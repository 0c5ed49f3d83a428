// Weights live inside the program, which hands out tensors that share their memory: a step writes the caller's weights there
// first.  Its width is fixed, so columns and adjustments are padded (`ondevice.backends.padding`).
#include "stock_step.h"

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "failure.h"

namespace fedss {
namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::extension::from_blob;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::EValue;

constexpr float kExcluded = -1e9f;

TensorPtr tensor(const void* data, const Dimensions& shape, ScalarType type = ScalarType::Float) {
  return from_blob(const_cast<void*>(data), std::vector<SizesType>(shape.begin(), shape.end()), type);
}

class StockStep final : public TrainingStep {
 public:
  explicit StockStep(const Artifact& artifact)
      // Read into memory that can be written to, because the parameters are in it.
      : TrainingStep(artifact), module_(artifact.path("stock_step.pte"), Module::LoadMode::File), adjust_(artifact.max_width) {
    const std::vector<EValue> names = execute("__et_training_fqn_forward", {});
    const int64_t first_gradient = execute("__et_training_gradients_index_forward", {})[0].toInt();
    const int64_t first_parameter = execute("__et_training_parameters_index_forward", {})[0].toInt();
    std::map<std::string, size_t> position;
    for (size_t i = 0; i < names.size(); i++) {
      std::string name(names[i].toString());
      const std::string prefix = "step.extractor.";
      position[name.rfind(prefix, 0) ? name : name.substr(prefix.size())] = i;
    }
    const std::vector<EValue> outputs = forward(empty_batch());  // one run on zeros, to be handed the parameters
    for (size_t i = 0; i <= artifact.trainable.size(); i++) {
      const std::string name = i < artifact.trainable.size() ? artifact.trainable[i].name : "columns";
      if (!position.count(name)) throw BadFile("stock_step.pte has no parameter " + name + "; export it again");
      gradient_at_.push_back(first_gradient + position[name]);
      parameters_.push_back(outputs.at(first_parameter + position[name]).toTensor().mutable_data_ptr<float>());
    }
  }

  int64_t planned_bytes() override {
    const auto meta = module_.method_meta("forward");
    int64_t total = 0;
    for (size_t i = 0; meta.ok() && i < meta->num_memory_planned_buffers(); i++)
      total += meta->memory_planned_buffer_size(i).get();
    return total;
  }

 protected:
  float run_checked(
      const Arrays& weights, const std::vector<float>& adjust, const MicroBatch& batch, Arrays& gradients) override {
    std::fill(std::copy(adjust.begin(), adjust.end(), adjust_.begin()), adjust_.end(), kExcluded);
    std::fill_n(parameters_.back(), artifact_.max_width * artifact_.column_dim, 0.0f);
    for (size_t i = 0; i < weights.size(); i++) std::copy(weights[i].begin(), weights[i].end(), parameters_[i]);
    const std::vector<EValue> outputs = forward(batch);
    for (size_t i = 0; i < gradients.size(); i++) {
      const float* gradient = outputs.at(gradient_at_[i]).toTensor().const_data_ptr<float>();
      std::copy(gradient, gradient + gradients[i].size(), gradients[i].begin());
    }
    return outputs.at(0).toTensor().const_data_ptr<float>()[0];
  }

 private:
  std::vector<EValue> forward(const MicroBatch& batch) {
    const int64_t size = artifact_.micro_batch;
    const Dimensions& image = artifact_.image_shape;
    return execute(
        "forward",
        {tensor(adjust_.data(), {artifact_.max_width}), tensor(batch.images.data(), {size, image[0], image[1], image[2]}),
         tensor(batch.labels.data(), {size}, ScalarType::Long), tensor(batch.example_weight.data(), {size})});
  }

  std::vector<EValue> execute(const char* method, const std::vector<TensorPtr>& inputs) {
    auto result = module_.execute(method, std::vector<EValue>(inputs.begin(), inputs.end()));
    if (!result.ok())
      throw BadFile(std::string("stock_step.pte: ") + method + " failed with ExecuTorch error " +
                    std::to_string(static_cast<int>(result.error())) + "; export it again, with this version of ExecuTorch");
    return std::move(*result);
  }

  Module module_;
  std::vector<float> adjust_;
  std::vector<size_t> gradient_at_;  // among the outputs, in the order of Arrays
  std::vector<float*> parameters_;
};

}  // namespace

std::unique_ptr<TrainingStep> open_stock_step(const Artifact& artifact) { return std::make_unique<StockStep>(artifact); }

}  // namespace fedss
