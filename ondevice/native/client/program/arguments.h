// The command line: a verb, then `--name value` pairs, each known and given once.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace fedss {

class Arguments {
 public:
  // Of what comes after the verb.
  Arguments(int count, char** words);

  std::string text(const std::string& name, std::optional<std::string> otherwise = {});
  int64_t number(const std::string& name, int64_t least, std::optional<int64_t> otherwise = {});
  // To be called once every option was asked for, before any work.
  void expect_no_more() const;

 private:
  std::optional<std::string> take(const std::string& name);
  std::map<std::string, std::string> values_;
};

}  // namespace fedss
