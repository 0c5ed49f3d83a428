// Answers for the tests what the client's code makes of many inputs, in one process and without ExecuTorch:
//
//   probe judge EXPECTED
//       messages on stdin, each after its length (uint32); a line for each: `ok`, or `bad` and why
//   probe judge-found EXPECTED
//       the same for answers to a look-up of the first table's rows
//   probe judge-plan
//       the same for plans
//   probe plan FILE
//       what the client understands of a plan, as JSON
//   probe answer EXPECTED SLICE TRANSFORMS REQUEST UPDATE [SEED]
//       reads the slice; writes the request for it, and an update whose differences are its weights, after the
//       transforms of a JSON list, by a client of that private seed (0)
//   probe sample
//       lines `seed round num_rows label... ; token... | sampler` on stdin, the sampler as JSON; prints S_k, `|`, the
//       bits of the adjustments, `|`, and the order of the examples in the first epoch
//   probe near CASE EMBEDDINGS ROWS SAMPLER
//       a draw of NearestRows over the rows of a file, by a client whose examples have the embeddings of another; CASE
//       as a line of `sample`, without the sampler; prints S_k, `|`, the bits of the adjustments, `|`, and the look-up
//       as hexadecimal bytes
//   probe weigh
//       lines `seed round num_rows label... | weighting | share...` on stdin, the weighting as JSON, a class_share for
//       every row; prints the positions of the examples that it draws, `|`, and the bits of their weights as one batch
//   probe gather ARTIFACT DATA IDS FIRST POSITION...
//       the micro-batch from POSITION number FIRST on, its arrays as hexadecimal bytes; IDS as JSON
//   probe noise ARTIFACT SEED ROUND NUMBER EXAMPLES
//       the noise of a batch of so many examples, SGD step NUMBER of the round: the arrays of its micro-batches one
//       after the other, as hexadecimal bytes
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "client/contract/artifact.h"
#include "client/contract/failure.h"
#include "client/contract/portable_random.h"
#include "client/noise.h"
#include "client/step/micro_batch.h"
#include "fuzz/case.h"

namespace {

using namespace fedss;

template <class Read>
void judge(const Read& read) {
  uint32_t size;
  while (std::cin.read(reinterpret_cast<char*>(&size), sizeof size)) {
    std::vector<uint8_t> message(size);  // its own block of memory, so that the sanitizer sees one byte too far
    std::cin.read(reinterpret_cast<char*>(message.data()), size);
    try {
      read(Bytes{message.data(), message.size()});
      std::puts("ok");
    } catch (const BadFile& error) {
      std::string line = error.what();
      for (char& letter : line)
        if (letter == '\n' || letter == '\r') letter = ' ';
      std::printf("bad %s\n", line.c_str());
    }
  }
}

Json document_of(const Choice& choice) {
  Json document = choice.settings;
  document["name"] = choice.name;
  return document;
}

void show_plan(const std::string& path) {
  const MappedFile file(path);
  const auto [envelope, plan] = usable_plan(file.bytes());
  Json transforms = Json::array();
  for (const Choice& transform : plan.transforms) transforms.push_back(document_of(transform));
  Json sides = Json::array();
  for (const auto& [side, table] : plan.sides) sides.push_back(Json::array({side, table}));
  const auto [epochs, batch_size, rate, decay, momentum] = plan.local_training;
  const Json document{
      {"round_index", envelope.round_index},
      {"client_id", envelope.client_id},
      {"table_sizes", plan.table_sizes},
      {"sampler", document_of(plan.sampler)},
      {"weighting", document_of(plan.weighting)},
      {"transforms", transforms},
      {"local_training", {epochs, batch_size, rate, decay, momentum}},
      {"sides", sides}};
  std::puts(document.dump().c_str());
}

void answer(
    const Case& given, const std::string& slice, const std::string& transforms, const std::string& request,
    const std::string& update, uint64_t private_seed) {
  const MappedFile file(slice);
  Arrays differences;
  for (const TensorView& tensor : read_slice(file.bytes(), given.envelope, given.ids, given.expected).weights) {
    differences.emplace_back(element_count(tensor.shape));
    tensor.floats(differences.back().data());
  }
  Update result{weights_of(std::move(differences), given.ids, given.expected), 11, 0.5f};
  std::vector<Choice> choices;
  for (const Json& document : parse_json(transforms, "the transforms"))
    choices.push_back(choice_from_document(document));
  const TransformView view{given.envelope.round_index, private_seed};
  for (const auto& transform : chosen_transforms(choices)) transform->apply(result.weights, view);
  WholeFile question(request);
  const std::string bytes = request_to_bytes(given.envelope, given.ids);
  question.write(bytes.data(), bytes.size());
  question.publish();
  write_update(update, given.envelope, given.ids, given.expected, result);
}

// `seed round num_rows label... ; token...`
struct Draw {
  uint64_t seed;
  RoundPlan plan{};
  std::vector<int64_t> labels{}, tokens{};

