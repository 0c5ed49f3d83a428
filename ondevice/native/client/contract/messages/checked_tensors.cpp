#include "client/contract/messages/checked_tensors.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "client/contract/failure.h"

namespace fedss {

void expect_names(const Tensors& tensors, const std::set<std::string>& names) {
  for (const std::string& name : names)
    if (!tensors.count(name)) throw BadFile("tensor missing: " + name);
  for (const auto& [name, tensor] : tensors)
    if (!names.count(name)) throw BadFile("tensor unknown: " + name);
}

std::vector<int64_t> row_ids(const Tensors& tensors, const std::string& table, int64_t size) {
  const TensorView& tensor = tensors.at("rows." + table);
  if (tensor.dtype != Dtype::I64 || tensor.shape.size() != 1)
    throw BadFile("rows." + table + " is " + tensor.describe() + "; expected I64 of one dimension");
  const std::vector<int64_t> ids = tensor.integers();
  if (std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) != ids.end())
    throw BadFile(table + ": row ids are not sorted and unique");
  if (!ids.empty() && (ids.front() < 0 || ids.back() >= size))
    throw BadFile(
        "the rows of " + table + " reach from " + std::to_string(ids.front()) + " to " + std::to_string(ids.back()) +
        "; expected ids from 0 to " + std::to_string(size - 1));
  return ids;
}

TensorView floats(const Tensors& tensors, const std::string& name, const Dimensions& shape) {
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

}  // namespace fedss
