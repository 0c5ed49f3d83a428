#include "device_files.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

#include "failure.h"
#include "strict_json.h"

namespace fedss {
namespace {

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data), file.bytes().size};
}

// One JSON object of a plan; every field is asked for by name, and none may be left over.
class Fields {
 public:
  Fields(const Json& object, const std::string& where) : object_(object), where_(where) {
    if (!object.is_object()) fail("it is not a JSON object");
  }

  const Json& field(const char* name) {
    asked_.insert(name);
    if (!object_.contains(name)) fail(std::string(name) + " is missing");
    return object_[name];
  }
  int64_t count(const char* name, int64_t least) {
    const Json& value = field(name);
    if (!is_count(value) || value.get<int64_t>() < least)
      fail(std::string(name) + " is " + value.dump() + "; expected a whole number of " + std::to_string(least) + " or more");
    return value.get<int64_t>();
  }
  float number(const char* name) {
    const Json& value = field(name);
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0)
      fail(std::string(name) + " is " + value.dump() + "; expected a finite number, 0 or more");
    return static_cast<float>(value.get<double>());
  }
  template <class Choice>
  Choice choice(const char* name, std::initializer_list<std::pair<const char*, Choice>> choices) {
    const Json& value = field(name);
    for (const auto& [word, meaning] : choices)
      if (value == word) return meaning;
    std::string expected;
    for (const auto& [word, meaning] : choices) expected += (expected.empty() ? "" : ", ") + std::string(word);
    fail(std::string(name) + " is " + value.dump() + "; expected one of " + expected);
  }
  void expect_no_more() {
    for (const auto& [name, value] : object_.items())
      if (!asked_.count(name)) fail("unknown field " + name + "; this client is older than the plan: push a new bundle");
  }
  [[noreturn]] void fail(const std::string& why) const { throw BadFile(where_ + ": " + why); }

 private:
  const Json& object_;
  const std::string where_;
  std::set<std::string> asked_;
};

}  // namespace

ExampleSet::ExampleSet(const std::string& path) : file_(path) {
  TensorFile file;
  try {
    file = read_tensors(file_.bytes());
  } catch (const BadFile& error) {
    throw BadFile(path + ": " + error.what());
  }
  const auto images = file.tensors.find("images"), labels = file.tensors.find("labels");
  if (file.tensors.size() != 2 || images == file.tensors.end() || labels == file.tensors.end())
    throw BadFile(path + ": expected exactly the tensors images and labels");
  const TensorView &pixels = images->second, &classes = labels->second;
  if (pixels.dtype != Dtype::U8 || pixels.shape.size() != 4)
    throw BadFile(path + ": images are " + pixels.describe() + "; expected U8 [N, C, H, W]");
  if (classes.dtype != Dtype::I64 || classes.shape != Dimensions{pixels.shape[0]})
    throw BadFile(path + ": labels are " + classes.describe() + "; expected I64 [" + std::to_string(pixels.shape[0]) + "]");
  labels_ = classes.integers();
  if (std::any_of(labels_.begin(), labels_.end(), [](int64_t label) { return label < 0; }))
    throw BadFile(path + ": a label is negative; class labels start at 0");
  image_shape_.assign(pixels.shape.begin() + 1, pixels.shape.end());
  pixels_ = pixels.bytes.data;
}

RoundPlan read_plan(const std::string& path) {
  const MappedFile file(path);
  const Json document = parse_json(text_of(file), path);
  Fields plan(document, path);
  plan.choice("format", {std::pair("fedss-plan", true)});
  if (plan.count("version", 0) != 1)
    plan.fail("format version " + document["version"].dump() + "; this client reads version 1: update the older side");
  RoundPlan result;
  result.envelope = {plan.count("round_index", 0), plan.count("client_id", 0)};
  result.precision = plan.choice(
      "precision", {std::pair("fp32", Precision::fp32), std::pair("fp16", Precision::fp16), std::pair("bf16", Precision::bf16)});
  result.num_classes = plan.count("num_classes", 1);
  result.num_negatives = plan.count("num_negatives", 0);
  result.method = plan.choice(
      "method", {std::pair("fedss", Method::fedss), std::pair("negatives_only", Method::negatives_only),
                 std::pair("positives_only", Method::positives_only), std::pair("full_softmax", Method::full_softmax)});
  if (result.num_negatives && (result.method == Method::positives_only || result.method == Method::full_softmax))
    plan.fail("num_negatives is " + std::to_string(result.num_negatives) + ", but this method draws none; set it to 0");
  Fields training(plan.field("local_training"), path + ": local_training");
  result.local_training = {training.count("epochs", 1), training.count("batch_size", 1), training.number("learning_rate"),
                           training.number("weight_decay"), training.number("momentum")};
  if (result.local_training.momentum >= 1) training.fail("momentum is 1 or more; expected less, or local training diverges");
  training.expect_no_more();
  plan.expect_no_more();
  return result;
}

uint64_t read_seed(const std::string& path) {
  const MappedFile file(path);
  std::string_view text = text_of(file);
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size())
    throw BadFile(path + ": expected one whole number below 2^64, the client's private seed");  // never quoted: it is secret
  return seed;
}

}  // namespace fedss
