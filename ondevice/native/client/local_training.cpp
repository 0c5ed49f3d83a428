#include "local_training.h"

#include <algorithm>

#include "failure.h"
#include "portable_random.h"

namespace fedss {
namespace {

// Pixels 0..255 -> about −1..1, in the same two float32 operations as in Python.
void normalize_image(const uint8_t* pixels, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i++) out[i] = static_cast<float>(pixels[i]) * static_cast<float>(1 / 127.5) - 1.0f;
}

// Examples `batch[first]` and on, as many as a step takes, each weighing 1/B.
void fill(
    MicroBatch& out, const ExampleSet& examples, const ClassSample& sample, const std::vector<int64_t>& batch, size_t first) {
  const int64_t pixels = element_count(examples.image_shape());
  const float weight = static_cast<float>(1 / static_cast<double>(batch.size()));
  for (size_t i = 0; i < out.labels.size(); i++) {
    float* image = out.images.data() + i * pixels;
    if (first + i >= batch.size()) {
      std::fill(image, image + pixels, 0.0f);
      out.labels[i] = 0;
      out.example_weight[i] = 0;
      continue;
    }
    const int64_t example = batch[first + i];
    normalize_image(examples.image(example), pixels, image);
    const auto position = std::lower_bound(sample.class_ids.begin(), sample.class_ids.end(), examples.labels()[example]);
    out.labels[i] = position - sample.class_ids.begin();
    out.example_weight[i] = weight;
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
    TrainingStep& step, const Artifact& artifact, const ExampleSet& examples, const ClassSample& sample, const RoundPlan& plan,
    uint64_t private_seed, Arrays& weights) {
  if (examples.image_shape() != artifact.image_shape)
    throw BadFile("images are " + describe(examples.image_shape()) + "; the step takes " + describe(artifact.image_shape) +
                  ": export for that size");
  const LocalTraining& training = plan.local_training;
  LocalSgd optimizer(training, step);
  MicroBatch micro_batch = step.empty_batch();
  const int64_t count = static_cast<int64_t>(examples.labels().size());
  double total_loss = 0;
  for (int64_t epoch = 0; epoch < training.epochs; epoch++) {
    const uint64_t purpose = kFirstEpoch + static_cast<uint64_t>(epoch);
    PortableRandom random(private_seed, static_cast<uint64_t>(plan.envelope.round_index), purpose);
    const std::vector<int64_t> order = random.permutation(count);
    for (int64_t start = 0, size; start < count; start += size) {
      size = std::min(training.batch_size, count - start);
      const std::vector<int64_t> batch(order.begin() + start, order.begin() + start + size);
      for (size_t first = 0; first < batch.size(); first += micro_batch.labels.size()) {
        fill(micro_batch, examples, sample, batch, first);
        const float loss = step.run(weights, sample.adjust, micro_batch, optimizer.next_gradients());
        optimizer.accumulate();
        total_loss += static_cast<double>(loss) * static_cast<double>(batch.size());
      }
      optimizer.apply(weights);
    }
  }
  return total_loss / static_cast<double>(training.epochs * count);
}

}  // namespace fedss
