// One JSON object of a plan: the C++ twin of ondevice/contract/messages/exact_fields.py.  Every field is asked for by
// name and none may be left over: a setting which an older client would ignore is an error, not another experiment.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "client/contract/files/strict_json.h"

namespace fedss {

class Fields {
 public:
  Fields(const Json& object, const std::string& where);

  const Json& field(const char* name);
  int64_t count(const char* name, int64_t least);
  int64_t count(const char* name, int64_t least, int64_t otherwise) {
    return has(name) ? count(name, least) : otherwise;
  }
  double number(const char* name);  // finite, 0 or more
  double number(const char* name, double otherwise) { return has(name) ? number(name) : otherwise; }
  bool flag(const char* name, bool otherwise);
  std::string word(const char* name, const char* otherwise);
  // To be called once every field was asked for.
  void expect_no_more() const;
  [[noreturn]] void fail(const std::string& why) const;

 private:
  bool has(const char* name) const { return object_.contains(name); }
  const Json* optional(const char* name);
  [[noreturn]] void fail(const char* name, const Json& value, const std::string& expected) const;

  const Json& object_;
  const std::string where_;
  std::set<std::string> asked_;
};

}  // namespace fedss
