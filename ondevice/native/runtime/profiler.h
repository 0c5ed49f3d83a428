// Measures the processor time of every instruction of a program, through the runtime's own tracing hook.
#pragma once

#include <executorch/runtime/core/event_tracer.h>
#include <time.h>

#include <cstring>
#include <vector>

namespace fedss {

class Profiler final : public executorch::runtime::EventTracer {
  using Entry = executorch::runtime::EventTracerEntry;
  using Handle = executorch::runtime::DebugHandle;
  using Delegate = executorch::runtime::DelegateDebugIntId;
  using Tensor = executorch::aten::Tensor;
  template <class T>
  using Result = executorch::runtime::Result<T>;

 public:
  // Nanoseconds by instruction, of the last run.
  std::vector<int64_t> nanoseconds;

  Entry start_profiling(const char* name, executorch::runtime::ChainID, Handle) override {
    if (!std::strcmp(name, "OPERATOR_CALL")) started_ = now();
    Entry entry{};
    entry.event_id = !std::strcmp(name, "OPERATOR_CALL");
    return entry;
  }
  void end_profiling(Entry entry) override {
    if (!entry.event_id) return;
    const size_t instruction = current_debug_handle();
    if (nanoseconds.size() <= instruction) nanoseconds.resize(instruction + 1);
    nanoseconds[instruction] = now() - started_;
  }

  // What is left has nothing to do with operators.
  void create_event_block(const char*) override {}
  Entry start_profiling_delegate(const char*, Delegate) override { return {}; }
  void end_profiling_delegate(Entry, const void*, size_t) override {}
  void log_profiling_delegate(const char*, Delegate, et_timestamp_t, et_timestamp_t, const void*, size_t) override {}
  void track_allocation(executorch::runtime::AllocatorID, size_t) override {}
  executorch::runtime::AllocatorID track_allocator(const char*) override { return 0; }
  Result<bool> log_evalue(const executorch::runtime::EValue&, executorch::runtime::LoggedEValueType) override {
    return false;
  }
  Result<bool> log_intermediate_output_delegate(const char*, Delegate, const Tensor&) override { return false; }
  Result<bool> log_intermediate_output_delegate(const char*, Delegate, executorch::runtime::ArrayRef<Tensor>) override {
    return false;
  }
  Result<bool> log_intermediate_output_delegate(const char*, Delegate, const int&) override { return false; }
  Result<bool> log_intermediate_output_delegate(const char*, Delegate, const bool&) override { return false; }
  Result<bool> log_intermediate_output_delegate(const char*, Delegate, const double&) override { return false; }
  void set_delegation_intermediate_output_filter(executorch::runtime::EventTracerFilterBase*) override {}

 private:
  static int64_t now() {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
  }
  int64_t started_ = 0;
};

}  // namespace fedss
