#include "client/program/bench.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "client/contract/failure.h"
#include "client/contract/files/strict_json.h"
#include "client/local_training.h"
#include "client/program/measurement.h"
#include "client/step/training_step.h"
#include "runtime/program.h"

namespace fedss {
namespace {

uint32_t hash(uint32_t index) { return index * 2654435761u; }

// The top bits of a multiplicative hash: about uniform in 0..1, exact in float32.
float made_up(uint32_t index) { return static_cast<float>(hash(index) >> 8) * 0x1p-24f; }

// `value` of the example and of the element's number among all elements of all examples.
template <class Number, class Value>
void put(NamedArray& array, int64_t first, int64_t count, const Value& value) {
  const int64_t elements = static_cast<int64_t>(array.entry_bytes / sizeof(Number));
  for (int64_t i = 0; i < count; i++)
    for (int64_t j = 0; j < elements; j++) {
      const Number number = value(first + i, (first + i) * elements + j);
      std::memcpy(array.entry(i) + j * sizeof number, &number, sizeof number);
    }
  array.pad_from(count);
}

void fill(MicroBatch& out, const BenchJob& job, int64_t first) {
  const int64_t count = std::min(job.micro_batch, job.batch - first), width = job.width;
  const float weight = static_cast<float>(1 / static_cast<double>(job.batch));
  for (NamedArray& array : out) {
    const ArraySpec& spec = array.spec;
    if (spec.role == Role::example_weight) {
      put<float>(array, first, count, [=](int64_t, int64_t) { return weight; });
    } else if (spec.role == Role::label && spec.dtype == Dtype::I64) {
      put<int64_t>(array, first, count, [=](int64_t example, int64_t) { return example % width; });
    } else if (spec.role == Role::noise) {
      put<float>(array, first, count, [](int64_t, int64_t index) { return made_up(static_cast<uint32_t>(index)); });
    } else if (spec.dtype == Dtype::F32) {
      put<float>(
          array, first, count, [](int64_t, int64_t index) { return 2 * made_up(static_cast<uint32_t>(index)) - 1; });
    } else if (spec.dtype == Dtype::U8) {
      const int64_t below = spec.below.value_or(256);
      put<uint8_t>(array, first, count, [=](int64_t, int64_t index) {
        return (hash(static_cast<uint32_t>(index)) >> 24) % below;
      });
    } else {  // where nothing is said of the range, 0 is a value that every vocabulary has
      const int64_t below = spec.positions_in ? width : spec.below.value_or(1);
      put<int64_t>(array, first, count, [=](int64_t, int64_t index) { return index % below; });
    }
  }
}

// Micro-batches of one step add up.
void add(std::vector<int64_t>& total, const std::vector<int64_t>& more) {
  total.resize(std::max(total.size(), more.size()));
  for (size_t i = 0; i < more.size(); i++) total[i] += more[i];
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
  Bounds values{{kExamples, artifact.micro_batch()}};
  for (const ArraySpec& table : artifact.signature.tables()) {
    if (job.width < 1)
      throw UsageError("--width is 0; the artifact takes rows of " + table.name + ": expected 1 or more");
    expect_at_most("--width", job.width, artifact.bounds.at(rows_of(table.name)));
    values[rows_of(table.name)] = job.width;
  }
  expect_at_most("--micro-batch", job.micro_batch, artifact.micro_batch());
  double started = wall_ms();
  const auto opened = open_step(artifact, job.runtime, job.threads, job.profiled);
  TrainingStep& step = *opened;
  const std::string initial = artifact.path("initial.safetensors");
  const double load_ms = wall_ms() - started;
  started = wall_ms();
  Arrays weights = artifact.weights(initial, values);
  const double swap_ms = wall_ms() - started;
  const std::vector<ArraySpec> trained = artifact.signature.trained();
  for (size_t i = 0; i < trained.size(); i++)
    for (size_t j = 0; trained[i].role == Role::table && j < weights[i].size(); j++)
      weights[i][j] = made_up(static_cast<uint32_t>(j)) - 0.5f;
  say(
      {{"event", "ready"},
       {"runtime", job.runtime},
       {"instruction_set", fedss_instruction_set()},
       {"load_ms", load_ms},
       {"swap_ms", swap_ms},
       {"planned_bytes", step.planned_bytes()},
       {"width", job.width},
       {"batch", job.batch},
       {"micro_batch", job.micro_batch},
       {"threads", job.threads}});
  const std::vector<float> side(job.width);
  LocalSgd gradients({}, step);
  MicroBatch batch = step.empty_batch();
  StepArrays arrays;
  add_weights(arrays, artifact.signature, weights, values);
  for (const ArraySpec& spec : artifact.signature.of_role({Role::side}))
    arrays[spec.name] = {Dtype::F32, {job.width}, side.data()};
  add_batch(arrays, batch);
  std::vector<std::vector<int64_t>> profiles;  // of the steps that count
  for (int64_t i = 0; i < job.warmup + job.steps; i++) {
    std::vector<int64_t> profile;
    const double wall = wall_ms(), cpu = cpu_ms();
    double loss = 0;
    gradients.discard();
    for (int64_t first = 0; first < job.batch; first += job.micro_batch) {
      fill(batch, job, first);
      loss += step.run(arrays, gradients.next_gradients());
      gradients.accumulate();
      if (job.profiled) add(profile, step.profile());
    }
    if (job.profiled && i >= job.warmup) profiles.push_back(profile);
    say(
        {{"event", "step"},
         {"step", i},
         {"warmup", i < job.warmup},
         {"wall_ms", wall_ms() - wall},
         {"cpu_ms", cpu_ms() - cpu},
         {"loss", loss},
         {"peak_footprint_bytes", peak_footprint_bytes()}});
  }
  if (job.profiled)
    say(
        {{"event", "profile"},
         {"nanoseconds", profiles},
         {"peak_multiply_adds_per_nanosecond", fedss_peak_multiply_adds_per_nanosecond()}});
  say({{"event", "done"}, {"peak_footprint_bytes", peak_footprint_bytes()}});
}

}  // namespace fedss
