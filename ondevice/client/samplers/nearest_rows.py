"""Rows near the client's own data, found in the server's hash tables, and others drawn uniformly (section 3 of "Adaptive
Sparse Federated Learning in Large Output Spaces via Hashing").

1. The client asks for φ, and for the rows that its examples read, if any, and embeds its examples: every place of a text,
   for at every place all rows compete.
2. It hashes the embeddings and tells the server the buckets that they fall into, nothing else.
3. The server answers with the rows that lie there.
4. The client keeps those with the largest activations, `num_negatives` − `num_random` at the most.
5. Uniform draws from all other rows fill the sample up to `num_negatives`: what a client trains is of one size.

The adjustment of a logit is minus the log of the row's expected count in the sample, *given what was found*.  Own rows and
the kept ones are there for certain: 0.  Each of the R others is drawn with probability m / R: −log(m / R).  So
Σ exp(o_j + adjust_j) over the sample is an unbiased estimate of the sum over all rows, whatever the tables found: good
tables only make it vary less, since they take the large terms out of the draw.

With no random row at all (m = 0, the paper's choice wherever a look-up fills the budget) the estimate lacks the rest, and is
too small by just that: the rows that the tables did not find, and those whose largest activation over all places is below
the kept ones'.  How much that is of a trained model's sum, `fedss analyse partition-sum` tells.  A row that is left out is
not pushed down by these examples; one that grows is more likely to be found and kept the next time.  Few random rows beside
many that were not found have a weight of R / m each: unbiased, and noisier than a draw of all rows would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ondevice.client.samplers.sampling import (
    SamplingView,
    columns_sample,
    own_words,
    positives_of,
    read_words,
)
from ondevice.client.samplers.uniform_negatives import draw_negatives
from ondevice.contract.hashing.simhash import SimHash
from ondevice.contract.messages.lookup import Lookup
from ondevice.contract.portable_random import PortableRandom, Purpose
from ondevice.contract.tokens import NUM_SPECIAL
from ondevice.contract.vocabulary import COLUMNS, EXCLUDED, FloatArray, IntArray, Rows, RowSample

_QUERIES = 128
"""Whose products with all rows that were found are in memory at a time."""


@dataclass(frozen=True)
class NearestRows:
    """P_k, rows near the client's embeddings, and others."""

    num_negatives: int
    """Rows beside the client's own."""
    num_random: int
    """How many of these are drawn uniformly at least."""
    num_bits: int = 0
    """K of the hash tables; with 0 the server searches by the embeddings themselves."""
    num_tables: int = 1
    """L of the hash tables."""
    hash_seed: int = 0
    """Of their hash functions."""
    fingerprint: int = 0
    """Of the server's, which the client's must be: `ondevice.contract.hashing.simhash`."""
    norm_bound: float = 0.0
    """Above 0: rows are near by inner product, up to this length; else by angle."""
    of_words: bool = False
    """The table is read as well as predicted from, and its first rows are special tokens."""

    def __post_init__(self) -> None:
        if not 0 <= self.num_random <= self.num_negatives:
            raise ValueError(
                f"num_random is {self.num_random}; expected 0 to num_negatives, which is {self.num_negatives}"
            )
        if self.hash_seed < 0:
            raise ValueError(f"hash_seed is {self.hash_seed}; expected 0 or more")
        own = fingerprint_of(self.num_bits, self.num_tables, self.hash_seed)
        if self.fingerprint != own:
            raise ValueError(
                f"the hash functions of seed {self.hash_seed} have the fingerprint {own} here, the plan says "
                f"{self.fingerprint}: client and server are of different versions, or the plan is damaged"
            )
        if not 0 <= self.norm_bound < np.inf:
            raise ValueError(f"norm_bound is {self.norm_bound}; expected a finite number, 0 or more")

    def draw(self, view: SamplingView) -> RowSample:
        num_rows = view.plan.table_sizes[COLUMNS]
        own = own_words(view, num_rows) if self.of_words else positives_of(view.labels, num_rows)
        near = self._near(view, own, read_words(view, num_rows) if self.of_words else own)
        certain = np.union1d(own, near)
        num_others = num_rows - len(certain)
        count = min(self.num_negatives - len(near), num_others)
        random = PortableRandom(view.private_seed, view.plan.round_index, Purpose.NEGATIVES)
        drawn = draw_negatives(certain, count, num_rows, random)
        ids = np.union1d(certain, drawn)
        log_count = np.log(count / num_others) if count else 0.0
        adjust = np.where(np.isin(ids, drawn), -log_count, 0.0)
        if self.of_words:
            adjust[ids < NUM_SPECIAL] = EXCLUDED
        return columns_sample(ids, adjust.astype(np.float32))

    def widest(self, num_positives: int, num_rows: int) -> int:
        special = NUM_SPECIAL if self.of_words else 0
        return min(num_positives + special + self.num_negatives, num_rows)

    def _near(self, view: SamplingView, own: IntArray, read: IntArray) -> IntArray:
        """Steps 1 to 4.  What is only predicted is not told to embed, which takes no more than what is read."""
        if view.questions is None:
            raise ValueError(
                "this client cannot ask more than once in a round, as the sampler nearest_rows does"
            )
        most = self.num_negatives - self.num_random
        if not most:
            return np.empty(0, np.int64)
        embeddings = view.questions.embeddings(read)
        if not np.isfinite(embeddings).all():
            raise ValueError(
                "the embeddings of the client's examples hold NaN or infinity: the model has diverged; use a lower learning "
                "rate"
            )
        found = view.questions.look_up(self._lookup(queries_of(embeddings, view.questions.dim)))
        ids = np.setdiff1d(found.ids, own, assume_unique=True)
        if self.of_words:
            ids = ids[ids >= NUM_SPECIAL]
        values = found.values[np.searchsorted(found.ids, ids)]
        return _largest(embeddings, Rows(ids, values), most)

    def _lookup(self, queries: FloatArray) -> Lookup:
        if not self.num_bits:
            return Lookup(queries=queries)
        simhash = SimHash(
            self.num_bits, self.num_tables, queries.shape[1], self.hash_seed, self.norm_bound or None
        )
        return Lookup(np.unique(simhash.buckets_of_queries(queries)), self.fingerprint)


