// JSON exactly as Python's reader of the same files takes it: no key twice, nothing after the value; no file of ours is
// nested deeper than 16.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fedss {

using Json = nlohmann::ordered_json;

// Raises BadFile, which starts with `what`.
Json parse_json(std::string_view text, const std::string& what);

// The member `name` of an object, a count.  BadFile where it is something else; Json::exception where there is none.
int64_t count_at(const Json& object, const char* name);

// Whether `value` is a whole number of 0 or more that an int64 holds.
bool is_count(const Json& value);

}  // namespace fedss