  explicit Draw(const std::string& line) {
    const size_t semicolon = line.find(';');
    std::istringstream words(line.substr(0, semicolon)), more(line.substr(semicolon + 1));
    words >> seed >> plan.round_index >> plan.table_sizes[kColumns];
    for (int64_t label; words >> label;) labels.push_back(label);
    for (int64_t token; more >> token;) tokens.push_back(token);
  }

  // Prints S_k, and the bits of the adjustments.
  void show(const std::string& document, Questions& questions) const {
    const auto sampler = chosen(kSamplers, choice_from_document(parse_json(document, "the sampler")), "sampler");
    const RowSample drawn = sampler->draw({plan, labels, seed, [&](const std::string&) { return tokens; }, questions});
    for (const int64_t id : ids_of(drawn.ids, kColumns)) std::printf("%ld ", static_cast<long>(id));
    std::printf("|");
    for (const float adjust : drawn.sides.at("adjust")) std::printf(" %u", std::bit_cast<uint32_t>(adjust));
    std::printf(" |");
  }
};

// Answers a sampler's questions from two matrices: a look-up finds all rows.
class AllFound final : public Questions {
 public:
  AllFound(const std::string& embeddings, const std::string& rows)
      : embeddings_(matrix(embeddings)), rows_(matrix(rows)) {}

  int64_t dim() override { return rows_.dim; }
  Embeddings embeddings(const std::vector<int64_t>&) override { return embeddings_; }
  Rows look_up(const Lookup& lookup) override {
    asked = lookup_to_bytes({7, 3}, lookup);
    Rows all{{}, rows_.values};
    for (size_t i = 0; i < rows_.values.size() / rows_.dim; i++) all.ids.push_back(static_cast<int64_t>(i));
    return all;
  }

  std::string asked;

 private:
  static Embeddings matrix(const std::string& path) {
    const MappedFile file(path);
    const TensorView view = read_tensors(file.bytes()).tensors.at("matrix");
    Embeddings read{view.shape.at(1), std::vector<float>(element_count(view.shape))};
    view.floats(read.values.data());
    return read;
  }

  const Embeddings embeddings_, rows_;
};

void near(const std::string& line, const std::string& embeddings, const std::string& rows, const std::string& sampler) {
  AllFound questions(embeddings, rows);
  Draw(line).show(sampler, questions);
  std::printf(" ");
  for (const char byte : questions.asked) std::printf("%02x", static_cast<uint8_t>(byte));
  std::printf("\n");
}

// For samplers that ask nothing.
class Nobody final : public Questions {
 public:
  int64_t dim() override { fail(); }
  Embeddings embeddings(const std::vector<int64_t>&) override { fail(); }
  Rows look_up(const Lookup&) override { fail(); }

