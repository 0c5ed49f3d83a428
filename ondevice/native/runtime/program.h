// An open ExecuTorch program behind a C interface: what Python's ctypes and the native client call.  No torch, no
// copies: inputs are read and outputs are written where the caller has them.
#pragma once

#include <cstdint>

extern "C" {

struct fedss_tensor {
  void* data;
  int64_t sizes[6];
  int32_t rank;
  int32_t dtype;  // 0 float32, 1 int64, 2 uint8
};

struct fedss_program;

// The program in a .pte file, ready to run; null on failure, with the reason in fedss_last_error.
// With `profiled`, every run also measures its instructions.
fedss_program* fedss_open(const char* path, bool profiled);
void fedss_close(fedss_program*);

// Runs it once; false on failure.  An output's data must have room for the largest size that the program can give it.
bool fedss_run(
    fedss_program*, const fedss_tensor* inputs, int64_t input_count, const fedss_tensor* outputs, int64_t output_count);

// Processor time of each instruction in the last run of a profiled program, in nanoseconds, up to `room` of them; how
// many there are.
int64_t fedss_profile(fedss_program*, int64_t* nanoseconds, int64_t room);

// Multiply-adds per nanosecond of one thread that does nothing else, in the kernels' instruction set: the peak that a
// profile is held against.
double fedss_peak_multiply_adds_per_nanosecond();

// Bytes of the arena that the program was planned to need.
int64_t fedss_planned_memory(fedss_program*);

// How many threads the kernels of this process use.
bool fedss_set_threads(int32_t count);

// The instruction set that the kernels were compiled for and run with here.
const char* fedss_instruction_set();

// What the runtime last complained about in this process.
const char* fedss_last_error();
}
