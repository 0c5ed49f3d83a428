"""FedSS over words: all that a client reads or predicts, and others drawn uniformly, from one table that serves both."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ondevice.contract.choice import Choice
from server_sim.schemes.client_scheme import ClientScheme


class FedSSWords(ClientScheme):
    label: ClassVar[str] = "FedSS, words"
    name: Literal["fedss_words"] = "fedss_words"
    num_negatives: int = Field(
        80, ge=0, description="Words beside a client's own, drawn anew in every round."
    )

    def sampler(self) -> Choice:
        return Choice("word_negatives", {"num_negatives": self.num_negatives})

    @property
    def method(self) -> str:
        return f"{self.label} {self.num_negatives}"
