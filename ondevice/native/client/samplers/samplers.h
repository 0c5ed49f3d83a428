// The samplers that a plan can name: the C++ twin of ondevice/client/samplers/__init__.py.  Adding one is a file here
// with the name of its Python twin, two lines below and one in build.py.
#pragma once

#include <memory>

#include "../choice.h"
#include "sampling.h"

namespace fedss {

std::unique_ptr<Sampler> make_uniform_negatives(Fields& settings);
std::unique_ptr<Sampler> make_positives(Fields& settings);
std::unique_ptr<Sampler> make_all_rows(Fields& settings);

inline const Registry<Sampler> kSamplers{
    {"uniform_negatives", make_uniform_negatives},
    {"positives", make_positives},
    {"all_rows", make_all_rows},
};

}  // namespace fedss
