#include "client/contract/files/whole_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/contract/failure.h"

namespace fedss {
namespace {

std::string reason() { return std::strerror(errno); }

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw BadFile("cannot open " + path + ": " + reason());
  struct stat status;
  const bool regular = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  size_ = regular ? static_cast<size_t>(status.st_size) : 0;
  void* mapped = size_ ? mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0) : MAP_FAILED;
  const std::string why = !regular ? "it is not a regular file" : size_ ? reason() : "it is empty";
  close(descriptor);
  if (mapped == MAP_FAILED) throw BadFile("cannot read " + path + ": " + why);
  data_ = static_cast<const uint8_t*>(mapped);
}

MappedFile::~MappedFile() { munmap(const_cast<uint8_t*>(data_), size_); }

void MappedFile::release_pages() const { madvise(const_cast<uint8_t*>(data_), size_, MADV_DONTNEED); }

WholeFile::WholeFile(const std::string& path)
    : path_(path), temporary_(path + ".part-" + std::to_string(getpid())), file_(std::fopen(temporary_.c_str(), "wb")) {
  if (!file_) throw BadFile("cannot write " + temporary_ + ": " + reason());
}

WholeFile::~WholeFile() {
  if (file_) std::fclose(file_);
  unlink(temporary_.c_str());  // gone already if it was published
}

void WholeFile::write(const void* data, size_t size) {
  if (std::fwrite(data, 1, size, file_) != size) throw BadFile("cannot write " + temporary_ + ": " + reason());
}

void WholeFile::publish() {
  bool written = std::fflush(file_) == 0 && fsync(fileno(file_)) == 0;
  written = std::fclose(file_) == 0 && written;
  file_ = nullptr;
  if (!written || std::rename(temporary_.c_str(), path_.c_str()))
    throw BadFile("cannot write " + path_ + ": " + reason());
}

}  // namespace fedss
