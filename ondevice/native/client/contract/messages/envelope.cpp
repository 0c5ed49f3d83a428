#include "client/contract/messages/envelope.h"

#include <algorithm>

#include "client/contract/failure.h"

namespace fedss {
namespace {

constexpr const char* kVersion = "2";
constexpr size_t kMaxMessageBytes = 1 << 30;
constexpr const char* kOlder = ": push a new bundle, or update the server";

}  // namespace

Metadata metadata_of(const char* kind, Envelope envelope) {
  return {
      {"kind", kind},
      {"version", kVersion},
      {"round", std::to_string(envelope.round_index)},
      {"client", std::to_string(envelope.client_id)}};
}

TensorFile opened(Bytes message, const std::string& kind, const std::set<std::string>& more) {
  if (message.size > kMaxMessageBytes)
    throw BadFile(
        "the message has " + std::to_string(message.size) + " bytes; at most " + std::to_string(kMaxMessageBytes) +
        " are allowed");
  TensorFile file = read_tensors(message);
  const auto version = file.metadata.find("version");
  if (version != file.metadata.end() && version->second != kVersion)
    throw BadFile(
        "the message has format version '" + version->second + "'; this client reads '" + kVersion + "'" + kOlder);
  std::set<std::string> known{"kind", "version", "round", "client"}, given;
  known.insert(more.begin(), more.end());
  std::string keys;
  for (const auto& [key, text] : file.metadata) {
    given.insert(key);
    keys += (keys.empty() ? "" : ", ") + key;
  }
  if (file.metadata.count("kind") && file.metadata["kind"] != kind)
    throw BadFile("the message is a '" + file.metadata["kind"] + "'; expected a '" + kind + "'");
  if (given != known)
    throw BadFile(
        "metadata has " + (keys.empty() ? "nothing" : keys) + "; expected " + std::to_string(known.size()) +
        " entries: client, kind, round, version" + (more.empty() ? "" : ", " + *more.begin()));
  return file;
}

TensorFile decoded(Bytes message, const char* kind, Envelope envelope) {
  TensorFile file = opened(message, kind, {});
  for (const auto& [key, value] : metadata_of(kind, envelope))
    if (file.metadata[key] != value)
      throw BadFile("the message is for " + key + " '" + file.metadata[key] + "'; expected '" + value + "'");
  return file;
}

int64_t count_of(const std::string& name, const std::string& text) {
  const bool digits = std::all_of(text.begin(), text.end(), [](char letter) { return letter >= '0' && letter <= '9'; });
  if (text.empty() || text.size() >= 19 || !digits)
    throw BadFile(name + " is '" + text + "'; expected a whole number, 0 or more");
  return std::stoll(text);
}

}  // namespace fedss
