// What is done to an update's weights before they are encoded: the C++ twin of ondevice/client/transforms/__init__.py.
// Adding one is a file here with the name of its Python twin, two lines below and one in build.py.
#pragma once

#include <memory>
#include <vector>

#include "client/contract/choice.h"
#include "client/contract/wire.h"

namespace fedss {

// What a client lets its transforms see beside the weights.  It keeps nothing between rounds: transforms that remember
// (top_k) are not for it.
struct TransformView {
  int64_t round_index;
  uint64_t private_seed;
};

class Transform {
 public:
  virtual ~Transform() = default;
  virtual void apply(Weights&, const TransformView&) const = 0;  // in place: there is no room for two updates
};

std::unique_ptr<Transform> make_precision(Fields& settings);
std::unique_ptr<Transform> make_clip(Fields& settings);
std::unique_ptr<Transform> make_int8(Fields& settings);

inline const Registry<Transform> kTransforms{{"precision", make_precision}, {"clip", make_clip}, {"int8", make_int8}};

// Made before a client trains: a transform that this client lacks is not found out at the end.
inline std::vector<std::unique_ptr<Transform>> chosen_transforms(const std::vector<Choice>& choices) {
  std::vector<std::unique_ptr<Transform>> transforms;
  for (const Choice& choice : choices) transforms.push_back(chosen(kTransforms, choice, "transform"));
  return transforms;
}

}  // namespace fedss
