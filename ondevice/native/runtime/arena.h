// The memory that a program has planned for what it computes, in large pages where the system has them.
//
// A matrix product over planes reads and writes a row of every channel at a time, and at 224 px the rows are 200 kB
// apart: with small pages the processor looks up addresses more often than it finds them kept.
#pragma once

#include <executorch/runtime/core/span.h>
#include <sys/mman.h>

#include <cstdint>

namespace fedss {

// Zeroed, and touched by nobody yet; no data where there was not so much.
class LargePages {
 public:
  explicit LargePages(size_t size) : size_(size), mapped_(size + kPage) {
    mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) return;
    const uintptr_t start = reinterpret_cast<uintptr_t>(mapping_);
    data_ = reinterpret_cast<uint8_t*>((start + kPage - 1) / kPage * kPage);
    // Whole ones only: a page that is used in part would still be taken as a whole.
    if (size / kPage) madvise(data_, size / kPage * kPage, MADV_HUGEPAGE);
  }
  LargePages(const LargePages&) = delete;
  LargePages(LargePages&& other) : size_(other.size_), mapped_(other.mapped_), mapping_(other.mapping_) {
    data_ = other.data_;
    other.mapping_ = MAP_FAILED;
  }
  ~LargePages() {
    if (mapping_ != MAP_FAILED) munmap(mapping_, mapped_);
  }
  executorch::runtime::Span<uint8_t> span() const { return {data_, size_}; }
  bool fits() const { return data_ != nullptr; }

 private:
  static constexpr size_t kPage = 2 << 20;
  size_t size_, mapped_;
  void* mapping_;
  uint8_t* data_ = nullptr;
};

}  // namespace fedss
