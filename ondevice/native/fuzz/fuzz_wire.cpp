// Feeds the readers of slices, of found rows and of plans mutated messages, to be compiled with the address and
// undefined-behaviour sanitizers:
//
//   fuzz_wire EXPECTED COUNT SEED FILE...
//
// Each file is a message to mutate.  Whatever comes, the reader must return or raise BadFile; the sanitizers end the
// program otherwise.  Prints how many of the messages were accepted.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "client/contract/failure.h"
#include "client/contract/portable_random.h"
#include "fuzz/case.h"

namespace {

using namespace fedss;
using Message = std::vector<uint8_t>;

// What a header is made of, and numbers at the edges of their types.
constexpr const char* kWords[] = {
    "0",
    "1",
    "-1",
    "-0",
    "1.5",
    "1e400",
    "NaN",
    "null",
    "true",
    "[]",
    "{}",
    "[[[[[[[[",
    "\"\"",
    "\"U8\"",
    "\"BF16\"",
    "\"I64\"",
    ",",
    "}",
    "]",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "4611686018427387904",
    "\"__metadata__\":",
    "\"table.columns\":",
    "\"rows.columns\":",
    "\"shape\":[4294967296,4294967296]",
    "\"data_offsets\":[8,0]",
    "\\ud800",
    "\\u0000",
    "\xff",
    "\xEF\xBB\xBF"};

size_t header_end(const Message& message) {
  uint64_t size = 0;
  if (message.size() < 8) return message.size();
  std::memcpy(&size, message.data(), 8);
  return size < message.size() - 8 ? 8 + size : message.size();
}

void mutate(Message& message, PortableRandom& random) {
  const size_t at = random.below(4) ? random.below(header_end(message) + 1) : random.below(message.size() + 1);
  const auto position = message.begin() + static_cast<ptrdiff_t>(std::min(at, message.size()));
  switch (random.below(7)) {
    case 0:
      if (position != message.end()) *position = static_cast<uint8_t>(random.next());
      break;
    case 1:
      if (position != message.end()) *position ^= static_cast<uint8_t>(1u << random.below(8));
      break;
    case 2:
      message.erase(position, position + std::min(message.end() - position, static_cast<ptrdiff_t>(random.below(64))));
      break;
    case 3: {
      const char* word = kWords[random.below(std::size(kWords))];
      message.insert(position, word, word + std::strlen(word));
      break;
    }
    case 4: {  // a digit becomes another number
      const char* word = kWords[random.below(std::size(kWords))];
      const auto digit = std::find_if(position, message.end(), [](uint8_t byte) { return byte >= '0' && byte <= '9'; });
      if (digit != message.end()) message.insert(message.erase(digit), word, word + std::strlen(word));
      break;
    }
    case 5: message.resize(random.below(message.size() + 1)); break;
    default: {  // the header's length, right for once: deeper code is reached
      if (message.size() < 8) break;
      const uint64_t size = random.below(3) ? header_end(message) - 8 : random.next() >> random.below(64);
      std::memcpy(message.data(), &size, 8);
    }
  }
}

template <class Read>
bool is_accepted(const Read& read) {
  try {
    read();
    return true;
  } catch (const BadFile&) {
    return false;
  }
}

}  // namespace

int main(int count, char** words) {
  if (count < 5) return 2;
  const Case given(words[1]);
  std::vector<Message> corpus;
  for (int i = 4; i < count; i++) {
    const MappedFile file(words[i]);
    corpus.emplace_back(file.bytes().data, file.bytes().data + file.bytes().size);
  }
  PortableRandom random(std::strtoull(words[3], nullptr, 10), 0, 0);
  long accepted = 0;
  for (long left = std::atol(words[2]); left > 0; left--) {
    Message message = corpus[random.below(corpus.size())];
    for (uint64_t i = random.below(4) + 1; i > 0; i--) mutate(message, random);
    message.shrink_to_fit();  // one byte too far is then out of bounds
    const Bytes bytes{message.data(), message.size()};
    accepted += is_accepted([&] { read_slice(bytes, given.envelope, given.ids, given.expected); }) ||
                is_accepted([&] { given.read_found(bytes); }) || is_accepted([&] { usable_plan(bytes); });
  }
  std::printf("%ld\n", accepted);
}
