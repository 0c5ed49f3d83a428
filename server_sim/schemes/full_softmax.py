"""FullSoftmax (Eq. 2): every client gets every class: what FedSS approaches with a small part of them."""

from __future__ import annotations

from typing import ClassVar, Literal

from ondevice.contract.choice import Choice
from server_sim.schemes.client_scheme import ClientScheme


class FullSoftmax(ClientScheme):
    label: ClassVar[str] = "FullSoftmax"
    name: Literal["full_softmax"] = "full_softmax"

    def sampler(self) -> Choice:
        return Choice("all_rows")
