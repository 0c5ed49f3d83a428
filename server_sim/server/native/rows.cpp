// Reads and applies the rows of a round: each is fetched ahead, so that trips to memory overlap.
#include <algorithm>
#include <cmath>

#include "loops.h"

namespace fedss {
namespace {

// As in `optimizers.py`: which rule, its numbers, and its tables by the number of rounds missed.
struct Rule {
  int64_t kind;
  float learning_rate;
  float momentum;
  float momentum_rest;
  float second_momentum;
  float second_rest;
  float tau;
  // What is left of the moments, and for FedAvgM how far the weights have gone; the last entry serves all longer times.
  const float* decay;
  const float* second_decay;
  const float* travel;
  int64_t last_decay;
  int64_t last_second_decay;
  // FedAdam's rounds without a difference, of which later ones change nothing.
  const float* step_decay;
  const float* second_step_decay;
  int64_t worthwhile;
};

// Weights and moments of a row side by side, and the round at whose start it is right.
struct Table {
  float* records;
  int64_t* current_at;
  int64_t dim;
};

FEDSS_INLINE int64_t clipped(int64_t rounds, int64_t last) { return std::clamp<int64_t>(rounds, 0, last); }

struct FedAvg {
  static constexpr int64_t parts = 1;
  static FEDSS_INLINE void drift(const Rule&, const float* record, int64_t dim, int64_t, float* weights) {
    for (int64_t j = 0; j < dim; ++j) weights[j] = record[j];
  }
  static FEDSS_INLINE void apply(
      const Rule& rule, float* __restrict record, int64_t dim, int64_t, const float* __restrict delta) {
    for (int64_t j = 0; j < dim; ++j) record[j] += rule.learning_rate * delta[j];
  }
};

struct FedAvgM {
  static constexpr int64_t parts = 2;
  static FEDSS_INLINE void drift(
      const Rule& rule, const float* __restrict record, int64_t dim, int64_t missed, float* __restrict weights) {
    const float travel = rule.travel[clipped(missed, rule.last_decay)];
    for (int64_t j = 0; j < dim; ++j) weights[j] = record[j] + travel * record[dim + j];
  }
  static FEDSS_INLINE void apply(
      const Rule& rule, float* __restrict record, int64_t dim, int64_t missed, const float* __restrict delta) {
    const int64_t at = clipped(missed, rule.last_decay);
    const float travel = rule.travel[at], decay = rule.decay[at];
    float* __restrict velocity = record + dim;
    for (int64_t j = 0; j < dim; ++j) {
      const float weight = record[j] + travel * velocity[j];
      const float moved = velocity[j] * decay * rule.momentum + delta[j];
      velocity[j] = moved;
      record[j] = weight + rule.learning_rate * moved;
    }
  }
};

struct FedAdam {
  static constexpr int64_t parts = 3;
  static FEDSS_INLINE void drift(
      const Rule& rule, const float* __restrict record, int64_t dim, int64_t missed, float* __restrict weights) {
    for (int64_t j = 0; j < dim; ++j) weights[j] = record[j];
    const float* first = record + dim;
    const float* second = record + 2 * dim;
    const int64_t played = std::min(missed, rule.worthwhile);
    for (int64_t step = 0; step < played; ++step) {
      const float decay = rule.step_decay[step], second_decay = rule.second_step_decay[step];
      for (int64_t j = 0; j < dim; ++j) {
        weights[j] += rule.learning_rate * (first[j] * decay) / (std::sqrt(second[j] * second_decay) + rule.tau);
      }
    }
  }
  static FEDSS_INLINE void apply(
      const Rule& rule, float* __restrict record, int64_t dim, int64_t missed, const float* __restrict delta) {
    float* __restrict first = record + dim;
    float* __restrict second = record + 2 * dim;
    const int64_t played = std::min(missed, rule.worthwhile);
    for (int64_t step = 0; step < played; ++step) {
      const float decay = rule.step_decay[step], second_decay = rule.second_step_decay[step];
      for (int64_t j = 0; j < dim; ++j) {
        record[j] += rule.learning_rate * (first[j] * decay) / (std::sqrt(second[j] * second_decay) + rule.tau);
      }
    }
    const float decay = rule.decay[clipped(missed, rule.last_decay)];
    const float second_decay = rule.second_decay[clipped(missed, rule.last_second_decay)];
    for (int64_t j = 0; j < dim; ++j) {
      first[j] = first[j] * decay * rule.momentum + rule.momentum_rest * delta[j];
      second[j] = second[j] * second_decay * rule.second_momentum + rule.second_rest * delta[j] * delta[j];
      record[j] += rule.learning_rate * first[j] / (std::sqrt(second[j]) + rule.tau);
    }
  }
};

template <typename Optimizer>
FEDSS_INLINE void read(
    const Rule& rule, const Table& table, const int64_t* ids, int64_t count, int64_t round, float* weights) {
  constexpr bool drifts = Optimizer::parts > 1;
  const int64_t width = Optimizer::parts * table.dim, bytes = width * static_cast<int64_t>(sizeof(float));
  const auto fetch_row = [&](int64_t id) {
    fetch<false>(table.records + id * width, bytes);
    if (drifts) fetch<false>(table.current_at + id, sizeof(int64_t));
  };
  for (int64_t i = 0; i < std::min(kAhead, count); ++i) fetch_row(ids[i]);
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) fetch_row(ids[i + kAhead]);
    const int64_t missed = drifts ? round - table.current_at[ids[i]] : 0;
    Optimizer::drift(rule, table.records + ids[i] * width, table.dim, missed, weights + i * table.dim);
  }
}

