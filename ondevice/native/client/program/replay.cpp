#include "client/program/replay.h"

#include <unistd.h>

namespace fedss {

const MappedFile& Replay::ask(const std::string& question) {
  const std::string path = folder_ + "/" + std::to_string(answers_.size());
  if (access(path.c_str(), F_OK) != 0) throw Unanswered{question};
  return answers_.emplace_back(path);
}

}  // namespace fedss
