// Calls kernels as its standard input says, for tests that compare them with plain references, on whatever processor
// this was compiled for: the host, with and without the sanitizers, and ARM64 under an emulator.
//
//   kernel_calls INSTRUCTION_SET
//
// A call is words of eight bytes: how many buffers there are; of each its bytes, and then the bytes themselves; the
// kernel's place in kernel_list.h; and its arguments, structs field by field, a pointer as the number of a buffer (-1:
// null), a float as a double.  The answer is what the kernel returns (0 if nothing) and all the buffers.
//
// A buffer ends where its page ends, the next page may not be touched, one that the kernel takes as const may not be
// written, and what lies before it must stay as it was.  The range of items is run in three pieces, the last one first:
// no order may matter.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace fedss {
namespace {

void fail(const char* what) {
  std::fprintf(stderr, "kernel_calls: %s\n", what);
  std::exit(1);
}

void read_exactly(void* to, size_t bytes) {
  if (std::fread(to, 1, bytes, stdin) != bytes) fail("a call ends too early");
}

int64_t read_word() {
  int64_t word;
  read_exactly(&word, sizeof word);
  return word;
}

class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    before_and_buffer_ = (bytes + kBefore + page - 1) / page * page;
    mapped_ = before_and_buffer_ + page;
    const int anywhere = MAP_PRIVATE | MAP_ANONYMOUS;
    void* mapping = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, anywhere, -1, 0);
    if (mapping == MAP_FAILED) fail("no memory for a buffer");
    start_ = static_cast<unsigned char*>(mapping);
    std::memset(start_, kUntouched, before());
    if (mprotect(start_ + before_and_buffer_, page, PROT_NONE)) fail("a page cannot be guarded");
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(start_, before() / 8 * 8);
#endif
  }
  Buffer(const Buffer&) = delete;
  Buffer(Buffer&& other)
      : start_(std::exchange(other.start_, nullptr)),
        bytes_(other.bytes_),
        before_and_buffer_(other.before_and_buffer_),
        mapped_(other.mapped_) {}
  ~Buffer() {
    if (start_) munmap(start_, mapped_);
  }

  unsigned char* data() { return start_ + before(); }
  size_t bytes() const { return bytes_; }
  void forbid_writing() { mprotect(start_, before_and_buffer_, PROT_READ); }
  // To be called when the kernel is done.
  void check_before() {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(start_, before());
#endif
    for (size_t i = 0; i < before(); i++)
      if (start_[i] != kUntouched) fail("a kernel wrote before the start of a buffer");
  }

 private:
  static constexpr size_t kBefore = 64;
  static constexpr unsigned char kUntouched = 0xA5;
  size_t before() const { return before_and_buffer_ - bytes_; }

  unsigned char* start_;
  size_t bytes_, before_and_buffer_, mapped_;
};

// The words of one call, taken in the order of the kernel's parameters.
class Request {
 public:
  Request() {
    const int64_t count = read_word();
    for (int64_t i = 0; i < count; i++) {
      buffers.emplace_back(static_cast<size_t>(read_word()));
      read_exactly(buffers.back().data(), buffers.back().bytes());
    }
    written_.resize(buffers.size());
  }

