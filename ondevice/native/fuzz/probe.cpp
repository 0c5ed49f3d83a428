// Answers for the tests what the client's code makes of many inputs, in one process and without ExecuTorch:
//
//   probe judge EXPECTED            messages on stdin, each after its length (uint32); a line each: `ok`, or `bad` and why
//   probe answer EXPECTED SLICE PRECISION REQUEST UPDATE
//                                   reads the slice; writes the request for it, and an update whose differences are its weights
//   probe sample                    lines `seed round num_classes num_negatives method label...` on stdin; prints S_k, `|`, the
//                                   bits of the adjustments, `|`, and the order of the examples in the first epoch
#include <bit>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "../client/class_sampling.h"
#include "../client/failure.h"
#include "../client/portable_random.h"
#include "case.h"

namespace {

using namespace fedss;

void judge(const Case& given) {
  uint32_t size;
  while (std::cin.read(reinterpret_cast<char*>(&size), sizeof size)) {
    std::vector<uint8_t> message(size);  // its own block of memory, so that the sanitizer sees one byte too far
    std::cin.read(reinterpret_cast<char*>(message.data()), size);
    try {
      read_slice({message.data(), message.size()}, given.envelope, given.class_ids, given.expected);
      std::puts("ok");
    } catch (const BadFile& error) {
      std::string line = error.what();
      for (char& letter : line)
        if (letter == '\n' || letter == '\r') letter = ' ';
      std::printf("bad %s\n", line.c_str());
    }
  }
}

void answer(
    const Case& given, const std::string& slice, const std::string& precision, const std::string& request,
    const std::string& update) {
  const MappedFile file(slice);
  Update result{{}, 11, 0.5f};
  for (const TensorView& tensor : read_slice(file.bytes(), given.envelope, given.class_ids, given.expected)) {
    result.deltas.emplace_back(element_count(tensor.shape));
    tensor.floats(result.deltas.back().data());
  }
  write_request(request, given.envelope, given.class_ids);
  const Precision narrow = precision == "fp32" ? Precision::fp32 : precision == "fp16" ? Precision::fp16 : Precision::bf16;
  write_update(update, given.envelope, given.class_ids, given.expected, result, narrow);
}

void sample() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    uint64_t seed;
    int method;
    RoundPlan plan{};
    words >> seed >> plan.envelope.round_index >> plan.num_classes >> plan.num_negatives >> method;
    plan.method = static_cast<Method>(method);
    std::vector<int64_t> labels;
    for (int64_t label; words >> label;) labels.push_back(label);
    const ClassSample drawn = sample_classes(labels, plan, seed);
    for (const int64_t id : drawn.class_ids) std::printf("%ld ", static_cast<long>(id));
    std::printf("|");
    for (const float adjust : drawn.adjust) std::printf(" %u", std::bit_cast<uint32_t>(adjust));
    std::printf(" |");
    PortableRandom random(seed, static_cast<uint64_t>(plan.envelope.round_index), kFirstEpoch);
    for (const int64_t example : random.permutation(static_cast<int64_t>(labels.size())))
      std::printf(" %ld", static_cast<long>(example));
    std::printf("\n");
  }
}

}  // namespace

int main(int count, char** words) {
  const std::string verb = count > 1 ? words[1] : "";
  if (verb == "judge" && count == 3) judge(Case(words[2]));
  else if (verb == "answer" && count == 7) answer(Case(words[2]), words[3], words[4], words[5], words[6]);
  else if (verb == "sample" && count == 2) sample();
  else return 2;
}
