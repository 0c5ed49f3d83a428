// The artifact directory as a device uses it: the part of ondevice/contract/artifact.py that a client needs.
//
// A file is checked against the manifest's size and SHA-256 when it is first asked for, and files that are never asked for
// need not be there: a device is not sent the programs of other runtimes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "wire.h"

namespace fedss {

class Artifact {
 public:
  explicit Artifact(const std::string& directory);

  int64_t micro_batch, max_width, column_dim;
  Dimensions image_shape;            // C, H, W
  std::vector<Parameter> trainable;  // in contract order

  // Where a file lies, once it is known to be the one that was exported; BadFile says what to do.
  std::string path(const std::string& name) const;
  bool has(const std::string& name) const { return files_.count(name) > 0; }

  // The trainable tensors that it was exported with, and room for the columns of `width` classes.
  Arrays initial(int64_t width) const { return weights(path("initial.safetensors"), width); }
  // The same from any file of that layout, which is not checked.
  Arrays weights(const std::string& path, int64_t width) const;

 private:
  struct FileEntry {
    int64_t size;
    std::string sha256;
  };
  const std::string directory_;
  std::map<std::string, FileEntry> files_;
};

}  // namespace fedss
