// What a message holds, checked before it is believed: the C++ twin of ondevice/contract/messages/checked_tensors.py.
// All raise BadFile.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "client/contract/safetensors.h"

namespace fedss {

using Tensors = std::map<std::string, TensorView>;

void expect_names(const Tensors&, const std::set<std::string>& names);

// `rows.TABLE`: sorted and unique ids from 0 to below `size`, perhaps none.
std::vector<int64_t> row_ids(const Tensors&, const std::string& table, int64_t size);

// Of this shape, and finite.
TensorView floats(const Tensors&, const std::string& name, const Dimensions& shape);

}  // namespace fedss
