// What every message of a round says of itself: the C++ twin of ondevice/contract/messages/envelope.py.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "client/contract/safetensors.h"

namespace fedss {

// Who a message is from or for, and in which round.
struct Envelope {
  int64_t round_index, client_id;
};

Metadata metadata_of(const char* kind, Envelope);

// A message of this kind, its envelope not looked at yet; `more` is the metadata that it has beside the four.  Raises
// BadFile, as all readers of messages.
TensorFile opened(Bytes message, const std::string& kind, const std::set<std::string>& more);

// A message of this kind from or for this client, in this round.
TensorFile decoded(Bytes message, const char* kind, Envelope);

int64_t count_of(const std::string& name, const std::string& text);

}  // namespace fedss
