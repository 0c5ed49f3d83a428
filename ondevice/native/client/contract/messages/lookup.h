// How a client finds the rows near its data before it asks for a slice: the C++ twin of
// ondevice/contract/messages/lookup.py, which describes the two messages.  A device writes look-ups and reads what was
// found.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/contract/messages/envelope.h"
#include "client/contract/vocabulary.h"

namespace fedss {

// Buckets, sorted and unique, of hash functions with this fingerprint; or, where there are none, queries [any, dim].
struct Lookup {
  std::vector<int64_t> buckets;
  int64_t fingerprint = 0;
  std::vector<float> queries{};
  int64_t dim = 0;
};

std::string lookup_to_bytes(Envelope, const Lookup&);

// Raises BadFile for anything but rows of this table, perhaps none.
Rows found_from_bytes(Bytes message, Envelope, const std::string& table, int64_t num_rows, int64_t dim);

}  // namespace fedss
