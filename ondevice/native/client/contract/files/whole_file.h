// Files as the client uses them, as in ondevice/contract/files/whole_file.py: mapped to be read, so that only pages in
// use take memory; written whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace fedss {

struct Bytes {
  const uint8_t* data;
  size_t size;
};

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  Bytes bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // Lets the kernel take the pages back; they are read again when they are next touched.
  void release_pages() const;

 private:
  const std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// A file under a temporary name, which takes its own when it is complete.
class WholeFile {
 public:
  explicit WholeFile(const std::string& path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void write(const void* data, size_t size);
  void publish();

 private:
  const std::string path_, temporary_;
  std::FILE* file_;
};

}  // namespace fedss
