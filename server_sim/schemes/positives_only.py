"""PosOnly (Eq. 8): a client's own classes and no others."""

from __future__ import annotations

from typing import ClassVar, Literal

from ondevice.contract.choice import Choice
from server_sim.schemes.client_scheme import ClientScheme


class PositivesOnly(ClientScheme):
    label: ClassVar[str] = "PosOnly"
    name: Literal["positives_only"] = "positives_only"

    def sampler(self) -> Choice:
        return Choice("positives")
