#include "client/contract/step_signature.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <set>

#include "client/contract/failure.h"
#include "client/contract/vocabulary.h"

namespace fedss {
namespace {

constexpr const char* kRoles[] = {"dense", "table", "side", "feature", "label", "noise", "example_weight"};

struct TypeName {
  const char* name;
  Dtype dtype;
};
constexpr TypeName kTypes[] = {{"float32", Dtype::F32}, {"int64", Dtype::I64}, {"uint8", Dtype::U8}};

std::string type_name(Dtype dtype) {
  for (const TypeName& entry : kTypes)
    if (entry.dtype == dtype) return entry.name;
  return "a type that no step takes";
}

std::string kind(const ArrayView& array) { return type_name(array.dtype) + " " + describe(array.shape); }

bool starts_with_rows(const std::string& symbol) { return symbol.rfind("rows:", 0) == 0; }

Size size_from_document(const std::string& name, const Json& value) {
  if (is_count(value)) return {value.get<int64_t>(), ""};
  const std::string symbol = value.is_string() ? value.get<std::string>() : "";
  if (symbol != kExamples && !starts_with_rows(symbol))
    throw BadFile(name + ": size is " + value.dump() + "; expected a number, 'b' or 'rows:TABLE'");
  return {0, symbol};
}

ArraySpec spec_from_document(const Json& document) {
  static const std::set<std::string> known{"name", "role", "shape", "dtype", "padding", "positions_in", "below"};
  if (!document.is_object()) throw BadFile("an input of the signature is not a JSON object");
  ArraySpec spec;
  spec.name = document.at("name").get<std::string>();
  for (const auto& [field, value] : document.items())
    if (!known.count(field)) throw BadFile(spec.name + " has the unknown field " + field);
  const Json &role = document.at("role"), &shape = document.at("shape");
  const auto is_role = [&](const char* name) { return role == name; };
  const auto found = std::find_if(std::begin(kRoles), std::end(kRoles), is_role);
  if (found == std::end(kRoles)) throw BadFile(spec.name + ": role is " + role.dump() + ", which no step has");
  spec.role = static_cast<Role>(found - std::begin(kRoles));
  if (!shape.is_array() || shape.size() > kMaxRank)
    throw BadFile(spec.name + ": shape is not a list of at most " + std::to_string(kMaxRank) + " sizes");
  for (const Json& size : shape) spec.shape.push_back(size_from_document(spec.name, size));
  if (document.contains("dtype")) {
    const Json& dtype = document["dtype"];
    const auto is_type = [&](const TypeName& entry) { return dtype == entry.name; };
    const auto type = std::find_if(std::begin(kTypes), std::end(kTypes), is_type);
    if (type == std::end(kTypes))
      throw BadFile(spec.name + ": dtype is " + dtype.dump() + "; expected float32, int64 or uint8");
    spec.dtype = type->dtype;
  }
  if (document.contains("padding")) {
    if (!document["padding"].is_number()) throw BadFile(spec.name + ": padding is not a number");
    spec.padding = document["padding"].get<double>();
  }
  if (document.contains("positions_in") && !document["positions_in"].is_null())
    spec.positions_in = document["positions_in"].get<std::string>();
  if (document.contains("below") && !document["below"].is_null()) {
    const Json& below = document["below"];
    if (!is_count(below) || below == 0)
      throw BadFile(spec.name + ": below is " + below.dump() + "; expected a whole number from 1");
    spec.below = below.get<int64_t>();
  }
  return spec;
}

// `_check_role` of Python, and stricter where this client gathers and pads by bytes: side arrays and labels have one
// dimension, and only the first size of an array is a symbol.
bool has_the_shape_of_its_role(const ArraySpec& spec) {
  const auto numbers_from = [&](size_t first) {
    return std::all_of(
        spec.shape.begin() + first, spec.shape.end(), [](const Size& size) { return size.symbol.empty(); });
  };
  const std::string leading = spec.shape.empty() ? "" : spec.shape[0].symbol;
  const size_t rank = spec.shape.size();
  if (spec.positions_in && (spec.dtype != Dtype::I64 || (spec.role != Role::feature && spec.role != Role::label)))
    return false;
  switch (spec.role) {
    case Role::dense: return spec.dtype == Dtype::F32 && numbers_from(0);
    case Role::table: return spec.dtype == Dtype::F32 && rank == 2 && leading == rows_of(spec.name) && numbers_from(1);
    case Role::side: return spec.dtype == Dtype::F32 && rank == 1 && starts_with_rows(leading);
    case Role::feature: return leading == kExamples && numbers_from(1);
    case Role::label:
      // A class per example; or a byte per output, where examples have several classes.
      if (spec.name == kTargets) return spec.dtype == Dtype::U8 && rank == 2 && leading == kExamples && numbers_from(1);
      return spec.dtype == Dtype::I64 && rank == 1 && leading == kExamples;
    case Role::noise: return spec.dtype == Dtype::F32 && leading == kExamples && numbers_from(1) && spec.padding == 0;
    case Role::example_weight: return spec.dtype == Dtype::F32 && rank == 1 && leading == kExamples;
  }
  return false;
}

// Whole numbers of examples that are no positions have a range, and their padding lies in it.
bool may_have_its_range(const ArraySpec& spec) {
  if (!spec.below) return true;
  const bool is_role = spec.role == Role::feature || spec.role == Role::label;
  return is_role && spec.dtype != Dtype::F32 && !spec.positions_in && spec.padding >= 0 &&
         spec.padding < static_cast<double>(*spec.below);
}

void check_noise(const ArraySpec& spec, const ArrayView& array) {
  const float* numbers = static_cast<const float*>(array.data);
  for (int64_t i = 0, count = element_count(array.shape); i < count; i++)
    if (!(numbers[i] >= 0 && numbers[i] < 1))  // written so that a NaN is wrong too
      throw BadFile(
          spec.name + " holds " + std::to_string(numbers[i]) +
          "; expected numbers from 0 to below 1: draw them as client/noise.h does");
}

bool can_hold(Dtype dtype, double value) {
  if (dtype == Dtype::F32) return std::fabs(value) <= FLT_MAX;
  return value == std::floor(value) && (dtype == Dtype::U8 ? value >= 0 && value <= 255 : std::fabs(value) <= 0x1p53);
}

}  // namespace

Dimensions ArraySpec::sizes(const Bounds& values) const {
  Dimensions numbers;
  for (const Size& size : shape) numbers.push_back(size.symbol.empty() ? size.number : values.at(size.symbol));
  return numbers;
}

std::string ArraySpec::describe() const {
  std::string text;
  for (const Size& size : shape)
    text += (text.empty() ? "" : ", ") + (size.symbol.empty() ? std::to_string(size.number) : size.symbol);
  return type_name(dtype) + " [" + text + "]";
}

StepSignature::StepSignature(std::vector<ArraySpec> inputs) : inputs_(std::move(inputs)) {
  std::set<std::string> names, tables;
  Role last = Role::dense;
  for (const ArraySpec& spec : inputs_) {
    if (!names.insert(spec.name).second)
      throw BadFile("two inputs are called " + spec.name + "; expected every name once");
    if (spec.role < last)
      throw BadFile(spec.name + " comes too late; expected dense, table, side, feature, label, noise, example_weight");
    last = spec.role;
    if (spec.role == Role::table) tables.insert(rows_of(spec.name));
  }
  if (of_role({Role::example_weight}).size() != 1)
    throw BadFile("expected exactly one input with the role example_weight");
  for (const ArraySpec& spec : inputs_) {
    bool known = !spec.positions_in || tables.count(rows_of(*spec.positions_in));
    for (const Size& size : spec.shape) known = known && (!starts_with_rows(size.symbol) || tables.count(size.symbol));
    if (!known) throw BadFile(spec.name + " speaks of a table that is no input: " + spec.describe());
    if (!may_have_its_range(spec))
      throw BadFile(
          spec.name + ": below is " + std::to_string(*spec.below) +
          "; only whole numbers of examples that are no positions have it, with a padding of their range");
    if (!has_the_shape_of_its_role(spec) || !can_hold(spec.dtype, spec.padding))
      throw BadFile(spec.name + " is " + spec.describe() + ", which no input of its role can be");
  }
}

std::vector<ArraySpec> StepSignature::of_role(std::initializer_list<Role> roles) const {
  std::vector<ArraySpec> specs;
  const auto wanted = [&](const ArraySpec& spec) { return std::count(roles.begin(), roles.end(), spec.role) > 0; };
  std::copy_if(inputs_.begin(), inputs_.end(), std::back_inserter(specs), wanted);
  return specs;
}

std::vector<ArraySpec> StepSignature::embedded() const {
  std::vector<ArraySpec> embedded = of_role({Role::feature});
  std::set<std::string> read;
  for (const ArraySpec& feature : embedded)
    if (feature.positions_in) read.insert(*feature.positions_in);
  for (const ArraySpec& table : tables())
    if (read.count(table.name)) embedded.push_back(table);
  return embedded;
}

StepSignature StepSignature::of_embedding() const {
  std::set<std::string> names;
  for (const ArraySpec& spec : embedded()) names.insert(spec.name);
  std::vector<ArraySpec> inputs;
  for (const ArraySpec& spec : inputs_)
    if (names.count(spec.name) || spec.role == Role::dense || spec.role == Role::example_weight) inputs.push_back(spec);
  return StepSignature(std::move(inputs));
}

StepSignature signature_from_document(const Json& document) {
  if (!document.is_array()) throw BadFile("signature is not a list of inputs");
  std::vector<ArraySpec> inputs;
  for (const Json& entry : document) inputs.push_back(spec_from_document(entry));
  return StepSignature(std::move(inputs));
}

Bounds symbol_values(const StepSignature& signature, const StepArrays& arrays) {
  Bounds values;
  for (const ArraySpec& spec : signature.inputs()) {
    const auto found = arrays.find(spec.name);
    if (found == arrays.end()) throw BadFile(spec.name + " is missing; the step takes " + spec.describe());
    const ArrayView& array = found->second;
    bool fits = array.dtype == spec.dtype && array.shape.size() == spec.shape.size();
    for (size_t i = 0; fits && i < spec.shape.size(); i++) {
      const Size& size = spec.shape[i];
      const int64_t expected =
          size.symbol.empty() ? size.number : values.emplace(size.symbol, array.shape[i]).first->second;
      fits = array.shape[i] == expected;
    }
    if (!fits) {
      std::string meaning;
      for (const auto& [symbol, value] : values)
        meaning += (meaning.empty() ? ", with " : ", ") + symbol + " = " + std::to_string(value);
      throw BadFile(spec.name + " is " + kind(array) + "; the step takes " + spec.describe() + meaning);
    }
  }
  if (arrays.size() == signature.inputs().size()) return values;
  for (const auto& [name, array] : arrays) {
    const auto is_it = [&, &wanted = name](const ArraySpec& spec) { return spec.name == wanted; };
    if (std::none_of(signature.inputs().begin(), signature.inputs().end(), is_it))
      throw BadFile(name + ": the step has no such input");
  }
  return values;
}

void check_range(const ArraySpec& spec, const ArrayView& array) {
  if (spec.role == Role::noise) check_noise(spec, array);
  if (!spec.below) return;
  for (int64_t i = 0, count = element_count(array.shape); i < count; i++) {
    const int64_t value = array.dtype == Dtype::U8 ? static_cast<const uint8_t*>(array.data)[i]
                                                   : static_cast<const int64_t*>(array.data)[i];
    if (value < 0 || value >= *spec.below)
      throw BadFile(
          spec.name + " holds " + std::to_string(value) + "; expected 0 to " + std::to_string(*spec.below - 1) +
          ": make the data with the vocabulary that the step was exported for");
  }
}

Bounds check_arrays(const StepSignature& signature, const StepArrays& arrays, const Bounds& bounds) {
  const Bounds values = symbol_values(signature, arrays);
  for (const auto& [symbol, value] : values) {
    const auto most = bounds.find(symbol);
    if (value >= 1 && (most == bounds.end() || value <= most->second)) continue;
    const bool examples = symbol == kExamples;
    const std::string room =
        examples ? "split the batch" : "export with room for " + std::to_string(value) + " or more";
    throw BadFile(
        std::to_string(value) + " " + (examples ? "examples" : "rows of " + symbol.substr(5)) +
        "; the step takes 1 to " + (most == bounds.end() ? "any" : std::to_string(most->second)) + ": " + room);
  }
  for (const ArraySpec& spec : signature.inputs()) {
    const ArrayView& array = arrays.at(spec.name);
    check_range(spec, array);
    if (!spec.positions_in) continue;
    const int64_t rows = values.at(rows_of(*spec.positions_in));
    for (int64_t i = 0, count = element_count(array.shape); i < count; i++) {
      const int64_t position = static_cast<const int64_t*>(array.data)[i];
      if (position < 0 || position >= rows)
        throw BadFile(
            spec.name + " holds " + std::to_string(position) + "; expected positions among the " +
            std::to_string(rows) + " rows of " + *spec.positions_in);
    }
  }
  return values;
}

NamedArray::NamedArray(ArraySpec its_spec, Dimensions its_shape)
    : spec(std::move(its_spec)),
      shape(std::move(its_shape)),
      entry_bytes(byte_size(spec.dtype) * element_count({shape.begin() + 1, shape.end()})),
      bytes_(shape[0] * entry_bytes) {
  pad_from(0);
}

void NamedArray::pad_from(int64_t first) {
  const size_t start = first * entry_bytes;
  if (spec.dtype == Dtype::U8 || spec.padding == 0) {
    std::fill(bytes_.begin() + start, bytes_.end(), static_cast<uint8_t>(spec.padding));
    return;
  }
  const float as_float = static_cast<float>(spec.padding);
  const int64_t as_integer = spec.dtype == Dtype::F32 ? 0 : static_cast<int64_t>(spec.padding);
  const size_t size = byte_size(spec.dtype);
  const void* value = spec.dtype == Dtype::F32 ? static_cast<const void*>(&as_float) : &as_integer;
  for (size_t at = start; at < bytes_.size(); at += size) std::memcpy(bytes_.data() + at, value, size);
}

}  // namespace fedss
