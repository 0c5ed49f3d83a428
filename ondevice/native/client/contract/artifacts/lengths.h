// Texts of several lengths: an artifact may have a program per length.  The C++ twin of
// ondevice/contract/artifacts/lengths.py, which describes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/contract/step_signature.h"

namespace fedss {

struct Lengths {
  std::vector<std::string> features;  // whose second size is a number of places; they are cut together
  std::vector<int64_t> sizes;         // ascending, the last is the signature's; empty where one program serves all

  // What the programs of that length take.
  StepSignature shortened(const StepSignature&, int64_t size) const;
  // The shortest length that holds every text of the arrays, which are of the longest.
  int64_t holding(const StepSignature&, const StepArrays&) const;
};

// Of the manifest; BadFile unless the signature has such texts.  Json::exception where a field is missing.
Lengths lengths_from_document(const Json&, const StepSignature&);

// Where the files of a shorter length lie in the artifact.
inline std::string folder_of(int64_t size) { return "length-" + std::to_string(size); }

// Arrays with their texts cut to one length, which are copied; everything else is left where it lies.
class CutTexts {
 public:
  // `shortened`: what the programs of that length take.
  CutTexts(const Lengths&, const StepSignature& shortened, const Bounds&);

  StepArrays cut(StepArrays);

 private:
  std::vector<NamedArray> texts_;
};

}  // namespace fedss
