// One .pte file of the artifact, loaded and ready to run; its memory is held as long as it is there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/contract/artifact.h"
#include "runtime/program.h"

namespace fedss {

// Where the artifact is, and how its programs are run.
struct StepPlace {
  std::string artifact, runtime;
  int threads;
};

// How many threads the kernels of this process use.
void set_threads(int count);

class ExportedProgram {
 public:
  ExportedProgram(const Artifact&, const std::string& name, bool profiled = false);

  // Where an output goes: float32 with room for the largest size that the program can give it.
  struct Output {
    float* data;
    Dimensions shape;
  };
  // Once; arrays are read and written where they lie.
  void run(const std::vector<ArrayView>& inputs, const std::vector<Output>& outputs);

  int64_t planned_bytes() { return fedss_planned_memory(program_.get()); }
  // Nanoseconds of every instruction in the last run, of a program that is profiled.
  std::vector<int64_t> profile();

 private:
  struct Close {
    void operator()(fedss_program* program) const { fedss_close(program); }
  };
  const std::string name_;
  std::unique_ptr<fedss_program, Close> program_;
};

}  // namespace fedss
