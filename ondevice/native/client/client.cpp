#include "client/client.h"

#include <cmath>

#include "client/contract/failure.h"
#include "client/local_training.h"
#include "client/samplers/samplers.h"
#include "client/transforms/transforms.h"
#include "client/weightings/weightings.h"

namespace fedss {
namespace {

// What a slice must look like for this step.
Expected expected_slice(const StepSignature& signature, const RoundPlan& plan) {
  Expected expected{{}, plan.table_sizes, {}, plan.sides};
  for (const ArraySpec& spec : signature.trained()) {
    if (spec.role == Role::dense) {
      expected.dense.push_back({spec.name, spec.sizes({})});
      continue;
    }
    if (!plan.table_sizes.count(spec.name))
      throw BadFile("the step has a table '" + spec.name + "', of which the plan says nothing; export for this model");
    expected.table_dims.push_back({spec.name, spec.shape[1].number});
  }
  return expected;
}

SliceViews slice_from(const MappedFile& answer, Envelope envelope, const RowIds& ids, const Expected& expected) {
  try {
    return read_slice(answer.bytes(), envelope, ids, expected);
  } catch (const BadFile& error) {
    throw BadFile(answer.path() + ": " + error.what());
  }
}

}  // namespace

Client::Trained Client::converse(
    Envelope envelope, const RoundPlan& plan, const Ask& ask, const std::string& out) const {
  const auto weighting = chosen(kWeightings, plan.weighting, "weighting");
  const auto sampler = chosen(kSamplers, plan.sampler, "sampler");
  const auto transforms = chosen_transforms(plan.transforms);
  const std::vector<int64_t> positions = weighting->examples(plan, examples_.labels(), private_seed_);
  std::vector<int64_t> labels;
  for (const int64_t position : positions) labels.push_back(examples_.labels().at(position));
  // Line 5: draw N_k; S_k = P_k + N_k.
  const auto numbers = [&](const std::string& name) { return examples_.numbers(name, positions); };
  const RowSample sample = sampler->draw({plan, labels, private_seed_, ask, numbers});
  // Lines 6-7: ask for the rows of S_k; be given φ and W_S.
  const MappedFile& answer = ask(request_to_bytes(envelope, sample.ids));
  const Artifact artifact(place_.artifact);
  const Expected expected = expected_slice(artifact.signature, plan);
  const SliceViews slice = slice_from(answer, envelope, sample.ids, expected);
  // Lines 8-11: train, answer with the difference.
  Arrays weights;
  for (const TensorView& tensor : slice.weights) {
    weights.emplace_back(element_count(tensor.shape));
    tensor.floats(weights.back().data());
  }
  answer.release_pages();  // not needed again until the differences are taken
  double mean_loss;
  {
    const auto step = open_step(artifact, place_.runtime, place_.threads);
    mean_loss =
        train_locally(*step, {plan, examples_, positions, *weighting, private_seed_}, sample, slice.sides, weights);
  }
  if (!std::isfinite(mean_loss))
    throw CheckFailed("local training diverged: the mean loss is not finite; use a lower learning rate");
  for (size_t i = 0; i < weights.size(); i++) slice.weights[i].subtract_from(weights[i].data());
  const int64_t num_examples = static_cast<int64_t>(positions.size());
  Update update{weights_of(std::move(weights), sample.ids, expected), num_examples, static_cast<float>(mean_loss)};
  const TransformView view{plan.round_index, private_seed_};
  for (const auto& transform : transforms) transform->apply(update.weights, view);
  write_update(out, envelope, sample.ids, expected, update);
  return {num_examples, mean_loss};
}

}  // namespace fedss
