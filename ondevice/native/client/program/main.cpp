// fedss-client: a whole client of the federation in one program, without Python and without torch.  The verb `converse`
// holds the conversation of a round; `check` and `bench` prove and measure the artifact on this device.
#include <cstdio>
#include <exception>
#include <string>

#include "client/client.h"
#include "client/contract/failure.h"
#include "client/contract/files/strict_json.h"
#include "client/device_files.h"
#include "client/program/arguments.h"
#include "client/program/bench.h"
#include "client/program/measurement.h"
#include "client/program/replay.h"
#include "client/step/golden_check.h"
#include "runtime/program.h"

namespace {

using namespace fedss;

constexpr const char* kRuntime = "executorch";
constexpr double kBaselineSlack = 3;  // of executorch-stock; see SLACK in ondevice/contract/golden_step.py
constexpr const char* kUsage =
    "usage: fedss-client converse --data FILE --seed-file FILE --plan FILE --artifact DIR --answers FOLDER --out FILE\n"
    "       fedss-client check    --artifact DIR\n"
    "       fedss-client bench    --artifact DIR --width N [--batch N] [--micro-batch N] [--steps N] [--warmup N]\n"
    "                          [--profile 1]\n"
    "all of them also take [--threads N] [--runtime executorch|executorch-stock]\n";

void say(const Json& line) { std::puts(line.dump().c_str()); }

std::pair<Envelope, RoundPlan> open_plan(const std::string& path) {
  const MappedFile file(path);
  try {
    return read_plan(file.bytes());
  } catch (const BadFile& error) {
    throw BadFile(path + ": " + error.what());
  }
}

// The conversation of ondevice/client/client.py, replayed: a question that is not answered yet is written out, and so
// is the update at its end.
void converse(Arguments& arguments) {
  const std::string data = arguments.text("--data"), seed_path = arguments.text("--seed-file");
  const std::string plan_path = arguments.text("--plan"), answers = arguments.text("--answers");
  const std::string directory = arguments.text("--artifact"), out = arguments.text("--out");
  const std::string runtime = arguments.text("--runtime", kRuntime);
  const int threads = static_cast<int>(arguments.number("--threads", 1, 1));
  arguments.expect_no_more();
  const double wall = wall_ms(), cpu = cpu_ms();
  const auto [envelope, plan] = open_plan(plan_path);
  const ExampleSet examples(data);
  const Client client(examples, read_seed(seed_path), {directory, runtime, threads});
  Replay replay(answers);
  const Ask ask = [&](const std::string& question) -> const MappedFile& { return replay.ask(question); };
  try {
    const Client::Trained trained = client.converse(envelope, plan, ask, out);
    say(
        {{"event", "trained"},
         {"num_examples", trained.num_examples},
         {"mean_loss", trained.mean_loss},
         {"wall_ms", wall_ms() - wall},
         {"cpu_ms", cpu_ms() - cpu},
         {"peak_footprint_bytes", peak_footprint_bytes()}});
  } catch (const Unanswered& open) {
    WholeFile file(out);
    file.write(open.question.data(), open.question.size());
    file.publish();
    say({{"event", "asks"}});
  }
}

void check(Arguments& arguments) {
  const std::string directory = arguments.text("--artifact");
  const std::string runtime = arguments.text("--runtime", kRuntime);
  const int threads = static_cast<int>(arguments.number("--threads", 1, 1));
  arguments.expect_no_more();
  const Artifact artifact(directory);
  const double slack = runtime == kRuntime ? 1 : kBaselineSlack;
  const Comparison comparison = check_golden(artifact, *open_step(artifact, runtime, threads), slack);
  say(
      {{"event", "checked"},
       {"runtime", runtime},
       {"instruction_set", fedss_instruction_set()},
       {"passed", !comparison.missed},
       {"outputs", comparison.outputs},
       {"missed", comparison.missed},
       {"worst_tensor", comparison.worst_tensor},
       {"worst_relative_error", comparison.worst_relative_error}});
  if (comparison.missed)
    throw CheckFailed(
        std::to_string(comparison.missed) + " of " + std::to_string(comparison.outputs) +
        " outputs miss the golden step's tolerance, by up to " + std::to_string(comparison.worst_excess) +
        " times; do not train with this client on this device");
}

void run_bench(Arguments& arguments) {
  const Artifact artifact(arguments.text("--artifact"));
  BenchJob job;
  job.runtime = arguments.text("--runtime", kRuntime);
  job.width = arguments.number("--width", 0);
  job.micro_batch = arguments.number("--micro-batch", 1, artifact.micro_batch());
  job.batch = arguments.number("--batch", 1, job.micro_batch);
  job.steps = arguments.number("--steps", 1, 10);
  job.warmup = arguments.number("--warmup", 0, 1);
  job.threads = static_cast<int>(arguments.number("--threads", 1, 1));
  job.profiled = arguments.number("--profile", 0, 0) != 0;
  arguments.expect_no_more();
  if (job.profiled && job.runtime != kRuntime)
    throw UsageError("--profile is for " + std::string(kRuntime) + "; --runtime is '" + job.runtime + "'");
  bench(artifact, job);
}

void run(const std::string& verb, Arguments arguments) {
  if (verb == "converse") return converse(arguments);
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
