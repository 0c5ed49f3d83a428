// The draw that virtual clients and importance weights share.
#pragma once

#include "client/weightings/weighting.h"

namespace fedss {

// Positions of `count` examples, in order where they are distinct.
std::vector<int64_t> drawn_examples(
    int64_t count, const RoundPlan&, const std::vector<int64_t>& labels, uint64_t private_seed);

}  // namespace fedss
