// THE contract: a training step is named arrays in, named arrays out.  The C++ twin of
// ondevice/contract/step_signature.py, which describes it; nothing else in this client knows an order or a type.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/contract/files/strict_json.h"
#include "client/contract/safetensors.h"

namespace fedss {

// In the order in which a signature lists them.
enum class Role { dense, table, side, feature, label, noise, example_weight };

inline const std::string kExamples = "b";  // the symbol for the number of examples
constexpr size_t kMaxRank = 6;

inline std::string rows_of(const std::string& table) { return "rows:" + table; }
inline std::string gradient_of(const std::string& name) { return "gradient/" + name; }

// What symbols stand for: in some arrays, or the most that an exported step takes.
using Bounds = std::map<std::string, int64_t>;

// One size of a shape: a number, or a symbol.
struct Size {
  int64_t number = 0;
  std::string symbol;  // empty where it is a number
};

// One input of a step.
struct ArraySpec {
  std::string name;
  Role role = Role::dense;
  std::vector<Size> shape;
  Dtype dtype = Dtype::F32;  // F32, I64 or U8
  double padding = 0;        // what fills the places of missing examples or rows
  std::optional<std::string> positions_in;
  std::optional<int64_t> below;  // how many values a whole number takes, from 0; none where any will do

  Dimensions sizes(const Bounds& values) const;  // the shape with numbers for its symbols
  std::string describe() const;
};

// The inputs of a step, in order.
class StepSignature {
 public:
  StepSignature() = default;
  // Raises BadFile for inputs that are none.
  explicit StepSignature(std::vector<ArraySpec> inputs);

  const std::vector<ArraySpec>& inputs() const { return inputs_; }
  std::vector<ArraySpec> of_role(std::initializer_list<Role>) const;
  // What has a gradient: dense parameters, then tables.
  std::vector<ArraySpec> trained() const { return of_role({Role::dense, Role::table}); }
  std::vector<ArraySpec> tables() const { return of_role({Role::table}); }
  // What the extractor takes: the features, and the tables among whose rows they hold positions.
  std::vector<ArraySpec> embedded() const;
  // These with the dense parameters, and examples' weights, which no embedding sees: what there is to check and to
  // gather.
  StepSignature of_embedding() const;

 private:
  std::vector<ArraySpec> inputs_;
};

// Of the manifest's list of inputs.  Raises BadFile, or Json::exception where a field is missing.
StepSignature signature_from_document(const Json&);

// An array that goes into a step, left where the caller has it.
struct ArrayView {
  Dtype dtype;
  Dimensions shape;
  const void* data;
};
using StepArrays = std::map<std::string, ArrayView>;

// What every symbol stands for in these arrays.  BadFile where two arrays disagree, or are not as described.
Bounds symbol_values(const StepSignature&, const StepArrays&);
// What a runtime would compute wrongly, or crash on, is refused before it gets there.  Returns the symbols' values.
Bounds check_arrays(const StepSignature&, const StepArrays&, const Bounds&);

// A token that no vocabulary has would be read from outside a runtime's memory, noise beyond 1 is no chance: BadFile.
void check_range(const ArraySpec&, const ArrayView&);

// An array of a step with its bytes: of a batch that is filled again and again, or padded.
class NamedArray {
 public:
  NamedArray(ArraySpec spec, Dimensions shape);

  const ArraySpec spec;
  const Dimensions shape;
  const size_t entry_bytes;  // of one example or row: what one step along the first size skips

  uint8_t* entry(int64_t index) { return bytes_.data() + index * entry_bytes; }
  // Everything from entry `first` on becomes the spec's padding value.
  void pad_from(int64_t first);
  ArrayView view() const { return {spec.dtype, shape, bytes_.data()}; }

 private:
  std::vector<uint8_t> bytes_;
};

}  // namespace fedss
