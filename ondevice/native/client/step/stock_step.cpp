// Weights live inside the program, which hands out tensors that share their memory: a step writes the caller's weights
// there first.  Its number of rows is fixed, so tables and side arrays are padded (`padded` in
// ondevice/contract/step_signature.py).
#include "client/step/stock_step.h"

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "client/contract/failure.h"

namespace fedss {
namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::extension::from_blob;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::EValue;

TensorPtr tensor(const ArrayView& array) {
  const bool is_float = array.dtype == Dtype::F32, is_integer = array.dtype == Dtype::I64;
  const ScalarType type = is_float ? ScalarType::Float : is_integer ? ScalarType::Long : ScalarType::Byte;
  return from_blob(const_cast<void*>(array.data), std::vector<SizesType>(array.shape.begin(), array.shape.end()), type);
}

class StockStep final : public TrainingStep {
 public:
  explicit StockStep(const Artifact& artifact)
      // Read into memory that can be written to, because the parameters are in it.
      : TrainingStep(artifact),
        module_(artifact.path("stock_step.pte"), Module::LoadMode::File),
        trained_(artifact.signature.trained()) {
    const std::vector<EValue> names = execute("__et_training_fqn_forward", {});
    const int64_t first_gradient = execute("__et_training_gradients_index_forward", {})[0].toInt();
    const int64_t first_parameter = execute("__et_training_parameters_index_forward", {})[0].toInt();
    std::map<std::string, size_t> position;
    for (size_t i = 0; i < names.size(); i++) {
      std::string name(names[i].toString());
      for (const std::string prefix : {"step.extractor.", "tables."})
        if (name.rfind(prefix, 0) == 0) {
          name = name.substr(prefix.size());
          break;
        }
      position[name] = i;
    }
    for (const ArraySpec& spec : signature().of_role({Role::side}))
      sides_.emplace_back(spec, spec.sizes(artifact.bounds));
    const MicroBatch zeros = empty_batch();
    StepArrays arrays;
    add_batch(arrays, zeros);
    const std::vector<EValue> outputs = forward(arrays);  // one run on zeros, to be handed the parameters
    for (const ArraySpec& spec : trained_) {
      if (!position.count(spec.name))
        throw BadFile("stock_step.pte has no parameter " + spec.name + "; export it again");
      gradient_at_.push_back(first_gradient + position[spec.name]);
      parameters_.push_back(outputs.at(first_parameter + position[spec.name]).toTensor().mutable_data_ptr<float>());
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
  float run_checked(const StepArrays& arrays, Arrays& gradients) override {
    for (size_t i = 0; i < trained_.size(); i++) {
      const ArrayView& given = arrays.at(trained_[i].name);
      const int64_t count = element_count(given.shape), room = element_count(trained_[i].sizes(artifact_.bounds));
      std::copy_n(static_cast<const float*>(given.data), count, parameters_[i]);
      std::fill_n(parameters_[i] + count, room - count, static_cast<float>(trained_[i].padding));
    }
    for (NamedArray& side : sides_) {
      const ArrayView& given = arrays.at(side.spec.name);
      std::memcpy(side.entry(0), given.data, given.shape[0] * side.entry_bytes);
      side.pad_from(given.shape[0]);
    }
    const std::vector<EValue> outputs = forward(arrays);
    for (size_t i = 0; i < gradients.size(); i++) {
      const float* gradient = outputs.at(gradient_at_[i]).toTensor().const_data_ptr<float>();
      std::copy(gradient, gradient + gradients[i].size(), gradients[i].begin());
    }
    return outputs.at(0).toTensor().const_data_ptr<float>()[0];
  }

 private:
  // The signature's data without the tables, in its order; side arrays are those of `sides_`.
  std::vector<EValue> forward(const StepArrays& arrays) {
    std::vector<TensorPtr> inputs;
    for (const NamedArray& side : sides_) inputs.push_back(tensor(side.view()));
    for (const ArraySpec& spec : signature().of_role({Role::feature, Role::label, Role::noise, Role::example_weight}))
      inputs.push_back(tensor(arrays.at(spec.name)));
    return execute("forward", inputs);
  }

  std::vector<EValue> execute(const char* method, const std::vector<TensorPtr>& inputs) {
    auto result = module_.execute(method, std::vector<EValue>(inputs.begin(), inputs.end()));
    if (!result.ok())
      throw BadFile(
          std::string("stock_step.pte: ") + method + " failed with ExecuTorch error " +
          std::to_string(static_cast<int>(result.error())) + "; export it again, with this version of ExecuTorch");
    return std::move(*result);
  }

  Module module_;
  const std::vector<ArraySpec> trained_;
  std::vector<NamedArray> sides_;
  std::vector<size_t> gradient_at_;  // among the outputs, in the order of Arrays
  std::vector<float*> parameters_;
};

}  // namespace

std::unique_ptr<TrainingStep> open_stock_step(const Artifact& artifact) {
  return std::make_unique<StockStep>(artifact);
}

}  // namespace fedss
