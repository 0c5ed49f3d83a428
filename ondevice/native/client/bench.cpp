#include "bench.h"

#include <algorithm>
#include <cstdio>

#include "failure.h"
#include "local_training.h"
#include "measurement.h"
#include "runtime/program.h"
#include "strict_json.h"
#include "training_step.h"

namespace fedss {
namespace {

// The top bits of a multiplicative hash: about uniform in 0..1, exact in float32.
float made_up(uint32_t index) { return static_cast<float>((index * 2654435761u) >> 8) * 0x1p-24f; }

void fill(MicroBatch& out, const BenchJob& job, int64_t first, int64_t pixels) {
  std::fill(out.images.begin(), out.images.end(), 0.0f);
  std::fill(out.example_weight.begin(), out.example_weight.end(), 0.0f);
  for (int64_t i = 0; i < job.micro_batch && first + i < job.batch; i++) {
    for (int64_t j = 0; j < pixels; j++)
      out.images[i * pixels + j] = 2 * made_up(static_cast<uint32_t>((first + i) * pixels + j)) - 1;
    out.labels[i] = (first + i) % job.width;
    out.example_weight[i] = static_cast<float>(1 / static_cast<double>(job.batch));
  }
}

void expect_at_most(const std::string& option, int64_t value, int64_t most) {
  if (value > most)
    throw UsageError(option + " is " + std::to_string(value) + "; the artifact takes at most " + std::to_string(most));
}

void say(const Json& line) {
  std::puts(line.dump().c_str());
  std::fflush(stdout);
}

}  // namespace

void bench(const Artifact& artifact, const BenchJob& job) {
  expect_at_most("--width", job.width, artifact.max_width);
  expect_at_most("--micro-batch", job.micro_batch, artifact.micro_batch);
  double started = wall_ms();
  const auto opened = open_step(artifact, job.runtime, job.threads);
  TrainingStep& step = *opened;
  const std::string initial = artifact.path("initial.safetensors");
  const double load_ms = wall_ms() - started;
  started = wall_ms();
  Arrays weights = artifact.weights(initial, job.width);
  const double swap_ms = wall_ms() - started;
  for (size_t i = 0; i < weights.back().size(); i++) weights.back()[i] = made_up(static_cast<uint32_t>(i)) - 0.5f;
  say({{"event", "ready"}, {"runtime", job.runtime}, {"instruction_set", fedss_instruction_set()}, {"load_ms", load_ms},
       {"swap_ms", swap_ms}, {"planned_bytes", step.planned_bytes()}, {"width", job.width}, {"batch", job.batch},
       {"micro_batch", job.micro_batch}, {"threads", job.threads}});
  const std::vector<float> adjust(job.width);
  LocalSgd gradients({}, step);
  MicroBatch batch = step.empty_batch();
  for (int64_t i = 0; i < job.warmup + job.steps; i++) {
    const double wall = wall_ms(), cpu = cpu_ms();
    double loss = 0;
    gradients.discard();
    for (int64_t first = 0; first < job.batch; first += job.micro_batch) {
      fill(batch, job, first, element_count(artifact.image_shape));
      loss += step.run(weights, adjust, batch, gradients.next_gradients());
      gradients.accumulate();
    }
    say({{"event", "step"}, {"step", i}, {"warmup", i < job.warmup}, {"wall_ms", wall_ms() - wall}, {"cpu_ms", cpu_ms() - cpu},
         {"loss", loss}, {"peak_footprint_bytes", peak_footprint_bytes()}});
  }
  say({{"event", "done"}, {"peak_footprint_bytes", peak_footprint_bytes()}});
}

}  // namespace fedss
