// Measures the processor time of every instruction of a program, through the runtime's own tracing hook, and marks
// where each begins and ends for an emulator that counts instructions (android_harness/devices/instruction_count.c).
#pragma once

#include <executorch/runtime/core/event_tracer.h>

#include <cstring>
#include <vector>

#include "runtime/processor_time.h"

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
    Entry entry{};
    entry.event_id = !std::strcmp(name, "OPERATOR_CALL");
    if (!entry.event_id) return entry;
    started_ = processor_nanoseconds();
    mark();
    return entry;
  }
  void end_profiling(Entry entry) override {
    if (!entry.event_id) return;
    mark();
    const int64_t ended = processor_nanoseconds();
    const size_t instruction = current_debug_handle();
    if (nanoseconds.size() <= instruction) nanoseconds.resize(instruction + 1);
    nanoseconds[instruction] = ended - started_;
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
  // A hint without a meaning: processors skip it, and the emulator's counter knows it.
  static void mark() {
#if defined(__aarch64__)
    asm volatile("hint #127");
#endif
  }
  int64_t started_ = 0;
};

}  // namespace fedss