 private:
  [[noreturn]] static void fail() { throw BadFile("nobody is there to be asked"); }
};

void sample() {
  Nobody nobody;
  for (std::string line; std::getline(std::cin, line);) {
    const size_t bar = line.find('|');
    const Draw draw(line.substr(0, bar));
    draw.show(line.substr(bar + 1), nobody);
    PortableRandom random(draw.seed, static_cast<uint64_t>(draw.plan.round_index), kFirstEpoch);
    for (const int64_t example : random.permutation(static_cast<int64_t>(draw.labels.size())))
      std::printf(" %ld", static_cast<long>(example));
    std::printf("\n");
  }
}

void weigh() {
  for (std::string line; std::getline(std::cin, line);) {
    const size_t bar = line.find('|'), second = line.find('|', bar + 1);
    std::istringstream words(line.substr(0, bar)), numbers(line.substr(second + 1));
    uint64_t seed;
    RoundPlan plan{};
    words >> seed >> plan.round_index >> plan.table_sizes[kColumns];
    std::vector<int64_t> labels, rows;
    for (int64_t label; words >> label;) labels.push_back(label);
    std::vector<float> shares;
    for (float share; numbers >> share; shares.push_back(share)) rows.push_back(static_cast<int64_t>(rows.size()));
    const Json document = parse_json(line.substr(bar + 1, second - bar - 1), "the weighting");
    const auto weighting = chosen(kWeightings, choice_from_document(document), "weighting");
    const std::vector<int64_t> positions = weighting->examples(plan, labels, seed);
    for (const int64_t position : positions) std::printf("%ld ", static_cast<long>(position));
    std::printf("|");
    const RowIds ids{{kColumns, rows}};
    const Sides sides{{"class_share", shares}};
    for (const float weight : weighting->weights({plan, labels, ids, sides, seed}, positions))
      std::printf(" %u", std::bit_cast<uint32_t>(weight));
    std::printf("\n");
  }
}

void show(NamedArray& array) {
  check_range(array.spec, array.view());
  std::printf("%s ", array.spec.name.c_str());
  for (const uint8_t* byte = array.entry(0); byte < array.entry(array.shape[0]); byte++) std::printf("%02x", *byte);
  std::printf("\n");
}

void noise(char** words) {
  const Artifact artifact(words[0]);
  const auto number = [&](int at) { return std::strtoull(words[at], nullptr, 10); };
  BatchNoise drawn(number(1), number(2), number(3));
  MicroBatch micro_batch = empty_batch(artifact.signature, artifact.bounds);
  for (size_t first = 0; first < number(4); first += artifact.micro_batch()) {
    drawn.fill(micro_batch, number(4) - first);
    for (NamedArray& array : micro_batch)
      if (array.spec.role == Role::noise) show(array);
  }
}

void gather(int count, char** words) {
  const Artifact artifact(words[0]);
  const ExampleSet examples(words[1]);
  RowIds ids;
  const Json document = parse_json(words[2], "the ids");
  for (const auto& [table, rows] : document.items()) ids.push_back({table, rows.get<std::vector<int64_t>>()});
  const size_t first = std::strtoull(words[3], nullptr, 10);
  std::vector<int64_t> batch;
  for (int i = 4; i < count; i++) batch.push_back(std::atoll(words[i]));
  const RoundPlan plan{};
  Json nothing = Json::object();
  Fields settings(nothing, "uniform");
  const std::vector<float> weights = make_uniform(settings)->weights({plan, examples.labels(), ids, {}, 0}, batch);
  MicroBatch micro_batch = empty_batch(artifact.signature, artifact.bounds);
  for (NamedArray& array : micro_batch)
    std::fill(array.entry(0), array.entry(array.shape[0]), 0xAB);  // of the batch before
  const RowSample sample{ids, {}, {}};
  BatchGatherer(artifact.signature, examples, sample).fill(micro_batch, batch, weights, first);
  for (NamedArray& array : micro_batch) show(array);
}

}  // namespace

int main(int count, char** words) try {
  const std::string verb = count > 1 ? words[1] : "";
  if (verb == "judge" && count == 3) {
    const Case given(words[2]);
    judge([&](Bytes message) { read_slice(message, given.envelope, given.ids, given.expected); });
  } else if (verb == "judge-found" && count == 3) {
    const Case given(words[2]);
    judge([&](Bytes message) { given.read_found(message); });
  } else if (verb == "judge-plan" && count == 2) {
    judge(usable_plan);
  } else if (verb == "plan" && count == 3) {
    show_plan(words[2]);
  } else if (verb == "answer" && (count == 7 || count == 8)) {
    const uint64_t seed = count == 8 ? std::strtoull(words[7], nullptr, 10) : 0;
    answer(Case(words[2]), words[3], words[4], words[5], words[6], seed);
  } else if (verb == "sample" && count == 2) {
    sample();
  } else if (verb == "near" && count == 6) {
    near(words[2], words[3], words[4], words[5]);
  } else if (verb == "weigh" && count == 2) {
    weigh();
  } else if (verb == "gather" && count > 6) {
    gather(count - 2, words + 2);
  } else if (verb == "noise" && count == 7) {
    noise(words + 2);
  } else {
    return 2;
  }
  return 0;
} catch (const Failure& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return error.exit_code;
}
