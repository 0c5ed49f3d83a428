#include "client/contract/artifacts/lengths.h"

#include <algorithm>
#include <cstring>

#include "client/contract/failure.h"

namespace fedss {
namespace {

size_t place_bytes(const ArrayView& texts) {
  return byte_size(texts.dtype) * element_count({texts.shape.begin() + 2, texts.shape.end()});
}

// How many places the longest text uses: everything behind them is padding.
int64_t places(const ArraySpec& spec, const ArrayView& texts) {
  const NamedArray padding(spec, {1, 1, element_count({texts.shape.begin() + 2, texts.shape.end()})});
  const auto* blank = static_cast<const uint8_t*>(padding.view().data);
  const auto* bytes = static_cast<const uint8_t*>(texts.data);
  const size_t size = place_bytes(texts);
  const int64_t length = texts.shape[1];
  int64_t used = 0;
  for (int64_t example = 0; example < texts.shape[0]; example++)
    for (int64_t place = length; place > used; place--)
      if (std::memcmp(bytes + (example * length + place - 1) * size, blank, size) != 0) used = place;
  return used;
}

}  // namespace

StepSignature Lengths::shortened(const StepSignature& signature, int64_t size) const {
  std::vector<ArraySpec> inputs = signature.inputs();
  for (ArraySpec& spec : inputs)
    if (std::count(features.begin(), features.end(), spec.name)) spec.shape[1].number = size;
  return StepSignature(std::move(inputs));
}

int64_t Lengths::holding(const StepSignature& signature, const StepArrays& arrays) const {
  int64_t used = 0;
  for (const ArraySpec& spec : signature.inputs())
    if (std::count(features.begin(), features.end(), spec.name))
      used = std::max(used, places(spec, arrays.at(spec.name)));
  return *std::lower_bound(sizes.begin(), sizes.end(), used);
}

Lengths lengths_from_document(const Json& document, const StepSignature& signature) {
  Lengths lengths;
  for (const Json& size : document.at("sizes")) {
    if (!is_count(size) || size.get<int64_t>() <= (lengths.sizes.empty() ? 0 : lengths.sizes.back()))
      throw BadFile(
          "lengths are " + document.at("sizes").dump() + "; expected numbers, each larger than the one before");
    lengths.sizes.push_back(size.get<int64_t>());
  }
  for (const Json& feature : document.at("features")) lengths.features.push_back(feature.get<std::string>());
  const std::vector<ArraySpec> known = signature.of_role({Role::feature});
  const auto has_it = [&](const std::string& name) {
    return std::any_of(known.begin(), known.end(), [&](const ArraySpec& spec) {
      return spec.name == name && spec.shape.size() > 1 && spec.shape[1].number == lengths.sizes.back();
    });
  };
  if (lengths.sizes.empty() || lengths.features.empty() ||
      !std::all_of(lengths.features.begin(), lengths.features.end(), has_it))
    throw BadFile("lengths are " + document.dump() + ", which is not what the signature's features have");
  return lengths;
}

CutTexts::CutTexts(const Lengths& lengths, const StepSignature& shortened, const Bounds& bounds) {
  for (const ArraySpec& spec : shortened.inputs())
    if (std::count(lengths.features.begin(), lengths.features.end(), spec.name))
      texts_.emplace_back(spec, spec.sizes(bounds));
}

StepArrays CutTexts::cut(StepArrays arrays) {
  for (NamedArray& text : texts_) {
    ArrayView& whole = arrays.at(text.spec.name);
    const size_t skipped = whole.shape[1] * place_bytes(whole);
    for (int64_t example = 0; example < text.shape[0]; example++)
      std::memcpy(text.entry(example), static_cast<const uint8_t*>(whole.data) + example * skipped, text.entry_bytes);
    whole = text.view();
  }
  return arrays;
}

}  // namespace fedss
