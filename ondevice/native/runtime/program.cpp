#include "runtime/program.h"

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/platform/platform.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/arena.h"
#include "runtime/profiler.h"

// Part of libexecutorch_threadpool, whose header the wheel leaves out.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t new_thread_count);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::HierarchicalAllocator;

// Of this thread: another may be running another program.
std::string& last_error() {
  static thread_local std::string message;
  return message;
}

// The runtime talks on stderr about every file it opens; keep what it says when it fails, for the caller to raise: the
// last that it says, or every operator that it misses.
void keep_errors(
    et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t, const char* message, size_t length) {
  if (level != kError && level != kFatal) return;
  const std::string said(message, length);
  std::string& kept = last_error();
  if (said.find("Missing operator") != std::string::npos) {
    kept += (kept.empty() ? "" : "; ") + said;
  } else if (kept.find("Missing operator") == std::string::npos) {
    kept = said;
  }
}

// Whoever registered last hears the runtime, and its Python module registers when it is imported: so from the start on,
// and again before every call.
void listen() {
  last_error().clear();
  if (executorch::runtime::get_pal_impl()->emit_log_message == keep_errors) return;
  executorch::runtime::register_pal(executorch::runtime::PalImpl::create(keep_errors, __FILE__));
  last_error().clear();  // of the remark that somebody had registered before
}

const bool listening = (listen(), true);

bool failed(Error error, const char* what) {
  if (error == Error::Ok) return false;
  const std::string reason = last_error().empty() ? "no reason given" : last_error();
  last_error() =
      std::string(what) + ": " + reason + " (ExecuTorch error " + std::to_string(static_cast<int>(error)) + ")";
  return true;
}

constexpr ScalarType kTypes[] = {ScalarType::Float, ScalarType::Long, ScalarType::Byte};  // by fedss_tensor.dtype

EValue evalue(const fedss_tensor& tensor, std::vector<TensorPtr>& keep) {
  const std::vector<SizesType> sizes(tensor.sizes, tensor.sizes + tensor.rank);
  keep.push_back(executorch::extension::from_blob(tensor.data, sizes, kTypes[tensor.dtype]));
  return EValue(keep.back());
}

}  // namespace

struct fedss_program {
  fedss_program(const char* path, std::unique_ptr<fedss::Profiler> tracer)
      : profiler(tracer.get()), module(path, Module::LoadMode::Mmap, std::move(tracer)) {}
  // Reserves what the program has planned, and loads it there.
  Error load() {
    const auto meta = module.method_meta("forward");
    if (!meta.ok()) return meta.error();
    for (size_t i = 0; i < meta->num_memory_planned_buffers(); i++) {
      arena.emplace_back(static_cast<size_t>(meta->memory_planned_buffer_size(i).get()));
      if (!arena.back().fits()) return Error::MemoryAllocationFailed;
      spans.push_back(arena.back().span());
    }
    planned = std::make_unique<HierarchicalAllocator>(
        executorch::runtime::Span<executorch::runtime::Span<uint8_t>>(spans.data(), spans.size()));
    return module.load_method("forward", planned.get());
  }
  const fedss::Profiler* profiler;  // the module owns it
  // Before the module, which uses them to its end.
  std::vector<fedss::LargePages> arena;
  std::vector<executorch::runtime::Span<uint8_t>> spans;
  std::unique_ptr<HierarchicalAllocator> planned;
  Module module;
};

fedss_program* fedss_open(const char* path, bool profiled) {
  listen();
  auto program = std::make_unique<fedss_program>(path, profiled ? std::make_unique<fedss::Profiler>() : nullptr);
  return failed(program->load(), "cannot load") ? nullptr : program.release();
}

void fedss_close(fedss_program* program) { delete program; }

bool fedss_run(
    fedss_program* program, const fedss_tensor* inputs, int64_t input_count, const fedss_tensor* outputs,
    int64_t output_count) {
  listen();
  std::vector<TensorPtr> keep;
  std::vector<EValue> values;
  for (int64_t i = 0; i < input_count; i++) values.push_back(evalue(inputs[i], keep));
  for (int64_t i = 0; i < output_count; i++)
    if (failed(program->module.set_output(evalue(outputs[i], keep), i), "cannot set an output")) return false;
  return !failed(program->module.execute("forward", values).error(), "cannot run");
}

int64_t fedss_profile(fedss_program* program, int64_t* nanoseconds, int64_t room) {
  if (!program->profiler) return 0;
  const auto& measured = program->profiler->nanoseconds;
  for (int64_t i = 0; i < room && i < static_cast<int64_t>(measured.size()); i++) nanoseconds[i] = measured[i];
  return static_cast<int64_t>(measured.size());
}

int64_t fedss_planned_memory(fedss_program* program) {
  const auto meta = program->module.method_meta("forward");
  int64_t total = 0;
  if (!meta.ok()) return 0;
  for (size_t i = 0; i < meta->num_memory_planned_buffers(); i++) total += meta->memory_planned_buffer_size(i).get();
  return total;
}

bool fedss_set_threads(int32_t count) {
  auto* pool = executorch::extension::threadpool::get_threadpool();
  return pool && pool->_unsafe_reset_threadpool(static_cast<uint32_t>(count));
}

const char* fedss_instruction_set() { return fedss::kernels().instruction_set; }

const char* fedss_last_error() { return last_error().c_str(); }
