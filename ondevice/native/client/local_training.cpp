#include "client/local_training.h"

#include <algorithm>

#include "client/contract/failure.h"
#include "client/contract/portable_random.h"
#include "client/noise.h"

namespace fedss {
namespace {

// What the sampler drew and the server sent, an entry per row.
void add_sides(StepArrays& arrays, const StepSignature& signature, const Sides& drawn, const Sides& sent) {
  for (const ArraySpec& spec : signature.of_role({Role::side})) {
    const Sides& sides = drawn.count(spec.name) ? drawn : sent;
    const auto found = sides.find(spec.name);
    if (found == sides.end())
      throw BadFile("neither the sampler nor the slice has the side array '" + spec.name + "', which the step takes");
    arrays[spec.name] = {Dtype::F32, {static_cast<int64_t>(found->second.size())}, found->second.data()};
  }
}

}  // namespace

Arrays& LocalSgd::next_gradients() {
  Arrays& next = accumulated_ ? fresh_ : total_;
  if (next.empty()) next = step_.gradient_room();
  return next;
}

void LocalSgd::accumulate() {
  if (accumulated_++ == 0) return;  // written where the sum is kept
  for (size_t i = 0; i < total_.size(); i++)
    for (size_t j = 0; j < total_[i].size(); j++) total_[i][j] += fresh_[i][j];
}

// v <- μ v + (g + λ θ),  θ <- θ − η v
void LocalSgd::apply(Arrays& weights) {
  const auto [epochs, batch_size, rate, decay, momentum] = training_;
  const bool first = velocities_.empty();
  if (momentum != 0 && first)
    for (const auto& array : weights) velocities_.emplace_back(array.size());
  for (size_t i = 0; i < weights.size(); i++)
    for (size_t j = 0; j < weights[i].size(); j++) {
      float direction = total_[i][j];
      if (decay != 0) direction += decay * weights[i][j];
      if (momentum != 0) direction = velocities_[i][j] = first ? direction : velocities_[i][j] * momentum + direction;
      weights[i][j] -= rate * direction;
    }
  discard();
}

double train_locally(
    TrainingStep& step, const LocalTask& task, const RowSample& sample, const Sides& sides, Arrays& weights) {
  const StepSignature& signature = step.signature();
  const LocalTraining& training = task.plan.local_training;
  const BatchGatherer gatherer(signature, task.examples, sample);
  MicroBatch micro_batch = step.empty_batch();
  Bounds values{{kExamples, step.micro_batch()}};
  for (const ArraySpec& table : signature.tables())
    values[rows_of(table.name)] = static_cast<int64_t>(ids_of(sample.ids, table.name).size());
  StepArrays arrays;
  add_weights(arrays, signature, weights, values);
  add_sides(arrays, signature, sample.sides, sides);
  add_batch(arrays, micro_batch);
  const WeightingView view{task.plan, task.examples.labels(), sample.ids, sides, task.private_seed};
  LocalSgd optimizer(training, step);
  const int64_t count = static_cast<int64_t>(task.positions.size());
  double total_loss = 0;
  uint64_t number = 0;  // of the SGD step
  for (int64_t epoch = 0; epoch < training.epochs; epoch++) {
    const uint64_t purpose = kFirstEpoch + static_cast<uint64_t>(epoch);
    PortableRandom random(task.private_seed, static_cast<uint64_t>(task.plan.round_index), purpose);
    const std::vector<int64_t> order = random.permutation(count);
    for (int64_t start = 0, size; start < count; start += size) {
      size = std::min(training.batch_size, count - start);
      std::vector<int64_t> batch;
      for (int64_t i = start; i < start + size; i++) batch.push_back(task.positions[order[i]]);
      const std::vector<float> example_weight = task.weighting.weights(view, batch);
      BatchNoise noise(task.private_seed, static_cast<uint64_t>(task.plan.round_index), number++);
      for (size_t first = 0; first < batch.size(); first += step.micro_batch()) {
        gatherer.fill(micro_batch, batch, example_weight, first);
        noise.fill(micro_batch, batch.size() - first);
        const float loss = step.run(arrays, optimizer.next_gradients());
        optimizer.accumulate();
        total_loss += static_cast<double>(loss) * static_cast<double>(batch.size());
      }
      optimizer.apply(weights);
    }
  }
  return total_loss / static_cast<double>(training.epochs * count);
}

}  // namespace fedss
