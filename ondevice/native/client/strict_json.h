// JSON exactly as Python's reader of the same files takes it: no key twice, nothing after the value.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace fedss {

using Json = nlohmann::ordered_json;

// Raises BadFile, which starts with `what`.
Json parse_json(std::string_view text, const std::string& what);

// Whether `value` is a whole number of 0 or more that an int64 holds.
bool is_count(const Json& value);

}  // namespace fedss
