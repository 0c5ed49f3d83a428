"""FedSS (Eq. 5): a client's classes, and negatives drawn uniformly from the others."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ondevice.contract.choice import Choice
from server_sim.schemes.client_scheme import ClientScheme


class FedSS(ClientScheme):
    label: ClassVar[str] = "FedSS"
    name: Literal["fedss"] = "fedss"
    num_negatives: int = Field(80, ge=0, description="|N_k|, drawn anew for every client and round.")

    def sampler(self) -> Choice:
        return Choice("uniform_negatives", {"num_negatives": self.num_negatives})

    @property
    def method(self) -> str:
        return f"{self.label} {self.num_negatives}"
