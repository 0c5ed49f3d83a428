#include "client/step/micro_batch.h"

#include <algorithm>
#include <cstring>

#include "client/contract/failure.h"

namespace fedss {
namespace {

bool same_but_for_the_first(const std::vector<Size>& shape, const Dimensions& given) {
  bool same = shape.size() == given.size();
  for (size_t i = 1; same && i < given.size(); i++) same = shape[i].number == given[i];
  return same;
}

const TensorView& feature_of(const ExampleSet& examples, const ArraySpec& spec) {
  const auto found = examples.features().find(spec.name);
  if (found == examples.features().end())
    throw BadFile("the examples have no feature/" + spec.name + "; the step takes " + spec.describe());
  const TensorView& given = found->second;
  if (given.dtype != spec.dtype || !same_but_for_the_first(spec.shape, given.shape))
    throw BadFile(
        "feature/" + spec.name + " is " + given.describe() + "; the step takes " + spec.describe() +
        ": export for that shape");
  return given;
}

// The lists of classes that targets are made of.
const TensorView& classes_of(const ExampleSet& examples, const RowSample& sample) {
  if (!sample.outputs)
    throw BadFile(
        "the step takes " + kTargets +
        ", and the plan's sampler gives classes no outputs; choose the scheme fedmlh or "
        "fedavg_labels");
  const auto found = examples.features().find(kClasses);
  if (found == examples.features().end() || found->second.dtype != Dtype::I64 || found->second.shape.size() != 2)
    throw BadFile(
        "the step takes " + kTargets + ", which are made of the feature '" + kClasses +
        "': expected I64 [N, most classes]");
  return found->second;
}

// In place: ids of `count` numbers at any offset -> positions.
void to_positions(uint8_t* numbers, int64_t count, const std::vector<int64_t>& row_ids, const ArraySpec& spec) {
  for (int64_t i = 0; i < count; i++) {
    int64_t id;
    std::memcpy(&id, numbers + i * sizeof id, sizeof id);
    const auto found = std::lower_bound(row_ids.begin(), row_ids.end(), id);
    if (found == row_ids.end() || *found != id)
      throw BadFile(
          spec.name + " holds " + std::to_string(id) + ", a row of " + *spec.positions_in +
          " that was not asked for; choose a sampler that asks for it");
    const int64_t position = found - row_ids.begin();
    std::memcpy(numbers + i * sizeof position, &position, sizeof position);
  }
}

}  // namespace

MicroBatch empty_batch(const StepSignature& signature, const Bounds& bounds) {
  MicroBatch batch;
  for (const ArraySpec& spec : signature.of_role({Role::feature, Role::label, Role::noise, Role::example_weight}))
    batch.emplace_back(spec, spec.sizes(bounds));
  return batch;
}

BatchGatherer::BatchGatherer(const StepSignature& signature, const ExampleSet& examples, const RowSample& sample)
    : sample_(sample) {
  for (const ArraySpec& spec : signature.of_role({Role::feature, Role::label})) {
    if (spec.name == kTargets) {
      const TensorView& classes = classes_of(examples, sample);
      sources_.push_back({classes.bytes.data, nullptr, classes.shape[1]});
      continue;
    }
    const bool is_label = spec.role == Role::label;
    const uint8_t* bytes =
        is_label ? reinterpret_cast<const uint8_t*>(examples.labels().data()) : feature_of(examples, spec).bytes.data;
    sources_.push_back({bytes, spec.positions_in ? &ids_of(sample.ids, *spec.positions_in) : nullptr, 0});
  }
}

void BatchGatherer::set_targets(NamedArray& array, int64_t index, const uint8_t* classes, int64_t num_classes) const {
  uint8_t* targets = array.entry(index);
  std::memset(targets, 0, array.entry_bytes);
  for (int64_t i = 0; i < num_classes; i++) {
    int64_t class_id;
    std::memcpy(&class_id, classes + i * sizeof class_id, sizeof class_id);
    if (class_id == kNoClass) continue;
    if (class_id < 0)
      throw BadFile(
          kClasses + " hold " + std::to_string(class_id) + "; expected classes from 0, and " +
          std::to_string(kNoClass) + " behind them");
    for (const int64_t output : sample_.outputs(class_id)) {
      if (output >= array.shape[1])
        throw BadFile(
            kClasses + " stand for output " + std::to_string(output) + "; the step has " +
            std::to_string(array.shape[1]) + ": export it for the plan's hash tables");
      targets[output] = 1;
    }
  }
}

void BatchGatherer::fill(
    MicroBatch& out, const std::vector<int64_t>& batch, const std::vector<float>& example_weight, size_t first) const {
  const size_t size = std::min(static_cast<size_t>(out.back().shape[0]), batch.size() - first);
  for (size_t i = 0; i < sources_.size(); i++) {
    NamedArray& array = out[i];
    const auto [bytes, row_ids, num_classes] = sources_[i];
    for (size_t j = 0; j < size; j++) {
      if (num_classes) {
        set_targets(array, j, bytes + batch[first + j] * num_classes * sizeof(int64_t), num_classes);
        continue;
      }
      uint8_t* entry = array.entry(j);
      std::memcpy(entry, bytes + batch[first + j] * array.entry_bytes, array.entry_bytes);
      if (row_ids) to_positions(entry, array.entry_bytes / sizeof(int64_t), *row_ids, array.spec);
    }
    array.pad_from(size);
  }
  std::memcpy(out.back().entry(0), example_weight.data() + first, size * sizeof(float));
  out.back().pad_from(size);
}

}  // namespace fedss
