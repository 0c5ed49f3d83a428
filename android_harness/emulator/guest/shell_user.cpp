#include "shell_user.h"

#include <fcntl.h>
#include <grp.h>
#include <unistd.h>

namespace guest {

void become_shell_user() {
  constexpr uid_t kShell = 2000;
  int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (score < 0 || write(score, "0", 1) != 1) _exit(126);
  close(score);
  if (setgroups(0, nullptr) != 0 || setgid(kShell) != 0 || setuid(kShell) != 0) _exit(126);
}

}  // namespace guest
