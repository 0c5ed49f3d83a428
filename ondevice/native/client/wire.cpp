#include "wire.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "failure.h"
#include "small_floats.h"

namespace fedss {
namespace {

constexpr const char* kVersion = "1";
constexpr size_t kMaxMessageBytes = 1 << 30;
constexpr float kLargestHalf = 65504;

Metadata metadata(const char* kind, Envelope envelope) {
  return {{"kind", kind},
          {"version", kVersion},
          {"round", std::to_string(envelope.round_index)},
          {"client", std::to_string(envelope.client_id)}};
}

void check_metadata(const std::map<std::string, std::string>& given, const char* kind, Envelope envelope) {
  std::string keys;
  for (const auto& [key, text] : given) keys += (keys.empty() ? "" : ", ") + key;
  if (keys != "client, kind, round, version")
    throw BadFile("metadata has " + (keys.empty() ? "nothing" : keys) + "; expected client, kind, round and version");
  for (const auto& [key, expected] : metadata(kind, envelope))
    if (given.at(key) != expected)
      throw BadFile("the message has " + key + " '" + given.at(key) + "'; expected '" + expected + "'");
}

void check_names(const std::map<std::string, TensorView>& tensors, const Expected& expected) {
  std::set<std::string> names{"class_ids", "columns"};
  for (const Parameter& parameter : expected.extractor) names.insert("extractor." + parameter.name);
  for (const std::string& name : names)
    if (!tensors.count(name)) throw BadFile("tensor missing: " + name);
  for (const auto& [name, tensor] : tensors)
    if (!names.count(name)) throw BadFile("tensor unknown: " + name);
}

void check_class_ids(const TensorView& tensor, const std::vector<int64_t>& class_ids, int64_t num_classes) {
  if (tensor.dtype != Dtype::I64 || tensor.shape.size() != 1)
    throw BadFile("class_ids is " + tensor.describe() + "; expected I64 of one dimension");
  const std::vector<int64_t> received = tensor.integers();
  if (std::adjacent_find(received.begin(), received.end(), std::greater_equal<>()) != received.end())
    throw BadFile("class_ids are not sorted and unique");
  if (received.empty() || received.front() < 0 || received.back() >= num_classes)
    throw BadFile("class_ids are out of range; expected 1 or more ids from 0 to " + std::to_string(num_classes - 1));
  if (received != class_ids)
    throw BadFile("the message is about " + std::to_string(received.size()) + " classes that are not the " +
                  std::to_string(class_ids.size()) + " requested");
}

TensorView checked_floats(const std::map<std::string, TensorView>& tensors, const std::string& name, const Dimensions& shape) {
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

std::vector<uint16_t> narrowed(const std::string& name, const std::vector<float>& values, Precision precision) {
  std::vector<uint16_t> bits(values.size());
  if (precision == Precision::bf16) {
    std::transform(values.begin(), values.end(), bits.begin(), float_to_bfloat16);
    return bits;
  }
  for (const float value : values)
    if (!(std::fabs(value) <= kLargestHalf))
      throw CheckFailed(name + " holds " + std::to_string(value) + ", beyond fp16's 65504; send it as bf16 or fp32");
  std::transform(values.begin(), values.end(), bits.begin(), float_to_half);
  return bits;
}

}  // namespace

void write_request(const std::string& path, Envelope envelope, const std::vector<int64_t>& class_ids) {
  const Dimensions shape{static_cast<int64_t>(class_ids.size())};
  write_tensors(path, {{"class_ids", Dtype::I64, shape, class_ids.data()}}, metadata("request", envelope));
}

SliceViews read_slice(Bytes message, Envelope envelope, const std::vector<int64_t>& class_ids, const Expected& expected) {
  if (message.size > kMaxMessageBytes)
    throw BadFile("the message has " + std::to_string(message.size) + " bytes; at most " + std::to_string(kMaxMessageBytes) +
                  " are allowed");
  const TensorFile file = read_tensors(message);
  check_metadata(file.metadata, "slice", envelope);
  check_names(file.tensors, expected);
  check_class_ids(file.tensors.at("class_ids"), class_ids, expected.num_classes);
  SliceViews views;
  for (const Parameter& parameter : expected.extractor)
    views.push_back(checked_floats(file.tensors, "extractor." + parameter.name, parameter.shape));
  views.push_back(checked_floats(file.tensors, "columns", {static_cast<int64_t>(class_ids.size()), expected.column_dim}));
  return views;
}

void write_update(
    const std::string& path, Envelope envelope, const std::vector<int64_t>& class_ids, const Expected& expected,
    const Update& update, Precision precision) {
  const int64_t width = static_cast<int64_t>(class_ids.size());
  std::vector<OutTensor> tensors{
      {"class_ids", Dtype::I64, {width}, class_ids.data()},
      {"num_examples", Dtype::I64, {1}, &update.num_examples},
      {"mean_loss", Dtype::F32, {1}, &update.mean_loss}};
  std::vector<std::vector<uint16_t>> narrow;  // keeps what the tensors point at
  narrow.reserve(update.deltas.size());
  const auto add = [&](const std::string& name, const Dimensions& shape, const std::vector<float>& values) {
    if (precision == Precision::fp32) {
      tensors.push_back({name, Dtype::F32, shape, values.data()});
      return;
    }
    narrow.push_back(narrowed(name, values, precision));
    tensors.push_back({name, precision == Precision::fp16 ? Dtype::F16 : Dtype::BF16, shape, narrow.back().data()});
  };
  add("columns", {width, expected.column_dim}, update.deltas.back());
  for (size_t i = 0; i < expected.extractor.size(); i++)
    add("extractor." + expected.extractor[i].name, expected.extractor[i].shape, update.deltas[i]);
  write_tensors(path, tensors, metadata("update", envelope));
}

}  // namespace fedss
