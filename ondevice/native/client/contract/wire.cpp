#include "client/contract/wire.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "client/contract/failure.h"

namespace fedss {
namespace {

constexpr const char* kVersion = "2";
constexpr size_t kMaxMessageBytes = 1 << 30;
constexpr const char* kOlder = ": push a new bundle, or update the server";

using Tensors = std::map<std::string, TensorView>;

Metadata metadata(const char* kind, Envelope envelope) {
  return {
      {"kind", kind},
      {"version", kVersion},
      {"round", std::to_string(envelope.round_index)},
      {"client", std::to_string(envelope.client_id)}};
}

// A message of this kind, its envelope not looked at yet; `more` is the metadata that it has beside the four.
TensorFile read_message(Bytes message, const std::string& kind, const std::set<std::string>& more) {
  if (message.size > kMaxMessageBytes)
    throw BadFile(
        "the message has " + std::to_string(message.size) + " bytes; at most " + std::to_string(kMaxMessageBytes) +
        " are allowed");
  TensorFile file = read_tensors(message);
  const auto version = file.metadata.find("version");
  if (version != file.metadata.end() && version->second != kVersion)
    throw BadFile(
        "the message has format version '" + version->second + "'; this client reads '" + kVersion + "'" + kOlder);
  std::set<std::string> known{"kind", "version", "round", "client"}, given;
  known.insert(more.begin(), more.end());
  std::string keys;
  for (const auto& [key, text] : file.metadata) {
    given.insert(key);
    keys += (keys.empty() ? "" : ", ") + key;
  }
  if (file.metadata.count("kind") && file.metadata["kind"] != kind)
    throw BadFile("the message is a '" + file.metadata["kind"] + "'; expected a '" + kind + "'");
  if (given != known)
    throw BadFile(
        "metadata has " + (keys.empty() ? "nothing" : keys) + "; expected " + std::to_string(known.size()) +
        " entries: client, kind, round, version" + (more.empty() ? "" : ", " + *more.begin()));
  return file;
}

void check_names(const Tensors& tensors, const std::set<std::string>& names) {
  for (const std::string& name : names)
    if (!tensors.count(name)) throw BadFile("tensor missing: " + name);
  for (const auto& [name, tensor] : tensors)
    if (!names.count(name)) throw BadFile("tensor unknown: " + name);
}

int64_t count_of(const std::string& name, const std::string& text) {
  const bool digits = std::all_of(text.begin(), text.end(), [](char letter) { return letter >= '0' && letter <= '9'; });
  if (text.empty() || text.size() >= 19 || !digits)
    throw BadFile(name + " is '" + text + "'; expected a whole number, 0 or more");
  return std::stoll(text);
}

RoundPlan plan_from_settings(const Json& document, int64_t round_index) {
  Fields fields(document, "the plan's settings");
  RoundPlan plan{round_index, {}, {}, {}, {}, {}, {}};
  const Json& sizes = fields.field("table_sizes");
  if (!sizes.is_object()) fields.fail("table_sizes are " + sizes.dump() + "; expected whole numbers by table");
  Fields tables(sizes, "the plan's table_sizes");
  for (const auto& [table, size] : sizes.items()) plan.table_sizes[table] = tables.count(table.c_str(), 1);
  plan.sampler = choice_from_document(fields.field("sampler"));
  plan.weighting = choice_from_document(fields.field("weighting"));
  const Json& transforms = fields.field("transforms");
  if (!transforms.is_array()) fields.fail("transforms are " + transforms.dump() + "; expected a list");
  for (const Json& transform : transforms) plan.transforms.push_back(choice_from_document(transform));
  Fields training(fields.field("local_training"), "the plan's local_training");
  const auto number = [&](const char* name) { return static_cast<float>(training.number(name)); };
  if (training.number("momentum") >= 1)
    training.fail("momentum is 1 or more; expected less, or local training diverges");
  plan.local_training = {
      training.count("epochs", 1), training.count("batch_size", 1), number("learning_rate"), number("weight_decay"),
      number("momentum")};
  training.expect_no_more();
  const Json& sides = fields.field("sides");
  if (!sides.is_object()) fields.fail("sides are " + sides.dump() + "; expected tables by side array");
  for (const auto& [side, table] : sides.items()) {
    if (!table.is_string() || !plan.table_sizes.count(table.get<std::string>()))
      fields.fail("the side array " + side + " is about rows of " + table.dump() + "; there is no such table");
    plan.sides.emplace_back(side, table.get<std::string>());
  }
  fields.expect_no_more();
  return plan;
}

void check_row_ids(
    const TensorView& tensor, const std::string& table, const std::vector<int64_t>& ids, int64_t table_size) {
  if (tensor.dtype != Dtype::I64 || tensor.shape.size() != 1)
    throw BadFile("rows." + table + " is " + tensor.describe() + "; expected I64 of one dimension");
  const std::vector<int64_t> received = tensor.integers();
  if (std::adjacent_find(received.begin(), received.end(), std::greater_equal<>()) != received.end())
    throw BadFile(table + ": row ids are not sorted and unique");
  if (received.empty() || received.front() < 0 || received.back() >= table_size)
    throw BadFile(
        "the rows of " + table + " are out of range; expected 1 or more ids from 0 to " +
        std::to_string(table_size - 1));
  if (received != ids)
    throw BadFile(
        "the message is about " + std::to_string(received.size()) + " rows of " + table + " that are not the " +
        std::to_string(ids.size()) + " requested");
}

TensorView checked_floats(const Tensors& tensors, const std::string& name, const Dimensions& shape) {
  const TensorView& tensor = tensors.at(name);
  const bool is_float = tensor.dtype == Dtype::F32 || tensor.dtype == Dtype::F16 || tensor.dtype == Dtype::BF16;
  if (!is_float || tensor.shape != shape)
    throw BadFile(name + " is " + tensor.describe() + "; expected F32, F16 or BF16 " + describe(shape));
  std::vector<float> values(element_count(shape));
  tensor.floats(values.data());
  if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }))
    throw BadFile(name + " holds NaN or infinity");
  return tensor;
}

