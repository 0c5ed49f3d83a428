#include "client/contract/files/strict_json.h"

#include <set>
#include <string>
#include <vector>

#include "client/contract/failure.h"

namespace fedss {
namespace {

constexpr int kMaxDepth = 16;

}  // namespace

Json parse_json(std::string_view text, const std::string& what) {
  // The parser takes a zero byte for the end of its input and skips a byte-order mark; in JSON neither may be there.
  if (text.find('\0') != text.npos) throw BadFile(what + ": not JSON: it holds a zero byte");
  if (text.substr(0, 3) == "\xEF\xBB\xBF") throw BadFile(what + ": not JSON: it starts with a byte-order mark");
  std::vector<std::set<std::string>> open_objects;
  const auto watch = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    // A value is copied and freed recursively, and a header's megabyte has room for a depth that no stack has.
    if (depth > kMaxDepth) throw BadFile(what + ": nested deeper than " + std::to_string(kMaxDepth));
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key && !open_objects.back().insert(parsed.get<std::string>()).second)
      throw BadFile(what + ": the same key twice: " + parsed.get<std::string>());
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& error) {
    throw BadFile(what + ": not JSON: " + error.what());
  }
}

int64_t count_at(const Json& object, const char* name) {
  const Json& value = object.at(name);
  if (!is_count(value)) throw BadFile(std::string(name) + " is not a whole number of 0 or more");
  return value.get<int64_t>();
}

bool is_count(const Json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
  return value.is_number_integer() && value.get<int64_t>() >= 0;
}

}  // namespace fedss
