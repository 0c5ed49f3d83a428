"""NegOnly (Eq. 7): as FedSS, but a client's other positives push nothing away."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ondevice.contract.choice import Choice
from server_sim.schemes.client_scheme import ClientScheme


class NegativesOnly(ClientScheme):
    label: ClassVar[str] = "NegOnly"
    name: Literal["negatives_only"] = "negatives_only"
    num_negatives: int = Field(80, ge=0, description="|N_k|, drawn anew for every client and round.")

    def sampler(self) -> Choice:
        return Choice("uniform_negatives", {"num_negatives": self.num_negatives, "exclude_positives": True})

    @property
    def method(self) -> str:
        return f"{self.label} {self.num_negatives}"
