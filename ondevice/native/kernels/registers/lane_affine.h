// GroupNorm of small planes, a register of channels at a time.
#pragma once

#include "kernels/registers/activation.h"
#include "kernels/registers/interleave.h"

namespace fedss::FEDSS_ISA {

// GroupNorm of a plane of each channel is x * scale + shift.
struct LaneAffine {
  Vector scale, shift;
};

// Of channels first, first + 1, ... before `end`.
inline LaneAffine lane_affine(const Value& value, int64_t first, int64_t end, int64_t image) {
  if (!value.gamma) return {broadcast(1), Vector{}};
  const int64_t per_group = value.shape.channels / value.groups, group = first / per_group;
  if (first + kLanes <= end && first + kLanes <= (group + 1) * per_group) {  // all of one group, as most are
    const float* mean = value.moments + group * value.shape.batch + image;
    const Vector scale = load(value.gamma + first) * mean[value.groups * value.shape.batch];
    return {scale, load(value.beta + first) - scale * *mean};
  }
  LaneAffine affine;
  for (int64_t lane = 0; lane < kLanes; lane++) {
    const int64_t channel = first + lane < end ? first + lane : end - 1;
    const PlaneAffine of_lane = plane_affine(value, channel, group_of(value, channel), image);
    affine.scale[lane] = of_lane.scale;
    affine.shift[lane] = of_lane.shift;
  }
  return affine;
}

}  // namespace fedss::FEDSS_ISA
