// The samplers that a plan can name: the C++ twin of ondevice/client/samplers/__init__.py.  Adding one is a file here
// with the name of its Python twin, two lines below and one in build.py.
#pragma once

#include <memory>

#include "client/contract/choice.h"
#include "client/samplers/sampling.h"

namespace fedss {

std::unique_ptr<Sampler> make_uniform_negatives(Fields& settings);
std::unique_ptr<Sampler> make_positives(Fields& settings);
std::unique_ptr<Sampler> make_all_rows(Fields& settings);
std::unique_ptr<Sampler> make_word_negatives(Fields& settings);
std::unique_ptr<Sampler> make_nearest_rows(Fields& settings);
std::unique_ptr<Sampler> make_label_hashes(Fields& settings);
std::unique_ptr<Sampler> make_class_outputs(Fields& settings);

inline const Registry<Sampler> kSamplers{
    {"uniform_negatives", make_uniform_negatives},
    {"positives", make_positives},
    {"all_rows", make_all_rows},
    {"word_negatives", make_word_negatives},
    {"nearest_rows", make_nearest_rows},
    {"label_hashes", make_label_hashes},
    {"class_outputs", make_class_outputs},
};

}  // namespace fedss
