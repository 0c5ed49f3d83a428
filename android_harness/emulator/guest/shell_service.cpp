// The shell service.  In version 2 every message in either direction is one byte of kind, four of length, then
// the bytes.  When the client goes away the whole process group of the command is killed: a phone must not go on
// training for somebody who has left.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "byte_stream.h"
#include "services.h"
#include "shell_user.h"

namespace guest {
namespace {

enum Kind : std::uint8_t { kStdin = 0, kStdout = 1, kStderr = 2, kExit = 3, kCloseStdin = 4, kWindowSize = 5 };

constexpr std::size_t kChunk = 32 * 1024;
constexpr std::uint32_t kMaxMessage = 1024 * 1024;

// One running command and our ends of its descriptors; -1 is closed.  With a pty they are all the same terminal.
struct Command {
  pid_t pid;
  int exited;  // a pidfd: readable once the command itself has ended, whatever its children still hold open
  int in, out, err;
  bool has_pty;
};

int open_pidfd(pid_t pid) {  // glibc 2.36 declares its own without extern "C"
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

[[noreturn]] void become_command(const std::string& command) {
  become_shell_user();
  signal(SIGPIPE, SIG_DFL);
  setenv("HOME", "/data/local/tmp", 1);
  setenv("TMPDIR", "/data/local/tmp", 1);
  if (command.empty()) {
    execl("/bin/sh", "sh", static_cast<char*>(nullptr));
  } else {
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
  }
  _exit(127);
}

Command start_with_pipes(const std::string& command) {
  int in[2], out[2], err[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) _exit(1);
  pid_t pid = fork();
  if (pid < 0) _exit(1);
  if (pid == 0) {
    setsid();
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    become_command(command);
  }
  close(in[0]);
  close(out[1]);
  close(err[1]);
  return {pid, open_pidfd(pid), in[1], out[0], err[0], false};
}

Command start_with_pty(const std::string& command) {
  int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  char name[64];
  if (terminal < 0 || unlockpt(terminal) != 0 || ptsname_r(terminal, name, sizeof name) != 0) _exit(1);
  pid_t pid = fork();
  if (pid < 0) _exit(1);
  if (pid == 0) {
    setsid();
    int side = open(name, O_RDWR);  // the first terminal a session leader opens becomes its controlling one
    if (side < 0) _exit(1);
    for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(side, fd);
    if (side > STDERR_FILENO) close(side);
    become_command(command);
  }
  return {pid, open_pidfd(pid), terminal, terminal, -1, true};
}

class Conversation {
 public:
  Conversation(int client, Command command) : client_(client), command_(command) {
    for (int fd : {command.in, command.out, command.err}) {
      if (fd >= 0) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    }
  }

  [[noreturn]] void run() {
    for (bool exited = false; !exited;) {
      bool reading = unwritten_.empty();  // no more is read from the client than the command has taken
      pollfd events[] = {
          {client_, static_cast<short>(reading ? POLLIN : POLLRDHUP), 0},
          {reading ? -1 : command_.in, POLLOUT, 0},
          {command_.out, POLLIN, 0},
          {command_.err, POLLIN, 0},
          {command_.exited, POLLIN, 0},
      };
      if (poll(events, std::size(events), -1) < 0) {
        if (errno == EINTR) continue;
        abandon();
      }
      if (events[0].revents && !reading) abandon();
      if (events[0].revents) take_message();
      if (events[1].revents) feed();
      if (events[2].revents) forward(kStdout, command_.out);
      if (events[3].revents) forward(kStderr, command_.err);
      exited = events[4].revents != 0;
      if (stdin_ended_ && unwritten_.empty()) close_stdin();
    }
    while (forward(kStdout, command_.out) || forward(kStderr, command_.err)) {
    }
    int status = 0;
    waitpid(command_.pid, &status, 0);
    std::uint8_t code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    send(kExit, &code, 1);
    _exit(0);
  }

 private:
  // The client has gone or talks nonsense: nothing of its command may stay behind.
  [[noreturn]] void abandon() {
    kill(-command_.pid, SIGKILL);
    _exit(0);
  }

  void send(Kind kind, const void* bytes, std::uint32_t size) {
    std::string message(1, static_cast<char>(kind));
    append(message, size);
    message.append(static_cast<const char*>(bytes), size);
    if (!write_all(client_, message.data(), message.size())) abandon();
  }

  void take_message() {
    char header[5];
    if (!read_all(client_, header, sizeof header)) abandon();
    std::uint32_t size;
    std::memcpy(&size, header + 1, sizeof size);
    if (size > kMaxMessage) abandon();
    std::string body(size, '\0');
    if (!read_all(client_, body.data(), size)) abandon();
    winsize window{};
    switch (header[0]) {
      case kStdin:
        if (command_.in >= 0) unwritten_ = std::move(body);
        break;
      case kCloseStdin: stdin_ended_ = true; break;
      case kWindowSize:  // "rowsxcolumns,widthxheight"; it means nothing without a terminal
        if (command_.has_pty && std::sscanf(body.c_str(), "%hux%hu,", &window.ws_row, &window.ws_col) == 2) {
          ioctl(command_.out, TIOCSWINSZ, &window);
        }
        break;
      default: abandon();
    }
  }

  void feed() {
    ssize_t count = write(command_.in, unwritten_.data(), unwritten_.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count < 0) stdin_ended_ = true;  // the command reads no more: the rest is thrown away
    unwritten_.erase(0, count < 0 ? unwritten_.size() : static_cast<std::size_t>(count));
  }

  void close_stdin() {
    if (command_.in >= 0 && !command_.has_pty) close(command_.in);  // a terminal has no end of input to signal
    command_.in = -1;
  }

  // Passes on what the command wrote; false once there is no more to come, or none at the moment.
  bool forward(Kind kind, int& from) {
    char chunk[kChunk];
    ssize_t count = from < 0 ? 0 : read(from, chunk, sizeof chunk);
    if (count > 0) {
      send(kind, chunk, static_cast<std::uint32_t>(count));
      return true;
    }
    if (count == 0 || (errno != EAGAIN && errno != EINTR)) from = -1;  // the end; a terminal says it with EIO
    return false;
  }

  int client_;
  Command command_;
  std::string unwritten_;  // stdin that the command has not taken yet
  bool stdin_ended_ = false;
};

}  // namespace

void serve_shell(int client, const std::string& service) {
  std::size_t colon = service.find(':');
  std::string options = service.substr(0, colon) + ",";
  std::string command = service.substr(colon + 1);
  auto has = [&options](const char* option) { return options.find(option) != std::string::npos; };
  if (has(",v2,")) {
    Conversation(client, has(",pty,") ? start_with_pty(command) : start_with_pipes(command)).run();
  }
  // Version 1 and exec: the stream itself is stdin, stdout and stderr, and there is no exit code.
  setsid();
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(client, fd);
  become_command(command);
}

}  // namespace guest
