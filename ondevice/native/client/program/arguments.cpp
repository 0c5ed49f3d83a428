#include "client/program/arguments.h"

#include <charconv>

#include "client/contract/failure.h"

namespace fedss {

Arguments::Arguments(int count, char** words) {
  for (int i = 0; i < count; i += 2) {
    const std::string name = words[i];
    if (name.rfind("--", 0) || i + 1 == count) throw UsageError("'" + name + "': expected options as --name value");
    if (!values_.emplace(name, words[i + 1]).second) throw UsageError(name + " is given twice");
  }
}

std::optional<std::string> Arguments::take(const std::string& name) {
  const auto node = values_.extract(name);
  return node ? std::optional(node.mapped()) : std::nullopt;
}

std::string Arguments::text(const std::string& name, std::optional<std::string> otherwise) {
  const auto value = take(name);
  if (!value && otherwise) return *otherwise;
  if (!value) throw UsageError(name + " is missing");
  return *value;
}

int64_t Arguments::number(const std::string& name, int64_t least, std::optional<int64_t> otherwise) {
  const auto value = take(name);
  if (!value && otherwise) return *otherwise;
  if (!value) throw UsageError(name + " is missing");
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
  if (error != std::errc() || end != value->data() + value->size() || number < least || number > INT32_MAX)
    throw UsageError(name + " is '" + *value + "'; expected a whole number of " + std::to_string(least) + " or more");
  return number;
}

void Arguments::expect_no_more() const {
  if (!values_.empty()) throw UsageError("unknown option " + values_.begin()->first);
}

}  // namespace fedss