template <typename Optimizer>
FEDSS_INLINE void apply(
    const Rule& rule, const Table& table, const int64_t* ids, int64_t count, int64_t round, const float* delta) {
  const int64_t width = Optimizer::parts * table.dim, bytes = width * static_cast<int64_t>(sizeof(float));
  const auto fetch_row = [&](int64_t id) {
    fetch<true>(table.records + id * width, bytes);
    fetch<true>(table.current_at + id, sizeof(int64_t));
  };
  for (int64_t i = 0; i < std::min(kAhead, count); ++i) fetch_row(ids[i]);
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) fetch_row(ids[i + kAhead]);
    const int64_t missed = round - table.current_at[ids[i]];
    Optimizer::apply(rule, table.records + ids[i] * width, table.dim, missed, delta + i * table.dim);
    table.current_at[ids[i]] = round + 1;
  }
}

}  // namespace
}  // namespace fedss

// All return the place of the first id that is no row, and have done nothing then; or -1.
extern "C" {

FEDSS_CLONES int64_t fedss_read_rows(
    const fedss::Rule* rule, float* records, int64_t* current_at, int64_t num_rows, int64_t dim, const int64_t* ids,
    int64_t count, int64_t round, float* weights) {
  const int64_t outside = fedss::first_outside(ids, count, num_rows);
  if (outside >= 0) return outside;
  const fedss::Table table{records, current_at, dim};
  switch (rule->kind) {
    case 0: fedss::read<fedss::FedAvg>(*rule, table, ids, count, round, weights); break;
    case 1: fedss::read<fedss::FedAvgM>(*rule, table, ids, count, round, weights); break;
    default: fedss::read<fedss::FedAdam>(*rule, table, ids, count, round, weights); break;
  }
  return -1;
}

FEDSS_CLONES int64_t fedss_apply_rows(
    const fedss::Rule* rule, float* records, int64_t* current_at, int64_t num_rows, int64_t dim, const int64_t* ids,
    int64_t count, int64_t round, const float* delta) {
  const int64_t outside = fedss::first_outside(ids, count, num_rows);
  if (outside >= 0) return outside;
  const fedss::Table table{records, current_at, dim};
  switch (rule->kind) {
    case 0: fedss::apply<fedss::FedAvg>(*rule, table, ids, count, round, delta); break;
    case 1: fedss::apply<fedss::FedAvgM>(*rule, table, ids, count, round, delta); break;
    default: fedss::apply<fedss::FedAdam>(*rule, table, ids, count, round, delta); break;
  }
  return -1;
}
}