int64_t rows_in(const RowIds& ids, const std::string& table) { return static_cast<int64_t>(ids_of(ids, table).size()); }

OutTensor row_ids(const std::string& table, const std::vector<int64_t>& ids) {
  return {"rows." + table, Dtype::I64, {static_cast<int64_t>(ids.size())}, ids.data()};
}

}  // namespace

std::pair<Envelope, RoundPlan> read_plan(Bytes message) {
  TensorFile file = read_message(message, "plan", {"settings"});
  check_names(file.tensors, {});
  const Envelope envelope{count_of("round", file.metadata["round"]), count_of("client", file.metadata["client"])};
  const Json settings = parse_json(file.metadata["settings"], "the plan's settings");
  return {envelope, plan_from_settings(settings, envelope.round_index)};
}

std::string request_to_bytes(Envelope envelope, const RowIds& ids) {
  std::vector<OutTensor> tensors;
  for (const auto& [table, rows] : ids) tensors.push_back(row_ids(table, rows));
  return tensors_to_bytes(tensors, metadata("request", envelope));
}

SliceViews read_slice(Bytes message, Envelope envelope, const RowIds& ids, const Expected& expected) {
  TensorFile file = read_message(message, "slice", {});
  for (const auto& [key, value] : metadata("slice", envelope))
    if (file.metadata[key] != value)
      throw BadFile("the message is for " + key + " '" + file.metadata[key] + "'; expected '" + value + "'");
  std::set<std::string> names;
  for (const Parameter& parameter : expected.dense) names.insert("dense." + parameter.name);
  for (const auto& [table, dim] : expected.table_dims) names.insert({"rows." + table, "table." + table});
  for (const auto& [side, table] : expected.sides) names.insert("side." + side);
  check_names(file.tensors, names);
  SliceViews slice;
  for (const Parameter& parameter : expected.dense)
    slice.weights.push_back(checked_floats(file.tensors, "dense." + parameter.name, parameter.shape));
  for (const auto& [table, dim] : expected.table_dims) {
    check_row_ids(file.tensors.at("rows." + table), table, ids_of(ids, table), expected.table_sizes.at(table));
    slice.weights.push_back(checked_floats(file.tensors, "table." + table, {rows_in(ids, table), dim}));
  }
  for (const auto& [side, table] : expected.sides) {
    const TensorView view = checked_floats(file.tensors, "side." + side, {rows_in(ids, table)});
    slice.sides[side].resize(element_count(view.shape));
    view.floats(slice.sides[side].data());
  }
  return slice;
}

Weights weights_of(Arrays differences, const RowIds& ids, const Expected& expected) {
  Weights weights;
  const size_t first_table = expected.dense.size();
  for (size_t i = 0; i < expected.table_dims.size(); i++) {
    const auto& [table, dim] = expected.table_dims[i];
    weights.push_back(
        {"table." + table, Dtype::F32, {rows_in(ids, table), dim}, std::move(differences[first_table + i])});
  }
  for (size_t i = 0; i < first_table; i++)
    weights.push_back(
        {"dense." + expected.dense[i].name, Dtype::F32, expected.dense[i].shape, std::move(differences[i])});
  return weights;
}

const void* Weight::data() const {
  if (dtype == Dtype::I8) return whole_numbers.data();
  return dtype == Dtype::F32 ? static_cast<const void*>(values.data()) : bits.data();
}

void write_update(
    const std::string& path, Envelope envelope, const RowIds& ids, const Expected& expected, const Update& update) {
  std::vector<OutTensor> tensors;
  for (const auto& [table, dim] : expected.table_dims) tensors.push_back(row_ids(table, ids_of(ids, table)));
  tensors.push_back({"num_examples", Dtype::I64, {1}, &update.num_examples});
  tensors.push_back({"mean_loss", Dtype::F32, {1}, &update.mean_loss});
  for (const Weight& weight : update.weights)
    if (weight.dtype == Dtype::I8)
      tensors.push_back(
          {"scale." + weight.name, Dtype::F32, {static_cast<int64_t>(weight.scales.size())}, weight.scales.data()});
  for (const Weight& weight : update.weights)
    tensors.push_back({weight.name, weight.dtype, weight.shape, weight.data()});
  write_tensors(path, tensors, metadata("update", envelope));
}

}  // namespace fedss
