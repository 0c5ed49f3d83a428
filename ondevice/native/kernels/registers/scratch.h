// Memory of one call of a kernel.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace fedss::FEDSS_ISA {

class Scratch {
 public:
  // Zeroed.
  explicit Scratch(int64_t count) : data_(static_cast<float*>(std::calloc(count, sizeof(float)))) {
    if (!data_) std::abort();  // a few hundred kilobytes; the arena of many megabytes was given before
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }
  float* data() { return data_; }

 private:
  float* data_;
};

}  // namespace fedss::FEDSS_ISA
