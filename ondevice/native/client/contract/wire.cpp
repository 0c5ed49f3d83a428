#include "client/contract/wire.h"

#include <set>

#include "client/contract/failure.h"
#include "client/contract/messages/checked_tensors.h"

namespace fedss {
namespace {

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

void check_requested(const std::vector<int64_t>& received, const std::string& table, const std::vector<int64_t>& ids) {
  if (received.empty()) throw BadFile("the message has no rows of " + table + "; expected 1 or more");
  if (received != ids)
    throw BadFile(
        "the message is about " + std::to_string(received.size()) + " rows of " + table + " that are not the " +
        std::to_string(ids.size()) + " requested");
}

int64_t rows_in(const RowIds& ids, const std::string& table) { return static_cast<int64_t>(ids_of(ids, table).size()); }

OutTensor out_ids(const std::string& table, const std::vector<int64_t>& ids) {
  return {"rows." + table, Dtype::I64, {static_cast<int64_t>(ids.size())}, ids.data()};
}

}  // namespace

std::pair<Envelope, RoundPlan> read_plan(Bytes message) {
  TensorFile file = opened(message, "plan", {"settings"});
  expect_names(file.tensors, {});
  const Envelope envelope{count_of("round", file.metadata["round"]), count_of("client", file.metadata["client"])};
  const Json settings = parse_json(file.metadata["settings"], "the plan's settings");
  return {envelope, plan_from_settings(settings, envelope.round_index)};
}

std::string request_to_bytes(Envelope envelope, const RowIds& ids, const char* kind) {
  std::vector<OutTensor> tensors;
  for (const auto& [table, rows] : ids) tensors.push_back(out_ids(table, rows));
  return tensors_to_bytes(tensors, metadata_of(kind, envelope));
}

SliceViews read_slice(Bytes message, Envelope envelope, const RowIds& ids, const Expected& expected) {
  const TensorFile file = decoded(message, "slice", envelope);
  std::set<std::string> names;
  for (const Parameter& parameter : expected.dense) names.insert("dense." + parameter.name);
  for (const auto& [table, dim] : expected.table_dims) names.insert({"rows." + table, "table." + table});
  for (const auto& [side, table] : expected.sides) names.insert("side." + side);
  expect_names(file.tensors, names);
  SliceViews slice;
  for (const Parameter& parameter : expected.dense)
    slice.weights.push_back(floats(file.tensors, "dense." + parameter.name, parameter.shape));
  for (const auto& [table, dim] : expected.table_dims) {
    check_requested(row_ids(file.tensors, table, expected.table_sizes.at(table)), table, ids_of(ids, table));
    slice.weights.push_back(floats(file.tensors, "table." + table, {rows_in(ids, table), dim}));
  }
  for (const auto& [side, table] : expected.sides) {
    const TensorView view = floats(file.tensors, "side." + side, {rows_in(ids, table)});
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
  for (const auto& [table, dim] : expected.table_dims) tensors.push_back(out_ids(table, ids_of(ids, table)));
  tensors.push_back({"num_examples", Dtype::I64, {1}, &update.num_examples});
  tensors.push_back({"mean_loss", Dtype::F32, {1}, &update.mean_loss});
  for (const Weight& weight : update.weights)
    if (weight.dtype == Dtype::I8)
      tensors.push_back(
          {"scale." + weight.name, Dtype::F32, {static_cast<int64_t>(weight.scales.size())}, weight.scales.data()});
  for (const Weight& weight : update.weights)
    tensors.push_back({weight.name, weight.dtype, weight.shape, weight.data()});
  write_tensors(path, tensors, metadata_of("update", envelope));
}

}  // namespace fedss
