#include "artifact.h"

#include "failure.h"
#include "sha256.h"
#include "strict_json.h"

namespace fedss {
namespace {

constexpr const char* kAgain = "; push the artifact again, or export it again";

}  // namespace

Artifact::Artifact(const std::string& directory) : directory_(directory) {
  const std::string path = directory + "/manifest.json";
  const MappedFile file(path);
  const Json manifest = parse_json({reinterpret_cast<const char*>(file.bytes().data), file.bytes().size}, path);
  if (!manifest.is_object() || manifest.value("format", "") != "fedss-artifact")
    throw BadFile(path + " does not describe a fedss-artifact; make one with `fedss export`");
  if (!manifest.contains("version") || manifest["version"] != 1)
    throw BadFile(path + " has another format version than 1, which this client reads: push a new bundle, or export again");
  try {
    const Json& spec = manifest.at("spec");
    micro_batch = manifest.at("micro_batch");
    max_width = manifest.at("max_width");
    image_shape = spec.at("image_shape").get<Dimensions>();
    column_dim = spec.at("embedding_dim").get<int64_t>() + (spec.at("logits") == "dot");  // a bias is a column's last entry
    for (const Json& parameter : manifest.at("parameters"))
      if (parameter.at("trainable").get<bool>())
        trainable.push_back({parameter.at("name"), parameter.at("shape").get<Dimensions>()});
    for (const auto& [name, entry] : manifest.at("files").items()) files_[name] = {entry.at("size"), entry.at("sha256")};
  } catch (const Json::exception& error) {
    throw BadFile(path + " is damaged (" + error.what() + "); export it again");
  }
  bool sensible = micro_batch > 0 && max_width > 0 && column_dim > 0 && image_shape.size() == 3;
  for (const int64_t dimension : image_shape) sensible = sensible && dimension > 0;
  for (const Parameter& parameter : trainable)
    for (const int64_t dimension : parameter.shape) sensible = sensible && dimension > 0;
  if (!sensible) throw BadFile(path + " is damaged: a size in it is not positive; export it again");
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
