#include "client/contract/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "client/contract/failure.h"
#include "client/contract/files/small_floats.h"
#include "client/contract/files/strict_json.h"

namespace fedss {
namespace {

constexpr uint64_t kMaxHeaderBytes = 1 << 20;
constexpr size_t kMaxTensors = 10000, kMaxDimensions = 8;

struct DtypeName {
  Dtype dtype;
  const char* name;
  int64_t size;
};
constexpr std::array<DtypeName, 7> kDtypes{
    {{Dtype::F32, "F32", 4},
     {Dtype::F16, "F16", 2},
     {Dtype::BF16, "BF16", 2},
     {Dtype::I64, "I64", 8},
     {Dtype::I32, "I32", 4},
     {Dtype::I8, "I8", 1},
     {Dtype::U8, "U8", 1}}};

const DtypeName& named(Dtype dtype) {
  return *std::find_if(kDtypes.begin(), kDtypes.end(), [&](const DtypeName& entry) { return entry.dtype == dtype; });
}

struct Entry {
  std::string name;
  const DtypeName* dtype;
  Dimensions shape;
  int64_t start, end;
};

Dimensions counts(const std::string& name, const char* what, const Json& list) {
  if (!list.is_array() || list.size() > kMaxDimensions || !std::all_of(list.begin(), list.end(), is_count))
    throw BadFile(
        name + ": " + what + " must be at most " + std::to_string(kMaxDimensions) + " whole numbers, 0 or more");
  return list.get<Dimensions>();
}

Entry entry_of(const std::string& name, const Json& value) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets"))
    throw BadFile(name + ": expected exactly dtype, shape and data_offsets");
  const Dimensions offsets = counts(name, "data_offsets", value["data_offsets"]);
  if (offsets.size() != 2) throw BadFile(name + ": " + std::to_string(offsets.size()) + " data_offsets; expected two");
  const Json& dtype = value["dtype"];
  const auto known =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const DtypeName& entry) { return dtype == entry.name; });
  if (known == kDtypes.end()) throw BadFile(name + ": unknown dtype; expected one of F32, F16, BF16, I64, I32, I8, U8");
  return {name, &*known, counts(name, "shape", value["shape"]), offsets[0], offsets[1]};
}

// Bytes of the tensor, or -1 where they do not fit into an int64: no file has that many.
int64_t byte_count(const Entry& entry) {
  if (std::count(entry.shape.begin(), entry.shape.end(), 0)) return 0;
  int64_t size = entry.dtype->size;
  for (const int64_t dimension : entry.shape)
    if (__builtin_mul_overflow(size, dimension, &size)) return -1;
  return size;
}

template <class Number>
Number number_at(Bytes bytes, int64_t index) {
  Number number;
  std::memcpy(&number, bytes.data + index * sizeof(Number), sizeof(Number));
  return number;
}

float float_at(const TensorView& tensor, int64_t index) {
  if (tensor.dtype == Dtype::F32) return number_at<float>(tensor.bytes, index);
  const uint16_t bits = number_at<uint16_t>(tensor.bytes, index);
  return tensor.dtype == Dtype::F16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

template <class Write>
void write_chunks(const std::vector<OutTensor>& tensors, const Metadata& metadata, const Write& write) {
  Json header;
  for (const auto& [key, text] : metadata) header["__metadata__"][key] = text;
  int64_t offset = 0;
  for (const OutTensor& tensor : tensors) {
    const int64_t end = offset + element_count(tensor.shape) * named(tensor.dtype).size;
    header[tensor.name]["dtype"] = named(tensor.dtype).name;
    header[tensor.name]["shape"] = tensor.shape;
    header[tensor.name]["data_offsets"] = {offset, end};
    offset = end;
  }
  std::string text = header.dump(-1, ' ', /*ensure_ascii=*/true);
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t header_size = text.size();
  write(&header_size, sizeof header_size);
  write(text.data(), text.size());
  for (const OutTensor& tensor : tensors) write(tensor.data, element_count(tensor.shape) * named(tensor.dtype).size);
}

}  // namespace

