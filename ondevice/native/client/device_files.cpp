#include "client/device_files.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "client/contract/failure.h"

namespace fedss {

ExampleSet::ExampleSet(const std::string& path) : file_(path) {
  TensorFile file;
  try {
    file = read_tensors(file_.bytes());
  } catch (const BadFile& error) {
    throw BadFile(path + ": " + error.what());
  }
  const auto found = file.tensors.find("labels");
  if (found == file.tensors.end())
    throw BadFile(path + ": expected labels, and a tensor feature/NAME for each feature");
  const TensorView& labels = found->second;
  if (labels.dtype != Dtype::I64 || labels.shape.size() != 1)
    throw BadFile(path + ": labels are " + labels.describe() + "; expected I64 [N]");
  labels_ = labels.integers();
  if (std::any_of(labels_.begin(), labels_.end(), [](int64_t label) { return label < 0; }))
    throw BadFile(path + ": a label is negative; labels start at 0");
  const std::string prefix = "feature/";
  for (const auto& [name, tensor] : file.tensors) {
    if (name == "labels") continue;
    if (name.rfind(prefix, 0)) throw BadFile(path + ": unknown tensor " + name + "; expected labels and feature/NAME");
    const bool known = tensor.dtype == Dtype::U8 || tensor.dtype == Dtype::I64 || tensor.dtype == Dtype::F32;
    if (!known || tensor.shape.empty() || tensor.shape[0] != labels.shape[0])
      throw BadFile(
          path + ": " + name + " is " + tensor.describe() + "; expected U8, I64 or F32 [" +
          std::to_string(labels_.size()) + ", ...], an entry per label");
    features_[name.substr(prefix.size())] = tensor;
  }
}

std::vector<int64_t> ExampleSet::numbers(const std::string& name, const std::vector<int64_t>& positions) const {
  const auto found = features_.find(name);
  if (found == features_.end() || found->second.dtype != Dtype::I64)
    throw BadFile("the client's examples have no feature '" + name + "' of whole numbers, which its sampler reads");
  const std::vector<int64_t> all = found->second.integers();
  const size_t size = labels_.empty() ? 0 : all.size() / labels_.size();  // of one example
  std::vector<int64_t> values;
  for (const int64_t position : positions) {
    const auto first = all.begin() + static_cast<int64_t>(position * size);
    values.insert(values.end(), first, first + static_cast<int64_t>(size));
  }
  return values;
}

uint64_t read_seed(const std::string& path) {
  const MappedFile file(path);
  std::string_view text(reinterpret_cast<const char*>(file.bytes().data), file.bytes().size);
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  // The text is never quoted: it is secret.
  if (error != std::errc() || end != text.data() + text.size())
    throw BadFile(path + ": expected one whole number below 2^64, the client's private seed");
  return seed;
}

}  // namespace fedss
