#include "client/contract/messages/exact_fields.h"

#include <cmath>

#include "client/contract/failure.h"

namespace fedss {

Fields::Fields(const Json& object, const std::string& where) : object_(object), where_(where) {
  if (!object.is_object()) fail("it is not a JSON object");
}

const Json* Fields::optional(const char* name) {
  asked_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() ? nullptr : &*found;
}

const Json& Fields::field(const char* name) {
  const Json* value = optional(name);
  if (!value) fail(std::string(name) + " is missing");
  return *value;
}

int64_t Fields::count(const char* name, int64_t least) {
  const Json& value = field(name);
  if (!is_count(value) || value.get<int64_t>() < least)
    fail(name, value, "a whole number of " + std::to_string(least) + " or more");
  return value.get<int64_t>();
}

double Fields::number(const char* name) {
  const Json& value = field(name);
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0)
    fail(name, value, "a finite number, 0 or more");
  return value.get<double>();
}

bool Fields::flag(const char* name, bool otherwise) {
  const Json* value = optional(name);
  if (!value) return otherwise;
  if (!value->is_boolean()) fail(name, *value, "true or false");
  return value->get<bool>();
}

std::string Fields::word(const char* name, const char* otherwise) {
  const Json* value = optional(name);
  if (!value) return otherwise;
  if (!value->is_string()) fail(name, *value, "a word");
  return value->get<std::string>();
}

void Fields::expect_no_more() const {
  for (const auto& [name, value] : object_.items())
    if (!asked_.count(name)) fail("unknown field " + name + "; this client is older than the plan: push a new bundle");
}

void Fields::fail(const std::string& why) const { throw BadFile(where_ + ": " + why); }

void Fields::fail(const char* name, const Json& value, const std::string& expected) const {
  fail(std::string(name) + " is " + value.dump() + "; expected " + expected);
}

}  // namespace fedss
