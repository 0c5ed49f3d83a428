// Whole reads and whole writes on a blocking descriptor, and integers as adb sends them.
#pragma once

#include <cstddef>
#include <string>

namespace guest {

// Reads exactly `size` bytes; false if the peer has gone before.
bool read_all(int fd, void* bytes, std::size_t size);

// Writes exactly `size` bytes; false with errno set if that cannot be done.
bool write_all(int fd, const void* bytes, std::size_t size);

// adb is little-endian on the wire, and so is aarch64: integers are copied as they lie in memory.
template <typename Integer>
void append(std::string& message, Integer value) {
  message.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace guest
