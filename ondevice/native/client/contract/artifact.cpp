#include "client/contract/artifact.h"

#include <set>

#include "client/contract/failure.h"
#include "client/contract/files/sha256.h"
#include "client/contract/files/strict_json.h"

namespace fedss {
namespace {

constexpr const char* kAgain = "; push the artifact again, or export it again";
constexpr int64_t kMaxElements = INT32_MAX;  // of one array of a step: the runtime's sizes are of 32 bits
constexpr int kVersion = 2;
const std::string kGolden = "golden.safetensors";

bool fits(const Dimensions& shape) {
  int64_t count = 1;
  for (const int64_t dimension : shape)
    if (dimension < 1 || __builtin_mul_overflow(count, dimension, &count) || count > kMaxElements) return false;
  return true;
}

void check_version(const Json& manifest, const std::string& path) {
  if (!manifest.is_object() || !manifest.contains("format") || manifest["format"] != "fedss-artifact")
    throw BadFile(path + " does not describe a fedss-artifact; make one with `fedss export`");
  if (!manifest.contains("version") || !is_count(manifest["version"]))
    throw BadFile(path + " is damaged: its format version is not a whole number; export it again");
  const int64_t version = manifest["version"];
  if (version < kVersion)
    throw BadFile(
        path + " has format version " + std::to_string(version) + "; this client reads version " +
        std::to_string(kVersion) + ": export it again");
  if (version > kVersion)
    throw BadFile(
        path + " has format version " + std::to_string(version) + "; this client reads version " +
        std::to_string(kVersion) + " and is older: push a new bundle");
}

// One that was exported before says nothing of it, and makes one embedding of an example.
Dimensions embedding_from(const Json& manifest) {
  const int64_t dim = count_at(manifest.at("spec"), "embedding_dim");
  if (!manifest.contains("embedding")) return {dim};
  Dimensions shape;
  if (!manifest["embedding"].is_array()) throw BadFile("embedding is not a list");
  for (const Json& size : manifest["embedding"]) {
    if (!is_count(size)) throw BadFile("embedding has a size that is no whole number");
    shape.push_back(size);
  }
  if (shape.empty() || shape.size() > 2 || shape.back() != dim)
    throw BadFile(
        "embedding is " + describe(shape) + "; expected " + describe({dim}) + ", or a number of places before it");
  return shape;
}

}  // namespace

Artifact::Artifact(const std::string& directory) : directory_(directory) {
  const std::string path = directory + "/manifest.json";
  const MappedFile file(path);
  const Json manifest = parse_json({reinterpret_cast<const char*>(file.bytes().data), file.bytes().size}, path);
  check_version(manifest, path);
  try {
    read_manifest(manifest);
  } catch (const Json::exception& error) {
    throw BadFile(path + " is damaged (" + error.what() + "); export it again");
  } catch (const BadFile& error) {
    throw BadFile(path + " is damaged: " + error.what() + "; export it again");
  }
}

void Artifact::read_manifest(const Json& manifest) {
  signature = signature_from_document(manifest.at("signature"));
  embedding = embedding_from(manifest);
  const Json& most = manifest.at("bounds");
  if (!most.is_object()) throw BadFile("bounds are not an object");
  for (const auto& [symbol, bound] : most.items()) bounds[symbol] = count_at(most, symbol.c_str());
  std::set<std::string> symbols;
  for (const ArraySpec& spec : signature.inputs()) {
    for (const Size& size : spec.shape) {
      if (size.symbol.empty()) continue;
      symbols.insert(size.symbol);
      if (!bounds.count(size.symbol)) throw BadFile("bounds have no " + size.symbol);
    }
    if (!fits(spec.sizes(bounds)))
      throw BadFile(
          spec.name + " " + describe(spec.sizes(bounds)) + " has a size that is 0, or too large for this client");
  }
  if (!fits(embedded()))
    throw BadFile("embedding " + describe(embedded()) + " has a size that is 0, or too large for this client");
  for (const auto& [symbol, bound] : bounds)
    if (!symbols.count(symbol)) throw BadFile("bounds have " + symbol + ", of which no input speaks");
  if (manifest.contains("lengths") && !manifest["lengths"].is_null())
    lengths = lengths_from_document(manifest["lengths"], signature);
  for (const auto& [name, entry] : manifest.at("files").items())
    files_[name] = {count_at(entry, "size"), entry.at("sha256")};
}

Artifact Artifact::of_length(int64_t size) const {
  Artifact one = *this;
  one.lengths = {};
  if (lengths.sizes.empty() || size == lengths.sizes.back()) return one;
  one.signature = lengths.shortened(signature, size);
  if (embedding.size() == 2) one.embedding.front() = size;  // a place has an embedding, and there are fewer
  one.directory_ += "/" + folder_of(size);
  one.files_.clear();
  const std::string prefix = folder_of(size) + "/";
  for (const auto& [name, entry] : files_)
    if (name.rfind(prefix, 0) == 0) one.files_[name.substr(prefix.size())] = entry;
  return one;
}

std::vector<std::string> Artifact::golden_files() const {
  std::vector<std::string> names{kGolden};
  for (const int64_t size : lengths.sizes)
    if (size != lengths.sizes.back()) names.push_back(folder_of(size) + "/" + kGolden);
  return names;
}

Dimensions Artifact::embedded() const {
  Dimensions shape{micro_batch()};
  shape.insert(shape.end(), embedding.begin(), embedding.end());
  return shape;
}

std::string Artifact::path(const std::string& name) const {
  const auto entry = files_.find(name);
  if (entry == files_.end())
    throw BadFile(directory_ + " has no " + name + "; export it for the runtime of this client");
  const std::string path = directory_ + "/" + name;
  const MappedFile file(path);
  const int64_t size = static_cast<int64_t>(file.bytes().size);
  if (size != entry->second.size)
    throw BadFile(
        path + " has " + std::to_string(size) + " bytes; manifest.json says " + std::to_string(entry->second.size) +
        kAgain);
  const std::string digest = sha256(file.bytes());
  if (digest != entry->second.sha256)
    throw BadFile(
        path + " was changed: its SHA-256 is " + digest + "; manifest.json says " + entry->second.sha256 + kAgain);
  return path;
}

Arrays Artifact::weights(const std::string& path, const Bounds& values) const {
  const MappedFile file(path);
  const TensorFile found_there = read_tensors(file.bytes());
  Arrays arrays;
  for (const ArraySpec& spec : signature.trained()) {
    const Dimensions shape = spec.sizes(values);
    arrays.emplace_back(element_count(shape));
    if (spec.role == Role::table) continue;
    const auto found = found_there.tensors.find(spec.name);
    if (found == found_there.tensors.end() || found->second.dtype != Dtype::F32 || found->second.shape != shape)
      throw BadFile(path + " has no " + spec.name + " F32 " + describe(shape) + kAgain);
    found->second.floats(arrays.back().data());
  }
  return arrays;
}

}  // namespace fedss
