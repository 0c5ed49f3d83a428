#include "device_files.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "failure.h"

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
