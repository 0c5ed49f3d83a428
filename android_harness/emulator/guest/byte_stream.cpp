#include "byte_stream.h"

#include <unistd.h>

#include <cerrno>

namespace guest {

bool read_all(int fd, void* bytes, std::size_t size) {
  auto* at = static_cast<char*>(bytes);
  while (size > 0) {
    ssize_t count = read(fd, at, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

bool write_all(int fd, const void* bytes, std::size_t size) {
  auto* at = static_cast<const char*>(bytes);
  while (size > 0) {
    ssize_t count = write(fd, at, size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    at += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace guest
