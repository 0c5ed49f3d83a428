// A client's question to the server, as the client sees it: the C++ twin of ondevice/contract/link.py.
#pragma once

#include <functional>
#include <string>

#include "client/contract/files/whole_file.h"

namespace fedss {

// The answer stays mapped for as long as whoever carries the conversation is there.
using Ask = std::function<const MappedFile&(const std::string& question)>;

}  // namespace fedss