@lru_cache(maxsize=8)
def fingerprint_of(num_bits: int, num_tables: int, hash_seed: int) -> int:
    """What a plan says of its hash functions; 0 where it has none."""
    functions = SimHash(num_bits or 1, num_tables, 1, hash_seed)
    return functions.fingerprint if num_bits else 0


def queries_of(embeddings: FloatArray, dim: int) -> FloatArray:
    """[N, d], or [N, d + 1] where a row ends in its bias: its inner product with a query is the logit then."""
    return np.pad(embeddings, ((0, 0), (0, dim - embeddings.shape[1])), constant_values=1)


def _largest(embeddings: FloatArray, rows: Rows, most: int) -> IntArray:
    """The ids of the rows with the largest activation on any example, sorted; of equal ones the first.

    Sums are of float64 and rounded at their end: then the order in which a machine takes them hardly ever shows.
    """
    if len(rows.ids) <= most:
        return rows.ids
    values = rows.values.astype(np.float64)
    queries = queries_of(embeddings, values.shape[1])
    activations = np.full(len(values), -np.inf)
    # Some queries at a time: of a client of 256 sentences all products with 30,000 rows would take 1.2 GB.
    for start in range(0, len(queries), _QUERIES):
        np.maximum(activations, (queries[start : start + _QUERIES] @ values.T).max(0), out=activations)
    if values.shape[1] == embeddings.shape[1]:
        # Under cosine logits the length of a row does not count.
        activations /= np.maximum(np.sqrt((values * values).sum(1)), 1e-12)
    order = np.argsort(-activations.astype(np.float32), kind="stable")
    return np.sort(rows.ids[order[:most]])