  template <class T>
  T take() {
    if constexpr (std::is_same_v<T, int64_t>) {
      return read_word();
    } else if constexpr (std::is_same_v<T, Activation>) {
      return static_cast<Activation>(read_word());
    } else if constexpr (std::is_same_v<T, float>) {
      double number;
      read_exactly(&number, sizeof number);
      return static_cast<float>(number);
    } else if constexpr (std::is_pointer_v<T>) {
      const int64_t index = read_word();
      if (index < 0) return nullptr;
      if constexpr (!std::is_const_v<std::remove_pointer_t<T>>) written_.at(index) = true;
      return reinterpret_cast<T>(buffers.at(index).data());
    } else if constexpr (std::is_same_v<T, Shape>) {
      return {take<int64_t>(), take<int64_t>(), take<int64_t>(), take<int64_t>()};
    } else if constexpr (std::is_same_v<T, Window>) {
      return {take<int64_t>(), take<int64_t>(), take<int64_t>()};
    } else if constexpr (std::is_same_v<T, Extents>) {
      return {take<int64_t>(), take<int64_t>(), take<int64_t>(), take<int64_t>()};
    } else if constexpr (std::is_same_v<T, AverageBy>) {
      return {take<int64_t>(), take<int64_t>()};
    } else if constexpr (std::is_same_v<T, Grid>) {
      return {take<int64_t>(), take<int64_t>(), take<int64_t>(), take<int64_t>(),
              take<int64_t>(), take<int64_t>(), take<int64_t>(), take<int64_t>()};
    } else if constexpr (std::is_same_v<T, Matrix>) {
      return {take<const float*>(), take<int64_t>(), take<int64_t>()};
    } else if constexpr (std::is_same_v<T, Product>) {
      return {take<int64_t>(), take<int64_t>(), take<int64_t>(), take<Matrix>(), take<Matrix>(),
              take<Matrix>(),  take<float*>(),  take<int64_t>(), take<Value>(),  take<const float*>()};
    } else if constexpr (std::is_same_v<T, Value>) {
      return {take<const float*>(), take<Shape>(),   take<const float*>(), take<const float*>(),
              take<const float*>(), take<int64_t>(), take<Activation>()};
    } else {
      static_assert(std::is_same_v<T, PlaneGradient>, "say here how such an argument is read");
      return {take<const float*>(), take<const float*>(), take<const float*>()};
    }
  }

  void forbid_writing_to_inputs() {
    for (size_t i = 0; i < buffers.size(); i++)
      if (!written_[i]) buffers[i].forbid_writing();
  }

  int64_t total_bytes() const {
    int64_t total = 0;
    for (const Buffer& buffer : buffers) total += static_cast<int64_t>(buffer.bytes());
    return total;
  }

  std::vector<Buffer> buffers;

 private:
  std::vector<bool> written_;
};

template <class Returns, class... Parameters>
int64_t run(Returns (*kernel)(Parameters...), Request& request) {
  // Braces: the arguments are read from the first to the last.
  std::tuple<std::decay_t<Parameters>...> arguments{request.take<std::decay_t<Parameters>>()...};
  request.forbid_writing_to_inputs();
  if constexpr (!std::is_void_v<Returns>) {
    return std::apply(kernel, arguments);
  } else {
    int64_t& begin = std::get<sizeof...(Parameters) - 2>(arguments);
    int64_t& end = std::get<sizeof...(Parameters) - 1>(arguments);
    const int64_t first = begin, last = end;
    // Cut where the same call is always cut, so that a failure can be repeated.
    const int64_t places = last - first + 1, anywhere = request.total_bytes();
    int64_t cuts[2] = {first + anywhere / 4 % places, first + anywhere / 28 % places};
    std::sort(cuts, cuts + 2);
    const std::pair<int64_t, int64_t> pieces[] = {{cuts[1], last}, {first, cuts[0]}, {cuts[0], cuts[1]}};
    for (const auto& [from, to] : pieces) {
      if (from == to) continue;
      begin = from;
      end = to;
      std::apply(kernel, arguments);
    }
    return 0;
  }
}

int64_t run(const Kernels& table, int64_t wanted, Request& request) {
  int64_t at = 0;
#define FEDSS_KERNEL(returns, name, ...) \
  if (at++ == wanted) return run(table.name, request);
#include "kernels/kernel_list.h"
#undef FEDSS_KERNEL
  fail("there are not so many kernels");
  return 0;
}

}  // namespace
}  // namespace fedss

int main(int count, char** arguments) {
  if (count != 2) fedss::fail("usage: kernel_calls INSTRUCTION_SET");
  const fedss::Kernels* table = fedss_kernels(arguments[1]);
  if (!table) fedss::fail("this processor has no such instruction set");
  for (int next = std::getchar(); next != EOF; next = std::getchar()) {
    std::ungetc(next, stdin);
    fedss::Request request;
    const int64_t returned = fedss::run(*table, fedss::read_word(), request);
    std::fwrite(&returned, sizeof returned, 1, stdout);
    for (fedss::Buffer& buffer : request.buffers) {
      buffer.check_before();
      std::fwrite(buffer.data(), 1, buffer.bytes(), stdout);
    }
    std::fflush(stdout);
  }
  return 0;
}
