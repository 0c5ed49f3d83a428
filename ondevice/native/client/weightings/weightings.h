// The weightings that a plan can name: the C++ twin of ondevice/client/weightings/__init__.py.  Adding one is a file
// here with the name of its Python twin, two lines below and one in build.py.
#pragma once

#include <memory>

#include "client/contract/choice.h"
#include "client/weightings/weighting.h"

namespace fedss {

std::unique_ptr<Weighting> make_uniform(Fields& settings);
std::unique_ptr<Weighting> make_virtual_clients(Fields& settings);
std::unique_ptr<Weighting> make_importance(Fields& settings);

inline const Registry<Weighting> kWeightings{
    {"uniform", make_uniform},
    {"virtual_clients", make_virtual_clients},
    {"importance", make_importance},
};

}  // namespace fedss
