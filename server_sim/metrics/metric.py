"""A metric: one or several numbers about the global model, from a look at it between two rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ondevice.backends import Backend
from ondevice.client.embedding import ReadRows, embed_examples, embedded_blocks
from ondevice.contract.vocabulary import ExampleSet, FloatArray, Parameters

if TYPE_CHECKING:
    from server_sim.data.population import Population
    from server_sim.experiment import Experiment


@dataclass(frozen=True)
class EvaluationView:
    """The model as it stands, and what it is tried on."""

    experiment: Experiment
    population: Population
    backend: Backend
    dense: Parameters
    read_rows: ReadRows
    row_blocks: Callable[[str], Iterator[FloatArray]]
    """Table -> all of its rows, block by block: no metric needs a whole table in memory."""

    @property
    def test(self) -> ExampleSet:
        return self.population.test

    def embeddings(self) -> FloatArray:
        """Of the test examples, [N, d]."""
        return embed_examples(self.backend, self.dense, self.test, self.read_rows)

    def embedding_blocks(self) -> Iterator[tuple[slice, FloatArray]]:
        """The same, some examples after the other: where an embedding has an entry per class."""
        return embedded_blocks(self.backend, self.dense, self.test, self.read_rows)


@dataclass(frozen=True)
class Metric:
    titles: Mapping[str, str]
    """Every number that it gives, by its name in a round's line, for people.  The first is the score of the run, has the
    metric's own name, and is better the larger it is."""
    measure: Callable[[EvaluationView], dict[str, float]]

    @property
    def title(self) -> str:
        return next(iter(self.titles.values()))
