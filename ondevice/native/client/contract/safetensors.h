// The safetensors container, read without trusting it.
// The C++ twin of ondevice/contract/safetensors_file.py, limit for limit.
//
// Tensors are views of the file's bytes.  Data may lie at any offset, so numbers are copied out and never pointed at.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "client/contract/files/whole_file.h"

namespace fedss {

enum class Dtype { F32, F16, BF16, I64, I32, I8, U8 };

using Dimensions = std::vector<int64_t>;
int64_t element_count(const Dimensions&);
size_t byte_size(Dtype);  // of one element
std::string describe(const Dimensions&);

struct TensorView {
  Dtype dtype;
  Dimensions shape;
  Bytes bytes;

  std::string describe() const;
  std::vector<int64_t> integers() const;    // of an I64
  void floats(float* out) const;            // of an F32, F16 or BF16
  void subtract_from(float* values) const;  // values -= floats
};

struct TensorFile {
  std::map<std::string, TensorView> tensors;
  std::map<std::string, std::string> metadata;
};

// Raises BadFile for anything out of order.
TensorFile read_tensors(Bytes);

struct OutTensor {
  std::string name;
  Dtype dtype;
  Dimensions shape;
  const void* data;
};

// The same bytes as Python writes for the same tensors and metadata, both in the given order.
using Metadata = std::vector<std::pair<std::string, std::string>>;
void write_tensors(const std::string& path, const std::vector<OutTensor>&, const Metadata&);
std::string tensors_to_bytes(const std::vector<OutTensor>&, const Metadata&);

}  // namespace fedss
