// The C++ twin of ondevice/client/samplers/nearest_rows.py, step for step: of the same embeddings the same look-up, and
// of the same rows found the same draw.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "client/contract/failure.h"
#include "client/contract/hashing/simhash.h"
#include "client/contract/tokens.h"
#include "client/samplers/samplers.h"

namespace fedss {
namespace {

using Ids = std::vector<int64_t>;

struct Settings {
  int64_t num_negatives, num_random, num_bits, num_tables;
  uint64_t hash_seed;
  int64_t fingerprint;
  bool of_words;
};

Ids union_of(const Ids& some, const Ids& others) {
  Ids both;
  std::set_union(some.begin(), some.end(), others.begin(), others.end(), std::back_inserter(both));
  return both;
}

// [N, d], or [N, d + 1] where a row ends in its bias: its inner product with a query is the logit then.
std::vector<float> queries_of(const Embeddings& embeddings, int64_t dim) {
  if (dim != embeddings.dim && dim != embeddings.dim + 1)
    throw BadFile(
        "rows of " + kColumns + " have " + std::to_string(dim) + " entries; expected the " +
        std::to_string(embeddings.dim) + " of an embedding, or one more");
  std::vector<float> queries;
  for (size_t first = 0; first < embeddings.values.size(); first += embeddings.dim) {
    const auto vector = embeddings.values.begin() + static_cast<ptrdiff_t>(first);
    queries.insert(queries.end(), vector, vector + embeddings.dim);
    queries.resize(queries.size() + dim - embeddings.dim, 1);
  }
  return queries;
}

// Queries side by side, entry by entry: a row then meets kTogether of them at once, in one register.  The last block is
// filled up with the last query, which changes no maximum.
constexpr int64_t kTogether = 8;

std::vector<double> blocks_of(const std::vector<float>& queries, int64_t dim) {
  const int64_t count = static_cast<int64_t>(queries.size()) / dim;
  std::vector<double> blocks;
  blocks.reserve((count + kTogether) * dim);
  for (int64_t first = 0; first < count; first += kTogether)
    for (int64_t i = 0; i < dim; i++)
      for (int64_t j = first; j < first + kTogether; j++) blocks.push_back(queries[std::min(j, count - 1) * dim + i]);
  return blocks;
}

// The largest product of a row with any query.  Sums are of float64 and rounded at their end: then the order in which a
// machine takes them hardly ever shows.
float activation(const std::vector<double>& blocks, const float* row, int64_t dim, bool by_angle) {
  double largest = -INFINITY;
  for (size_t first = 0; first < blocks.size(); first += kTogether * dim) {
    const double* queries = blocks.data() + first;
    double sums[kTogether] = {};
    for (int64_t i = 0; i < dim; i++)
      for (int64_t j = 0; j < kTogether; j++) sums[j] += queries[i * kTogether + j] * static_cast<double>(row[i]);
    for (const double sum : sums) largest = std::max(largest, sum);
  }
  if (!by_angle) return static_cast<float>(largest);
  // Under cosine logits the length of a row does not count.
  double square = 0;
  for (int64_t i = 0; i < dim; i++) square += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  return static_cast<float>(largest / std::max(std::sqrt(square), 1e-12));
}

// The ids of the rows with the largest activation on any example, sorted; of equal ones the first.
Ids largest(const Embeddings& embeddings, const Rows& rows, int64_t dim, int64_t most) {
  if (static_cast<int64_t>(rows.ids.size()) <= most) return rows.ids;
  const std::vector<double> blocks = blocks_of(queries_of(embeddings, dim), dim);
  std::vector<float> activations;
  for (size_t i = 0; i < rows.ids.size(); i++)
    activations.push_back(activation(blocks, rows.values.data() + i * dim, dim, dim == embeddings.dim));
  std::vector<size_t> order(rows.ids.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return activations[a] > activations[b]; });
  Ids ids;
  for (int64_t i = 0; i < most; i++) ids.push_back(rows.ids[order[i]]);
  std::sort(ids.begin(), ids.end());
  return ids;
}

class NearestRows final : public Sampler {
 public:
  explicit NearestRows(const Settings& settings) : settings_(settings) {}

