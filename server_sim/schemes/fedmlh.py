"""FedMLH (Dai et al. 2021): classes are hashed into a few small tables, and a sub-model is trained for every table.

The server makes R hash functions of the run's `hash_seed` and broadcasts them (Algorithm 2, lines 2-3); clients hash their
labels, train all sub-models in one step and answer with all of them, so the mean of each is taken by itself (lines 16-18).
The model has R B outputs instead of one per class.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ondevice.contract.choice import Choice
from ondevice.contract.hashing.label_hashes import MOST_TABLES, PRIME, LabelHashes
from server_sim.schemes.scheme import Scheme

if TYPE_CHECKING:
    from ondevice.contract.vocabulary import StepSpec
    from server_sim.data.population import Population


class FedMLH(Scheme):
    label: ClassVar[str] = "FedMLH"
    name: Literal["fedmlh"] = "fedmlh"
    num_tables: int = Field(4, ge=1, le=MOST_TABLES, description="R: hash functions, and sub-models.")
    num_buckets: int = Field(1000, ge=1, lt=PRIME, description="B: outputs of every sub-model.")
    hash_seed: int = Field(
        0, ge=0, lt=1 << 63, description="Of the hash functions, which runs of several seeds share."
    )

    @property
    def hashes(self) -> LabelHashes:
        return LabelHashes(self.num_tables, self.num_buckets, self.hash_seed)

    def sampler(self) -> Choice:
        settings = {
            "num_tables": self.num_tables,
            "num_buckets": self.num_buckets,
            "seed": self.hash_seed,
            "fingerprint": self.hashes.fingerprint,
        }
        return Choice("label_hashes", settings)

    def shaped(self, spec: StepSpec, population: Population) -> StepSpec:  # noqa: ARG002 - hashes take any class
        arguments = {**spec.architecture_arguments, "sub_models": self.num_tables}
        return replace(spec, embedding_dim=self.hashes.num_outputs, architecture_arguments=arguments)

    @property
    def title(self) -> str:
        return f"{self.label} {self.num_tables} x {self.num_buckets}"
