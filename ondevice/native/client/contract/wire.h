// The messages of a round, format version 2: the C++ twin of ondevice/contract/wire.py, which describes the format.  A
// device reads plans and slices and writes requests and updates, so that is all there is here.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "client/contract/messages/envelope.h"
#include "client/contract/safetensors.h"
#include "client/contract/vocabulary.h"

namespace fedss {

struct Parameter {
  std::string name;
  Dimensions shape;
};

// What the reader of a slice knows already.
struct Expected {
  std::vector<Parameter> dense;
  std::map<std::string, int64_t> table_sizes;               // table -> rows that it has on the server
  std::vector<std::pair<std::string, int64_t>> table_dims;  // table -> entries of one row
  std::vector<std::pair<std::string, std::string>> sides;   // side array -> the table whose rows it is about
};

// One float32 array for everything that is trained: dense parameters, then tables [rows, d], in the signature's order.
using Arrays = std::vector<std::vector<float>>;

// A slice, checked; its weights are views of the message, in the order of Arrays.
struct SliceViews {
  std::vector<TensorView> weights;
  Sides sides;
};

// One tensor of an update, which transforms may narrow: `bits`, or `whole_numbers` and their `scales`, take the place
// of `values` then.  The forms are those of ondevice/contract/messages/packed_weights.py.
struct Weight {
  std::string name;  // in the message
  Dtype dtype;
  Dimensions shape;
  std::vector<float> values;
  std::vector<uint16_t> bits{};
  std::vector<int8_t> whole_numbers{};
  std::vector<float> scales{};

  const void* data() const;  // of `dtype`
};
using Weights = std::vector<Weight>;

struct Update {
  Weights weights;  // client minus server: tables, then dense parameters
  int64_t num_examples;
  float mean_loss;
};

// The plan, and the client and round that it is for.  Raises BadFile, as all readers here.
std::pair<Envelope, RoundPlan> read_plan(Bytes message);

// Its kind is `rows` where the client has φ of this round already, and the slice shall come without.
std::string request_to_bytes(Envelope, const RowIds&, const char* kind = "request");

// Raises BadFile for anything but the slice that answers the request for `ids`.
SliceViews read_slice(Bytes message, Envelope, const RowIds& ids, const Expected&);

// The differences by their names in the message: what transforms work on.
Weights weights_of(Arrays differences, const RowIds& ids, const Expected&);

void write_update(const std::string& path, Envelope, const RowIds& ids, const Expected&, const Update&);

}  // namespace fedss
