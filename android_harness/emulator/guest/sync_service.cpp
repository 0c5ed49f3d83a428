// The sync protocol: a request is a four-letter id, a length and a path; integers are little-endian.
// Anything unknown is answered with FAIL and the end of the stream, never guessed at.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <string>

#include "byte_stream.h"
#include "services.h"
#include "shell_user.h"

namespace guest {
namespace {

constexpr std::uint32_t kMaxChunk = 64 * 1024;  // the protocol's limit for one DATA message

struct Request {
  char id[4];
  std::uint32_t length;
  bool is(const char* name) const { return std::memcmp(id, name, 4) == 0; }
};

// The client leaving in the middle is an ordinary end: there is nobody left to tell.
void send(int client, const std::string& message) {
  if (!write_all(client, message.data(), message.size())) _exit(0);
}

void receive(int client, void* bytes, std::size_t size) {
  if (!read_all(client, bytes, size)) _exit(0);
}

void fail(int client, const std::string& reason) {
  std::string message = "FAIL";
  append<std::uint32_t>(message, reason.size());
  send(client, message + reason);
}

void answer_stat(int client, const std::string& path) {
  struct stat info{};  // all zero is how version 1 says "no such file"
  if (lstat(path.c_str(), &info) != 0) info = {};
  std::string message = "STAT";
  append<std::uint32_t>(message, info.st_mode);
  append<std::uint32_t>(message, info.st_size);
  append<std::uint32_t>(message, info.st_mtime);
  send(client, message);
}

void answer_stat_v2(int client, const Request& request, const std::string& path) {
  struct stat info{};
  int failed = request.is("LST2") ? lstat(path.c_str(), &info) : stat(path.c_str(), &info);
  std::uint32_t error = failed ? errno : 0;
  if (failed) info = {};
  std::string message(request.id, 4);
  append<std::uint32_t>(message, error);
  append<std::uint64_t>(message, info.st_dev);
  append<std::uint64_t>(message, info.st_ino);
  append<std::uint32_t>(message, info.st_mode);
  append<std::uint32_t>(message, info.st_nlink);
  append<std::uint32_t>(message, info.st_uid);
  append<std::uint32_t>(message, info.st_gid);
  append<std::uint64_t>(message, info.st_size);
  append<std::int64_t>(message, info.st_atime);
  append<std::int64_t>(message, info.st_mtime);
  append<std::int64_t>(message, info.st_ctime);
  send(client, message);
}

void answer_list(int client, const std::string& path) {
  if (DIR* folder = opendir(path.c_str())) {
    while (dirent* entry = readdir(folder)) {
      struct stat info{};
      if (fstatat(dirfd(folder), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;  // gone meanwhile
      std::string message = "DENT";
      append<std::uint32_t>(message, info.st_mode);
      append<std::uint32_t>(message, info.st_size);
      append<std::uint32_t>(message, info.st_mtime);
      append<std::uint32_t>(message, std::strlen(entry->d_name));
      send(client, message + entry->d_name);
    }
    closedir(folder);
  }
  send(client, "DONE" + std::string(16, '\0'));
}

void answer_receive(int client, const std::string& path) {
  int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return fail(client, "open " + path + ": " + std::strerror(errno));
  static char chunk[kMaxChunk];
  ssize_t count;
  while ((count = read(file, chunk, sizeof chunk)) > 0) {
    std::string header = "DATA";
    append<std::uint32_t>(header, count);
    send(client, header);
    send(client, std::string(chunk, count));
  }
  int error = errno;
  close(file);
  if (count < 0) return fail(client, "read " + path + ": " + std::strerror(error));
  send(client, "DONE" + std::string(4, '\0'));
}

void make_parents(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    mkdir(path.substr(0, slash).c_str(), 0775);  // a real failure shows when the file itself is opened
  }
}

// `target` is "path,mode" with the mode in decimal.
void answer_send(int client, const std::string& target) {
  std::size_t comma = target.rfind(',');
  std::string path = target.substr(0, comma);
  mode_t mode = comma == std::string::npos ? 0644 : std::strtoul(target.c_str() + comma + 1, nullptr, 10);
  std::string error;
  int file = -1;
  if (S_ISLNK(mode)) {
    error = path + ": symbolic links cannot be pushed";
  } else {
    make_parents(path);
    unlink(path.c_str());  // a running program cannot be overwritten in place, but it can be replaced
    file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) error = "create " + path + ": " + std::strerror(errno);
  }
  if (!error.empty()) fail(client, error);
  static char chunk[kMaxChunk];
  for (;;) {  // after a failure the rest is still read: the client stops at its own pace
    Request part;
    receive(client, &part, sizeof part);
    if (part.is("DONE")) {
      if (!error.empty()) break;
      timespec times[2] = {{static_cast<time_t>(part.length), 0}, {static_cast<time_t>(part.length), 0}};
      mode_t readable_to_execute = (mode & 0111) ? (mode & 0444) >> 2 : 0;
      if (fchmod(file, (mode & 0777) | readable_to_execute) != 0 || futimens(file, times) != 0 || close(file) != 0) {
        error = "finish " + path + ": " + std::strerror(errno);
        fail(client, error);
      } else {
        send(client, "OKAY" + std::string(4, '\0'));
      }
      file = -1;
      break;
    }
    if (!part.is("DATA") || part.length > kMaxChunk) {
      fail(client, "expected DATA of at most 65536 bytes, or DONE");
      _exit(0);
    }
    receive(client, chunk, part.length);
    if (error.empty() && !write_all(file, chunk, part.length)) {
      error = "write " + path + ": " + std::strerror(errno);  // e.g. No space left on device
      unlink(path.c_str());
      fail(client, error);
    }
  }
  if (file >= 0) close(file);
}

}  // namespace

void serve_sync(int client) {
  become_shell_user();
  for (;;) {
    Request request;
    receive(client, &request, sizeof request);
    if (request.is("QUIT")) _exit(0);
    if (request.length >= PATH_MAX) {
      fail(client, "path longer than 4095 bytes");
      _exit(0);
    }
    std::string path(request.length, '\0');
    receive(client, path.data(), path.size());
    if (request.is("STAT")) {
      answer_stat(client, path);
    } else if (request.is("STA2") || request.is("LST2")) {
      answer_stat_v2(client, request, path);
    } else if (request.is("LIST")) {
      answer_list(client, path);
    } else if (request.is("RECV")) {
      answer_receive(client, path);
    } else if (request.is("SEND")) {
      answer_send(client, path);
    } else {
      fail(client, "unknown sync request " + std::string(request.id, 4));
      _exit(0);
    }
  }
}

}  // namespace guest
