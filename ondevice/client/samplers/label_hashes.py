"""FedMLH: no rows are asked for, since every client trains all of the model; a class stands for a bucket of every table.

The labels are hashed on the device (Algorithm 2, lines 4-7): what an example is trained towards is the union of its classes'
buckets, and the server learns nothing of either.
"""

from __future__ import annotations

from dataclasses import dataclass

from ondevice.client.samplers.sampling import SamplingView
from ondevice.contract.hashing import label_hashes
from ondevice.contract.vocabulary import IntArray, RowSample


@dataclass(frozen=True)
class LabelHashes:
    """The server's hash functions, as a plan tells them."""

    num_tables: int
    num_buckets: int
    seed: int
    fingerprint: int

    def __post_init__(self) -> None:
        if self.fingerprint != self._hashes.fingerprint:
            raise ValueError(
                f"the hash functions of seed {self.seed} have the fingerprint {self._hashes.fingerprint} here, the plan "
                f"says {self.fingerprint}: client and server are of different versions, or the plan is damaged"
            )

    @property
    def _hashes(self) -> label_hashes.LabelHashes:
        return label_hashes.LabelHashes(self.num_tables, self.num_buckets, self.seed)

    def outputs(self, classes: IntArray) -> IntArray:
        return self._hashes.outputs(classes)

    def draw(self, view: SamplingView) -> RowSample:  # noqa: ARG002 - every sampler is asked alike
        return RowSample({}, {}, self.outputs)

    def widest(self, num_positives: int, num_rows: int) -> int:  # noqa: ARG002 - every sampler is asked alike
        return 0
