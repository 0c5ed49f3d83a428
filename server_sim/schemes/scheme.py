"""What a scheme is: a named combination of sampler, weighting and server hooks, with settings of its own.

The fields of a scheme are exactly its settings, so a setting that a scheme does not use does not exist in its experiments.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from ondevice.contract.choice import Choice

if TYPE_CHECKING:
    from ondevice.backends import Backend
    from ondevice.contract.vocabulary import StepSpec
    from server_sim.data.population import Population
    from server_sim.experiment import Experiment
    from server_sim.server.aggregation import AggregatedUpdate
    from server_sim.server.client_selection import Selection
    from server_sim.server.row_index import RowIndex
    from server_sim.server.state import ServerState, SideTable


@dataclass(frozen=True)
class RoundContext:
    """What a scheme may use to play a round."""

    experiment: Experiment
    population: Population
    backend: Backend
    """Of the server: it evaluates, and trains where there are no clients."""
    state: ServerState
    federated_round: Callable[[], dict[str, Any]]
    """Choose clients, hold their conversations, apply the mean; the round's line of metrics."""


class Scheme(BaseModel):
    """A scheme by name; its settings are its fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: ClassVar[str]
    """Its name in tables and figures."""
    name: str = Field(
        "fedss",
        description="What the federation does: `fedss`, `fedss_words`, `negatives_only`, `positives_only`, `fedaws`, "
        "`nearest`, `full_softmax`, `fedmlh`, `fedavg_labels` or `centralized`.  The settings of a scheme stand beside its "
        "name.",
    )

    @staticmethod
    def members() -> tuple[type[Scheme], ...]:
        """Every registered scheme: an experiment's `scheme` section is one of them."""
        from server_sim.schemes import SCHEMES  # which imports this file

        return tuple(SCHEMES.values())

    def check_installed(self) -> None:
        """ValueError where this machine lacks what the scheme needs."""

    @abstractmethod
    def sampler(self) -> Choice | None:
        """Which rows the clients ask for; None where there are no clients."""

    def weighting(self) -> Choice:
        """Which examples they train on, with which weights."""
        return Choice("uniform")

    def sides(self, population: Population) -> Mapping[str, SideTable]:  # noqa: ARG002
        """What clients are told of the rows they hold, beside the model."""
        return {}

    def shaped(self, spec: StepSpec, population: Population) -> StepSpec:  # noqa: ARG002
        """The step that the experiment's model asks for, where the scheme has a say in its outputs."""
        return spec

    @property
    def selection(self) -> Selection:
        """How clients are chosen where an experiment leaves it to the scheme."""
        return "uniform"

    def most_examples(self, largest_client: int) -> int:
        """The most examples that an honest client can train on, given what the largest of them holds."""
        return largest_client

    def play(self, context: RoundContext) -> dict[str, Any]:
        """One round, from choosing clients to the new state."""
        return context.federated_round()

    def before_apply(self, mean: AggregatedUpdate, state: ServerState) -> AggregatedUpdate:  # noqa: ARG002
        """The server's say between the mean and the optimizer."""
        return mean

    def open_index(self, state: ServerState) -> RowIndex | None:  # noqa: ARG002
        """What answers clients that look rows up before they ask for them; None where none do."""
        return None

    @property
    def title(self) -> str:
        """The label with what tells two runs of the scheme apart."""
        return self.label