int64_t element_count(const Dimensions& shape) {
  int64_t count = 1;
  for (const int64_t dimension : shape) count *= dimension;
  return count;
}

size_t byte_size(Dtype dtype) { return named(dtype).size; }

std::string describe(const Dimensions& shape) {
  std::string text = "[";
  for (const int64_t dimension : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(dimension);
  return text + "]";
}

std::string TensorView::describe() const { return std::string(named(dtype).name) + " " + fedss::describe(shape); }

std::vector<int64_t> TensorView::integers() const {
  std::vector<int64_t> values(element_count(shape));
  if (!values.empty()) std::memcpy(values.data(), bytes.data, bytes.size);
  return values;
}

void TensorView::floats(float* out) const {
  for (int64_t i = 0, count = element_count(shape); i < count; i++) out[i] = float_at(*this, i);
}

void TensorView::subtract_from(float* values) const {
  for (int64_t i = 0, count = element_count(shape); i < count; i++) values[i] -= float_at(*this, i);
}

TensorFile read_tensors(Bytes file) {
  if (file.size < 8)
    throw BadFile(std::to_string(file.size) + " bytes; expected at least the 8 of the header's length");
  const uint64_t header_size = number_at<uint64_t>(file, 0);
  if (header_size > kMaxHeaderBytes || header_size > file.size - 8)
    throw BadFile(
        "the header claims " + std::to_string(header_size) + " bytes; " + std::to_string(file.size - 8) +
        " are there and " + std::to_string(kMaxHeaderBytes) + " are allowed");
  const Json header = parse_json({reinterpret_cast<const char*>(file.data) + 8, header_size}, "the header");
  if (!header.is_object()) throw BadFile("the header is not a JSON object");
  TensorFile result;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      entries.push_back(entry_of(name, value));
      continue;
    }
    const auto is_text = [](const Json& text) { return text.is_string(); };
    if (!value.is_object() || !std::all_of(value.begin(), value.end(), is_text))
      throw BadFile("__metadata__ is not a map of strings");
    for (const auto& [key, text] : value.items()) result.metadata[key] = text.get<std::string>();
  }
  if (entries.size() > kMaxTensors)
    throw BadFile(std::to_string(entries.size()) + " tensors; at most " + std::to_string(kMaxTensors) + " are allowed");
  const auto offsets = [](const Entry& entry) { return std::pair(entry.start, entry.end); };
  std::stable_sort(
      entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) { return offsets(a) < offsets(b); });
  const Bytes body{file.data + 8 + header_size, file.size - 8 - header_size};
  int64_t expected_start = 0;
  for (const Entry& entry : entries) {
    if (entry.start != expected_start || entry.end - entry.start != byte_count(entry) ||
        static_cast<uint64_t>(entry.end) > body.size)
      throw BadFile(
          entry.name + ": offsets " + std::to_string(entry.start) + " to " + std::to_string(entry.end) + " for " +
          entry.dtype->name + " " + describe(entry.shape) + "; expected to start at " + std::to_string(expected_start) +
          ", to hold exactly its bytes and to end within the " + std::to_string(body.size) + " bytes of data");
    expected_start = entry.end;
    const Bytes bytes{body.data + entry.start, static_cast<size_t>(entry.end - entry.start)};
    result.tensors[entry.name] = {entry.dtype->dtype, entry.shape, bytes};
  }
  if (static_cast<uint64_t>(expected_start) != body.size)
    throw BadFile(std::to_string(body.size - expected_start) + " bytes of data belong to no tensor");
  return result;
}

void write_tensors(const std::string& path, const std::vector<OutTensor>& tensors, const Metadata& metadata) {
  WholeFile file(path);
  write_chunks(tensors, metadata, [&](const void* data, size_t size) { file.write(data, size); });
  file.publish();
}

std::string tensors_to_bytes(const std::vector<OutTensor>& tensors, const Metadata& metadata) {
  std::string bytes;
  const auto append = [&](const void* data, size_t size) { bytes.append(static_cast<const char*>(data), size); };
  write_chunks(tensors, metadata, append);
  return bytes;
}

}  // namespace fedss
