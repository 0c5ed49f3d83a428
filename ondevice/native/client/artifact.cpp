#include "artifact.h"

#include "failure.h"
#include "sha256.h"
#include "strict_json.h"

namespace fedss {
namespace {

constexpr const char* kAgain = "; push the artifact again, or export it again";
constexpr int64_t kMaxElements = INT32_MAX;  // of one array of a step: the runtime's sizes are of 32 bits

bool fits(const Dimensions& shape) {
  int64_t count = 1;
  for (const int64_t dimension : shape)
    if (dimension < 1 || __builtin_mul_overflow(count, dimension, &count) || count > kMaxElements) return false;
  return true;
}

}  // namespace

Artifact::Artifact(const std::string& directory) : directory_(directory) {
  const std::string path = directory + "/manifest.json";
  const MappedFile file(path);
  const Json manifest = parse_json({reinterpret_cast<const char*>(file.bytes().data), file.bytes().size}, path);
  if (!manifest.is_object() || !manifest.contains("format") || manifest["format"] != "fedss-artifact")
    throw BadFile(path + " does not describe a fedss-artifact; make one with `fedss export`");
  if (!manifest.contains("version") || manifest["version"] != 1)
    throw BadFile(path + " has another format version than 1, which this client reads: push a new bundle, or export again");
  try {
    const Json& spec = manifest.at("spec");
    micro_batch = count_at(manifest, "micro_batch");
    max_width = count_at(manifest, "max_width");
    image_shape = counts_at(spec, "image_shape");
    column_dim = count_at(spec, "embedding_dim");
    if (column_dim <= kMaxElements) column_dim += spec.at("logits") == "dot";  // a bias is a column's last entry
    for (const Json& parameter : manifest.at("parameters"))
      if (parameter.at("trainable").get<bool>())
        trainable.push_back({parameter.at("name"), counts_at(parameter, "shape")});
    for (const auto& [name, entry] : manifest.at("files").items())
      files_[name] = {count_at(entry, "size"), entry.at("sha256")};
  } catch (const Json::exception& error) {
    throw BadFile(path + " is damaged (" + error.what() + "); export it again");
  } catch (const BadFile& error) {
    throw BadFile(path + " is damaged: " + error.what() + "; export it again");
  }
  bool sensible = image_shape.size() == 3 && fits({max_width, column_dim});
  sensible = sensible && fits({micro_batch, image_shape[0], image_shape[1], image_shape[2]});
  for (const Parameter& parameter : trainable) sensible = sensible && fits(parameter.shape);
  if (!sensible)
    throw BadFile(path + " is damaged: a size in it is 0, or too large for this client; export it again");
}

std::string Artifact::path(const std::string& name) const {
  const auto entry = files_.find(name);
  if (entry == files_.end()) throw BadFile(directory_ + " has no " + name + "; export it for the runtime of this client");
  const std::string path = directory_ + "/" + name;
  const MappedFile file(path);
  const int64_t size = static_cast<int64_t>(file.bytes().size);
  if (size != entry->second.size)
    throw BadFile(path + " has " + std::to_string(size) + " bytes; manifest.json says " + std::to_string(entry->second.size) +
                  kAgain);
  const std::string digest = sha256(file.bytes());
  if (digest != entry->second.sha256)
    throw BadFile(path + " was changed: its SHA-256 is " + digest + "; manifest.json says " + entry->second.sha256 + kAgain);
  return path;
}

Arrays Artifact::weights(const std::string& path, int64_t width) const {
  const MappedFile file(path);
  const TensorFile found_there = read_tensors(file.bytes());
  Arrays arrays;
  for (const Parameter& parameter : trainable) {
    const auto found = found_there.tensors.find(parameter.name);
    if (found == found_there.tensors.end() || found->second.dtype != Dtype::F32 || found->second.shape != parameter.shape)
      throw BadFile(path + " has no " + parameter.name + " F32 " + describe(parameter.shape) + kAgain);
    arrays.emplace_back(element_count(parameter.shape));
    found->second.floats(arrays.back().data());
  }
  arrays.emplace_back(width * column_dim);
  return arrays;
}

}  // namespace fedss
