#include "client/step/exported_program.h"

#include <algorithm>

#include "client/contract/failure.h"

namespace fedss {
namespace {

fedss_tensor tensor(const void* data, const Dimensions& shape, Dtype dtype) {
  const int32_t type = dtype == Dtype::F32 ? 0 : dtype == Dtype::I64 ? 1 : 2;
  fedss_tensor result{const_cast<void*>(data), {}, static_cast<int32_t>(shape.size()), type};
  std::copy(shape.begin(), shape.end(), result.sizes);
  return result;
}

}  // namespace

void set_threads(int count) {
  if (!fedss_set_threads(count))
    throw Failure(
        1, "ExecuTorch could not make a pool of " + std::to_string(count) + " threads; is there a /proc/cpuinfo?");
}

ExportedProgram::ExportedProgram(const Artifact& artifact, const std::string& name, bool profiled) : name_(name) {
  const std::string path = artifact.path(name);
  program_.reset(fedss_open(path.c_str(), profiled));
  if (!program_) throw BadFile(path + ": " + fedss_last_error() + "; export it again, with this version of ExecuTorch");
}

void ExportedProgram::run(const std::vector<ArrayView>& inputs, const std::vector<Output>& outputs) {
  std::vector<fedss_tensor> in, out;
  for (const ArrayView& array : inputs) in.push_back(tensor(array.data, array.shape, array.dtype));
  for (const auto& [data, shape] : outputs) out.push_back(tensor(data, shape, Dtype::F32));
  if (!fedss_run(
          program_.get(), in.data(), static_cast<int64_t>(in.size()), out.data(), static_cast<int64_t>(out.size())))
    throw Failure(1, name_ + " failed: " + fedss_last_error());
}

std::vector<int64_t> ExportedProgram::profile() {
  std::vector<int64_t> nanoseconds(fedss_profile(program_.get(), nullptr, 0));
  fedss_profile(program_.get(), nanoseconds.data(), static_cast<int64_t>(nanoseconds.size()));
  return nanoseconds;
}

}  // namespace fedss
