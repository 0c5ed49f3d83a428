// The messages of a round, format version 1: the C++ twin of ondevice/contract/wire.py, which describes the format.  A device writes
// requests and updates and reads slices, so that is all there is here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "safetensors.h"

namespace fedss {

enum class Precision { fp32, fp16, bf16 };

struct Envelope {
  int64_t round_index, client_id;
};

struct Parameter {
  std::string name;
  Dimensions shape;
};

// What the reader of a model knows already.
struct Expected {
  int64_t num_classes, column_dim;
  std::vector<Parameter> extractor;  // the tensors that learn, in contract order
};

// One float32 array for every tensor that learns, in contract order; the columns [m, column_dim] come last.
using Arrays = std::vector<std::vector<float>>;

// A slice as it lies in the message, checked; views, in the order of Arrays.
using SliceViews = std::vector<TensorView>;

struct Update {
  Arrays deltas;  // client minus server
  int64_t num_examples;
  float mean_loss;
};

void write_request(const std::string& path, Envelope, const std::vector<int64_t>& class_ids);

// Raises BadFile for anything but the slice that answers the request for `class_ids`.
SliceViews read_slice(Bytes message, Envelope, const std::vector<int64_t>& class_ids, const Expected&);

void write_update(
    const std::string& path, Envelope, const std::vector<int64_t>& class_ids, const Expected&, const Update&, Precision);

}  // namespace fedss
