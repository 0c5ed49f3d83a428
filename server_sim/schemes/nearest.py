"""Sparse federated learning by hashing ("Adaptive Sparse Federated Learning in Large Output Spaces via Hashing").

The server keeps the classifier's rows in hash tables, and every client trains the rows near its own data, with some drawn
uniformly beside them: `ondevice.client.samplers.nearest_rows` has the client's part, step by step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ondevice.client.samplers.nearest_rows import fingerprint_of
from ondevice.contract.choice import Choice
from ondevice.contract.hashing.simhash import MAX_BITS, SimHash
from ondevice.contract.vocabulary import COLUMNS
from server_sim.schemes.client_scheme import ClientScheme
from server_sim.server.graph_index import GraphIndex, check_installed
from server_sim.server.row_index import ExactIndex, HashIndex, RowIndex

if TYPE_CHECKING:
    from server_sim.server.state import ServerState


class Nearest(ClientScheme):
    label: ClassVar[str] = "Hashing"
    name: Literal["nearest"] = "nearest"
    num_negatives: int = Field(80, ge=0, description="Rows beside a client's own.")
    num_random: int = Field(
        20,
        ge=0,
        description="How many of them at least are drawn uniformly, so that no class is out of reach.",
    )
    search: Literal["simhash", "graph", "exact"] = Field(
        "simhash",
        description="How the others are found: by hash tables; by a graph of near rows, made anew in every round, which "
        'needs the clients\' embeddings and faiss (`pip install "fedss-mobile[index]"`); or by all inner products, which '
        "needs the embeddings and takes time with n: the bound from above.",
    )
    num_bits: int = Field(
        8, ge=1, le=MAX_BITS, description="K: bits of a hash, of which a table has 2^K buckets."
    )
    num_tables: int = Field(8, ge=1, le=64, description="L: hash tables.")
    hash_seed: int = Field(
        0, ge=0, lt=1 << 63, description="Of the hash functions, which server and clients make alike."
    )
    norm_bound: float = Field(
        0.0,
        ge=0,
        description="Above 0: tables find rows by inner product, taking none for longer than this; else by angle.",
    )
    max_found: int = Field(
        1000, ge=1, description="The most rows that a look-up is answered with; the client keeps the nearest."
    )
    of_words: bool = Field(
        False, description="Whether the table's rows are words that texts are read from too."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.num_random > self.num_negatives:
            raise ValueError(
                f"num_random is {self.num_random}, more than num_negatives ({self.num_negatives})"
            )
        if self.max_found < self.num_negatives - self.num_random:
            raise ValueError(
                f"max_found is {self.max_found}, less than the {self.num_negatives - self.num_random} rows that a client is "
                "to keep of what is found; raise it, or num_random"
            )
        return self

    def check_installed(self) -> None:
        if self.search == "graph":
            check_installed()

    def sampler(self) -> Choice:
        num_bits = self.num_bits if self.search == "simhash" else 0
        return Choice(
            "nearest_rows",
            {
                "num_negatives": self.num_negatives,
                "num_random": self.num_random,
                "num_bits": num_bits,
                "num_tables": self.num_tables,
                "hash_seed": self.hash_seed,
                "fingerprint": fingerprint_of(num_bits, self.num_tables, self.hash_seed),
                "norm_bound": self.norm_bound,
                "of_words": self.of_words,
            },
        )

    def open_index(self, state: ServerState) -> RowIndex:
        table = state.tables[COLUMNS]
        if self.search == "exact":
            return ExactIndex(table, self.max_found, by_angle=not self.norm_bound)
        if self.search == "graph":
            return GraphIndex(table, self.max_found, by_angle=not self.norm_bound)
        simhash = SimHash(self.num_bits, self.num_tables, table.dim, self.hash_seed, self.norm_bound or None)
        return HashIndex(table, simhash, self.max_found)

    @property
    def method(self) -> str:
        found = f"K = {self.num_bits}, L = {self.num_tables}" if self.search == "simhash" else self.search
        return f"{self.label} {self.num_negatives} ({found})"