  RowSample draw(const SamplingView& view) const override {
    const int64_t num_rows = num_rows_of(view.plan);
    const Ids own = settings_.of_words ? own_words(view, num_rows) : positives_of(view.labels, num_rows);
    const Ids near_ones = near(view, own, settings_.of_words ? read_words(view, num_rows) : own);
    const Ids certain = union_of(own, near_ones);
    const int64_t num_others = num_rows - static_cast<int64_t>(certain.size());
    const int64_t count = std::min(settings_.num_negatives - static_cast<int64_t>(near_ones.size()), num_others);
    Ids ids = union_of(certain, draw_negatives(view, certain, count));
    const float drawn = negatives_adjustment(count, num_others);
    std::vector<float> adjust;
    for (const int64_t id : ids) {
      const bool is_special = settings_.of_words && id < kNumSpecial;
      const bool is_certain = std::binary_search(certain.begin(), certain.end(), id);
      adjust.push_back(is_special ? kExcluded : is_certain ? 0 : drawn);
    }
    return columns_sample(std::move(ids), std::move(adjust));
  }

 private:
  // Steps 1 to 4.  What is only predicted is not told to embed, which takes no more than what is read.
  Ids near(const SamplingView& view, const Ids& own, const Ids& read) const {
    const int64_t most = settings_.num_negatives - settings_.num_random;
    if (!most) return {};
    const Embeddings embeddings = view.questions.embeddings(read);
    if (!std::all_of(
            embeddings.values.begin(), embeddings.values.end(), [](float value) { return std::isfinite(value); }))
      throw CheckFailed(
          "the embeddings of the client's examples hold NaN or infinity: the model has diverged; use a lower learning "
          "rate");
    const int64_t dim = view.questions.dim();
    const Rows found = view.questions.look_up(lookup(queries_of(embeddings, dim), dim));
    Rows others;
    for (size_t i = 0; i < found.ids.size(); i++) {
      const int64_t id = found.ids[i];
      if (std::binary_search(own.begin(), own.end(), id) || (settings_.of_words && id < kNumSpecial)) continue;
      const auto row = found.values.begin() + static_cast<ptrdiff_t>(i * dim);
      others.ids.push_back(id);
      others.values.insert(others.values.end(), row, row + dim);
    }
    return largest(embeddings, others, dim, most);
  }

  Lookup lookup(std::vector<float> queries, int64_t dim) const {
    if (!settings_.num_bits) return {{}, 0, std::move(queries), dim};
    const SimHash hashes(settings_.num_bits, settings_.num_tables, dim, settings_.hash_seed);
    return {hashes.buckets_of_queries(queries), settings_.fingerprint};
  }

  const Settings settings_;
};

// What a plan says of its hash functions; 0 where it has none.
int64_t fingerprint_of(const Settings& settings) {
  if (!settings.num_bits) return 0;
  return SimHash(settings.num_bits, settings.num_tables, 1, settings.hash_seed).fingerprint();
}

}  // namespace

std::unique_ptr<Sampler> make_nearest_rows(Fields& fields) {
  Settings settings{
      fields.count("num_negatives", 0),
      fields.count("num_random", 0),
      fields.count("num_bits", 0, 0),
      fields.count("num_tables", 1, 1),
      static_cast<uint64_t>(fields.count("hash_seed", 0, 0)),
      fields.count("fingerprint", 0, 0),
      fields.flag("of_words", false)};
  // Rows are hashed by it, which the server does; a query's length changes no sign.
  fields.number("norm_bound", 0);
  if (settings.num_random > settings.num_negatives)
    fields.fail(
        "num_random is " + std::to_string(settings.num_random) + "; expected 0 to num_negatives, which is " +
        std::to_string(settings.num_negatives));
  if (settings.num_bits > kMaxBits || settings.num_tables > kMaxTables)
    fields.fail(
        "num_bits is " + std::to_string(settings.num_bits) + " and num_tables " + std::to_string(settings.num_tables) +
        "; expected at most " + std::to_string(kMaxBits) + " and " + std::to_string(kMaxTables));
  if (const int64_t own = fingerprint_of(settings); own != settings.fingerprint)
    fields.fail(
        "the hash functions of seed " + std::to_string(settings.hash_seed) + " have the fingerprint " +
        std::to_string(own) + " here, the plan says " + std::to_string(settings.fingerprint) +
        ": client and server are of different versions, or the plan is damaged");
  return std::make_unique<NearestRows>(settings);
}

}  // namespace fedss
