// Texts as numbers: the C++ twin of ondevice/contract/tokens.py, as far as a client needs it.
#pragma once

#include <cstdint>
#include <string>

namespace fedss {

inline const std::string kTokens = "tokens";  // the feature
constexpr int64_t kNumSpecial = 4;            // tokens that are no words, the first of a vocabulary

}  // namespace fedss
