// How the client fails: one sentence for people (what, the value, what was expected, what to do) and the exit code that
// scripts branch on, the same codes as the command line of the project.
#pragma once

#include <stdexcept>
#include <string>

namespace fedss {

class Failure : public std::runtime_error {
 public:
  Failure(int exit_code, const std::string& message) : std::runtime_error(message), exit_code(exit_code) {}
  const int exit_code;
};

// The command line asks for something that cannot be.
struct UsageError : Failure {
  explicit UsageError(const std::string& message) : Failure(2, message) {}
};

// A message, data set, plan or artifact that cannot be used; nothing was written.
struct BadFile : Failure {
  explicit BadFile(const std::string& message) : Failure(3, message) {}
};

// The golden step was not reproduced, or training diverged.
struct CheckFailed : Failure {
  explicit CheckFailed(const std::string& message) : Failure(5, message) {}
};

}  // namespace fedss
