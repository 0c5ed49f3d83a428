#include "client/embedding.h"

#include <algorithm>
#include <map>

#include "client/contract/failure.h"
#include "client/step/training_step.h"

namespace fedss {
namespace {

// `embed.pte` of one length, opened when a text first needs it.
struct Embedder {
  Embedder(const Artifact& whole, int64_t size)
      : artifact(whole.of_length(size)),
        program(artifact, "embed.pte"),
        texts(whole.lengths, artifact.signature, artifact.bounds) {}

  const Artifact artifact;
  ExportedProgram program;
  CutTexts texts;
};

// One embedding after the other.  Where an example has fewer places than others there are zeros, which are left out.
void add_places(Embeddings& found, const Dimensions& shape, const float* made, size_t count) {
  for (const float* one = made; one < made + count; one += found.dim)
    if (shape.size() == 1 || std::any_of(one, one + found.dim, [](float value) { return value != 0; }))
      found.values.insert(found.values.end(), one, one + found.dim);
}

}  // namespace

Embeddings embed_places(
    const Artifact& artifact, const StepPlace& place, const StepArrays& weights, const RowIds& ids,
    const ExampleSet& examples, const std::vector<int64_t>& positions) {
  if (place.runtime != "executorch")
    throw UsageError(
        "--runtime is '" + place.runtime + "', which only trains; the plan's sampler embeds, which takes executorch");
  set_threads(place.threads);
  std::map<int64_t, Embedder> embedders;
  const StepSignature signature = artifact.signature.of_embedding();
  const RowSample sample{ids, {}, {}};
  const BatchGatherer gatherer(signature, examples, sample);
  MicroBatch batch = empty_batch(signature, artifact.bounds);
  StepArrays arrays;
  for (const ArraySpec& spec : signature.trained()) arrays[spec.name] = weights.at(spec.name);
  add_batch(arrays, batch);
  // A last batch is filled up with padding; what becomes of that is left out.
  const std::vector<float> unweighted(positions.size());
  std::vector<float> made(element_count(artifact.embedded()));
  Embeddings found{artifact.embedding.back(), {}};
  for (size_t first = 0; first < positions.size(); first += artifact.micro_batch()) {
    gatherer.fill(batch, positions, unweighted, first);
    check_arrays(signature, arrays, artifact.bounds);
    const int64_t size = artifact.lengths.sizes.empty() ? 0 : artifact.lengths.holding(signature, arrays);
    Embedder& embedder = embedders.try_emplace(size, artifact, size).first->second;
    const StepArrays cut = embedder.texts.cut(arrays);
    std::vector<ArrayView> inputs;
    for (const ArraySpec& spec : signature.of_role({Role::dense})) inputs.push_back(cut.at(spec.name));
    for (const ArraySpec& spec : signature.embedded()) inputs.push_back(cut.at(spec.name));
    embedder.program.run(inputs, {{made.data(), embedder.artifact.embedded()}});
    const size_t count = std::min<size_t>(artifact.micro_batch(), positions.size() - first);
    const Dimensions& shape = embedder.artifact.embedding;
    add_places(found, shape, made.data(), count * element_count(shape));
  }
  return found;
}

}  // namespace fedss
