// fedss-client: a whole client of the federation in one program, without Python and without torch.  The verbs `request` and
// `train` are the two steps of ondevice/client/client.py; `check` and `bench` prove and measure the artifact on this device.
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>

#include "arguments.h"
#include "bench.h"
#include "class_sampling.h"
#include "device_files.h"
#include "failure.h"
#include "golden_check.h"
#include "local_training.h"
#include "measurement.h"
#include "runtime/program.h"
#include "strict_json.h"

namespace {

using namespace fedss;

constexpr const char* kRuntime = "executorch";
constexpr double kBaselineSlack = 3;  // of executorch-stock; see SLACK in ondevice/contract/golden_step.py
constexpr const char* kUsage =
    "usage: fedss-client request --data FILE --seed-file FILE --plan FILE --out FILE\n"
    "       fedss-client train   --data FILE --seed-file FILE --plan FILE --slice FILE --artifact DIR --out FILE\n"
    "       fedss-client check   --artifact DIR\n"
    "       fedss-client bench   --artifact DIR --width N [--batch N] [--micro-batch N] [--steps N] [--warmup N]\n"
    "train, check and bench also take [--threads N] [--runtime executorch|executorch-stock]\n";

void say(const Json& line) { std::puts(line.dump().c_str()); }

// Algorithm 1, lines 5-6: draw N_k, ask for the columns of S_k = P_k + N_k.
void request(Arguments& arguments) {
  const std::string data = arguments.text("--data"), seed = arguments.text("--seed-file");
  const std::string plan_path = arguments.text("--plan"), out = arguments.text("--out");
  arguments.expect_no_more();
  const RoundPlan plan = read_plan(plan_path);
  write_request(out, plan.envelope, sample_classes(ExampleSet(data).labels(), plan, read_seed(seed)).class_ids);
}

// Lines 7-11: train the slice locally, answer with the difference.  S_k is drawn again, not remembered.
void train(Arguments& arguments) {
  const std::string data = arguments.text("--data"), seed_path = arguments.text("--seed-file");
  const std::string plan_path = arguments.text("--plan"), slice_path = arguments.text("--slice");
  const std::string directory = arguments.text("--artifact"), out = arguments.text("--out");
  const std::string runtime = arguments.text("--runtime", kRuntime);
  const int threads = static_cast<int>(arguments.number("--threads", 1, 1));
  arguments.expect_no_more();
  const double wall = wall_ms(), cpu = cpu_ms();
  const RoundPlan plan = read_plan(plan_path);
  const ExampleSet examples(data);
  const uint64_t seed = read_seed(seed_path);
  const ClassSample sample = sample_classes(examples.labels(), plan, seed);
  const Artifact artifact(directory);
  const Expected expected{plan.num_classes, artifact.column_dim, artifact.trainable};
  const MappedFile message(slice_path);
  SliceViews slice;
  try {
    slice = read_slice(message.bytes(), plan.envelope, sample.class_ids, expected);
  } catch (const BadFile& error) {
    throw BadFile(slice_path + ": " + error.what());
  }
  Arrays weights;
  for (const TensorView& tensor : slice) {
    weights.emplace_back(element_count(tensor.shape));
    tensor.floats(weights.back().data());
  }
  message.release_pages();  // not needed again until the differences are taken
  double mean_loss;
  {
    const auto step = open_step(artifact, runtime, threads);
    mean_loss = train_locally(*step, artifact, examples, sample, plan, seed, weights);
  }
  if (!std::isfinite(mean_loss))
    throw CheckFailed("local training diverged: the mean loss is not finite; use a lower learning rate");
  for (size_t i = 0; i < weights.size(); i++) slice[i].subtract_from(weights[i].data());
  const int64_t count = static_cast<int64_t>(examples.labels().size());
  write_update(
      out, plan.envelope, sample.class_ids, expected, {std::move(weights), count, static_cast<float>(mean_loss)}, plan.precision);
  say({{"event", "trained"}, {"num_examples", count}, {"num_classes", sample.class_ids.size()}, {"mean_loss", mean_loss},
       {"wall_ms", wall_ms() - wall}, {"cpu_ms", cpu_ms() - cpu}, {"peak_footprint_bytes", peak_footprint_bytes()}});
}

void check(Arguments& arguments) {
  const std::string directory = arguments.text("--artifact");
  const std::string runtime = arguments.text("--runtime", kRuntime);
  const int threads = static_cast<int>(arguments.number("--threads", 1, 1));
  arguments.expect_no_more();
  const Artifact artifact(directory);
  const double slack = runtime == kRuntime ? 1 : kBaselineSlack;
  const Comparison comparison = check_golden(artifact, *open_step(artifact, runtime, threads), slack);
  say({{"event", "checked"}, {"runtime", runtime}, {"instruction_set", fedss_instruction_set()}, {"passed", !comparison.missed},
       {"outputs", comparison.outputs}, {"missed", comparison.missed}, {"worst_tensor", comparison.worst_tensor},
       {"worst_relative_error", comparison.worst_relative_error}});
  if (comparison.missed)
    throw CheckFailed(std::to_string(comparison.missed) + " of " + std::to_string(comparison.outputs) +
                      " outputs miss the golden step's tolerance, by up to " + std::to_string(comparison.worst_excess) +
                      " times; do not train with this client on this device");
}

void run_bench(Arguments& arguments) {
  const Artifact artifact(arguments.text("--artifact"));
  BenchJob job;
  job.runtime = arguments.text("--runtime", kRuntime);
  job.width = arguments.number("--width", 1);
  job.micro_batch = arguments.number("--micro-batch", 1, artifact.micro_batch);
  job.batch = arguments.number("--batch", 1, job.micro_batch);
  job.steps = arguments.number("--steps", 1, 10);
  job.warmup = arguments.number("--warmup", 0, 1);
  job.threads = static_cast<int>(arguments.number("--threads", 1, 1));
  arguments.expect_no_more();
  bench(artifact, job);
}

void run(const std::string& verb, Arguments arguments) {
  if (verb == "request") return request(arguments);
  if (verb == "train") return train(arguments);
  if (verb == "check") return check(arguments);
  if (verb == "bench") return run_bench(arguments);
  throw UsageError("unknown verb '" + verb + "'");
}

}  // namespace

int main(int count, char** words) {
  try {
    if (count < 2) throw UsageError("no verb");
    run(words[1], Arguments(count - 2, words + 2));
    return 0;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "error: %s\n%s", error.what(), kUsage);
    return error.exit_code;
  } catch (const Failure& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_code;
  } catch (const std::exception& error) {  // out of memory, or a bug
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
