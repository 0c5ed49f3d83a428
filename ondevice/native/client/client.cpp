#include "client/client.h"

#include <cmath>

#include "client/contract/failure.h"
#include "client/local_training.h"
#include "client/questions.h"
#include "client/samplers/samplers.h"
#include "client/transforms/transforms.h"
#include "client/weightings/weightings.h"

namespace fedss {

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
  WireQuestions questions(envelope, plan, ask, place_, examples_, positions);
  const RowSample sample = sampler->draw({plan, labels, private_seed_, numbers, questions});
  // Lines 6-7: ask for the rows of S_k; be given φ, unless the sampler had need of it, and W_S.
  const auto& dense = questions.dense();
  const MappedFile& answer = ask(request_to_bytes(envelope, sample.ids, dense ? "rows" : "request"));
  const Artifact& artifact = questions.artifact();
  const Expected expected = expected_slice(artifact.signature, plan);
  Expected sent = expected;
  if (dense) sent.dense.clear();
  SliceViews slice = slice_from(answer, envelope, sample.ids, sent);
  if (dense) slice.weights.insert(slice.weights.begin(), dense->begin(), dense->end());
  // Lines 8-11: train, answer with the difference.
  Arrays weights;
  for (const TensorView& tensor : slice.weights) {
    weights.emplace_back(element_count(tensor.shape));
    tensor.floats(weights.back().data());
  }
  // Not needed again until the differences are taken.
  answer.release_pages();
  questions.release_pages();
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
