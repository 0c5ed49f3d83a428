// The artifact directory as a device uses it: the part of ondevice/contract/artifact.py that a client needs.
//
// A file is checked against the manifest's size and SHA-256 when it is first asked for, and files that are never asked
// for need not be there: a device is not sent the programs of other runtimes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "client/contract/artifacts/lengths.h"
#include "client/contract/step_signature.h"
#include "client/contract/wire.h"

namespace fedss {

class Artifact {
 public:
  explicit Artifact(const std::string& directory);

  StepSignature signature;
  Bounds bounds;         // of every symbol in the signature
  Lengths lengths;       // of texts that have a program each
  Dimensions embedding;  // what embed.pte makes of an example: [d], or [places, d] where that is more than one

  // Examples of one step.
  int64_t micro_batch() const { return bounds.at(kExamples); }
  // The shape of what embed.pte gives.
  Dimensions embedded() const;

  // As if there were no texts but those of that length: its programs under their plain names.
  Artifact of_length(int64_t size) const;

  // The golden steps: one, and one of every shorter length.
  std::vector<std::string> golden_files() const;

  // Where a file lies, once it is known to be the one that was exported; BadFile says what to do.
  std::string path(const std::string& name) const;

  // The dense parameters that it was exported with, and room for the rows that `values` gives every table.
  Arrays initial(const Bounds& values) const { return weights(path("initial.safetensors"), values); }
  // The same from any file of that layout, which is not checked.
  Arrays weights(const std::string& path, const Bounds& values) const;

 private:
  void read_manifest(const Json&);

  struct FileEntry {
    int64_t size;
    std::string sha256;
  };
  std::string directory_;
  std::map<std::string, FileEntry> files_;
};

}  // namespace fedss
