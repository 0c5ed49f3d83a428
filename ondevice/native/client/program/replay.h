// A conversation replayed from its start with the answers that lie in a folder as files `0`, `1`, and so on.
#pragma once

#include <deque>
#include <string>

#include "client/contract/files/whole_file.h"

namespace fedss {

// No failure: the client has a question that is not answered yet.
struct Unanswered {
  std::string question;
};

class Replay {
 public:
  explicit Replay(const std::string& folder) : folder_(folder) {}

  // The next answer; raises Unanswered where there is none.
  const MappedFile& ask(const std::string& question);

 private:
  const std::string folder_;
  std::deque<MappedFile> answers_;
};

}  // namespace fedss
