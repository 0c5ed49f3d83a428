// The nouns of a federated round: the C++ twin of ondevice/contract/vocabulary.py, as far as a client needs them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "client/contract/choice.h"

namespace fedss {

// The table of the classifier's rows.
inline const std::string kColumns = "columns";
// Added to a logit it removes the class exactly: exp underflows to 0.
constexpr float kExcluded = -1e9f;
// The classes of examples that have several, [N, most of them], kNoClass behind the last; and the step's input that is
// made of them, a byte per output.
inline const std::string kClasses = "classes", kTargets = "targets";
constexpr int64_t kNoClass = -1;

struct LocalTraining {
  int64_t epochs, batch_size;
  float learning_rate, weight_decay, momentum;
};

// What the server tells every client of a round.
struct RoundPlan {
  int64_t round_index;
  std::map<std::string, int64_t> table_sizes;  // table -> how many rows it has on the server
  Choice sampler, weighting;
  std::vector<Choice> transforms;
  LocalTraining local_training;
  std::vector<std::pair<std::string, std::string>> sides;  // side array that comes with every slice -> its table
};

// Table -> sorted and unique row ids; a row's position among them is how a step knows it.  In the order of the draw,
// which is that of the tensors in a request.
using RowIds = std::vector<std::pair<std::string, std::vector<int64_t>>>;

// Some rows of a table: sorted and unique ids, and their entries [ids, d].
struct Rows {
  std::vector<int64_t> ids;
  std::vector<float> values;
};

// Side array of the step -> an entry per row.
using Sides = std::map<std::string, std::vector<float>>;

// The rows of every table that a client asks for, as the client knows them.  Only `ids` ever leaves the device.
struct RowSample {
  RowIds ids;
  Sides sides;
  // Where classes are outputs of the step, and not rows: those that a class stands for.  Empty elsewhere.
  std::function<std::vector<int64_t>(int64_t class_id)> outputs;
};

// Of one table; BadFile where the draw has none.
inline const std::vector<int64_t>& ids_of(const RowIds& ids, const std::string& table) {
  for (const auto& [name, rows] : ids)
    if (name == table) return rows;
  throw BadFile("the sampler draws no rows of table '" + table + "', which the step takes; choose one that does");
}

}  // namespace fedss
