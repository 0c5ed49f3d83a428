"""What schemes whose clients have classes of their own may be combined with: virtual clients (FedVC) and importance
weights (FedIR).

Both are of "Federated Visual Classification with Real-World Data Distribution" (Hsu, Qi and Brown 2020).  They say which
examples clients train on, and with which weights; which rows they ask for, and how the server applies the mean, is told
elsewhere.  So both go with every sampler, every server optimizer, and with each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from ondevice.client.weightings.importance import CLASS_SHARE
from ondevice.contract.choice import Choice
from ondevice.contract.vocabulary import COLUMNS
from server_sim.schemes.scheme import Scheme
from server_sim.server.client_selection import Selection
from server_sim.server.state import SideTable

if TYPE_CHECKING:
    from server_sim.data.population import Population


class ClientScheme(Scheme):
    """A scheme whose clients train on examples of their own."""

    virtual_clients: int = Field(
        0,
        ge=0,
        le=10**9,
        description="FedVC: the examples that every client draws anew for a round, N_VC; with 0 it takes each of its own.",
    )
    importance: Literal["off", "population", "uniform"] = Field(
        "off",
        description="FedIR: the distribution of classes that every client's loss is weighed towards, that of all clients "
        "together or all classes alike.",
    )

    def weighting(self) -> Choice:
        if self.importance != "off":
            return Choice("importance", {"num_examples": self.virtual_clients})
        if self.virtual_clients:
            return Choice("virtual_clients", {"num_examples": self.virtual_clients})
        return Choice("uniform")

    def sides(self, population: Population) -> Mapping[str, SideTable]:
        if self.importance == "off":
            return {}
        num_classes = population.num_classes
        counts = np.bincount(population.train.labels, minlength=num_classes)
        target = counts if self.importance == "population" else np.ones(num_classes)
        return {CLASS_SHARE: SideTable(COLUMNS, (target / target.sum()).astype(np.float32))}

    @property
    def selection(self) -> Selection:
        """By their examples, or those of large clients would hardly be seen."""
        return "proportional" if self.virtual_clients else "uniform"

    def most_examples(self, largest_client: int) -> int:
        return self.virtual_clients or largest_client

    @property
    def method(self) -> str:
        """Its part of the title, without what it is combined with."""
        return self.label

    @property
    def title(self) -> str:
        parts = [self.method]
        if self.virtual_clients:
            parts.append(f"FedVC {self.virtual_clients}")
        if self.importance != "off":
            parts.append("FedIR" if self.importance == "population" else "FedIR uniform")
        return " + ".join(parts)
