"""How a population is split: sizes, classes per client, and how far clients are from the whole (EMD).

The earthmover's distance is that of "Federated Visual Classification with Real-World Data Distribution", section 6.1:
with q_i the class distribution of client i and p = sum_i n_i/n q_i that of the population,

    EMD_i = ||q_i - p||_1,  in [0, 2],    EMD = sum_i n_i/n EMD_i.

0 says that every client is a small copy of the whole; Landmarks-User-160k has 1.94.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from server_sim.data.population import Population


@dataclass(frozen=True)
class Spread:
    """The range of a quantity over the clients."""

    min: int
    median: float
    mean: float
    max: int


@dataclass(frozen=True)
class PartitionStatistics:
    name: str
    num_clients: int
    num_classes: int
    num_train_examples: int
    num_test_examples: int
    examples_per_client: Spread
    classes_per_client: Spread
    mean_emd: float  # weighted by the clients' sizes


@dataclass(frozen=True)
class ClientFigures:
    """One entry per client, from which the statistics are made."""

    num_examples: NDArray[np.int64]
    num_classes: NDArray[np.int64]
    emd: NDArray[np.float64]


def client_figures(population: Population) -> ClientFigures:
    num_examples = np.array([population.num_examples(client) for client in population.client_ids])
    counts = np.bincount(population.train.labels, minlength=population.num_classes)
    whole = counts / counts.sum()  # p: [num_classes]
    num_classes = np.empty_like(num_examples)
    emd = np.empty(len(num_examples))
    for client in population.client_ids:
        held, counts = np.unique(population.client_examples(client).labels, return_counts=True)
        own = counts / counts.sum()  # q_i on the classes it holds; elsewhere q_i is 0 and |q_i - p| is p
        emd[client] = np.abs(own - whole[held]).sum() + (1 - whole[held].sum())
        num_classes[client] = len(held)
    return ClientFigures(num_examples, num_classes, np.clip(emd, 0, 2))  # rounding may leave -1e-16


def describe_partition(population: Population) -> PartitionStatistics:
    figures = client_figures(population)
    return PartitionStatistics(
        name=population.name,
        num_clients=len(population.client_ids),
        num_classes=population.num_classes,
        num_train_examples=len(population.train),
        num_test_examples=len(population.test),
        examples_per_client=_spread(figures.num_examples),
        classes_per_client=_spread(figures.num_classes),
        mean_emd=_mean_emd(figures),
    )


def plot(population: Population, path: Path) -> None:
    """Histograms over the clients: examples, classes, and distance from the whole."""
    figures = client_figures(population)
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    _histogram(
        axes[0], figures.num_examples, _whole_bins(figures.num_examples), "examples per client", "#4c78a8"
    )
    _histogram(
        axes[1], figures.num_classes, _whole_bins(figures.num_classes), "classes per client", "#59a14f"
    )
    _histogram(axes[2], figures.emd, np.linspace(0, 2, 41), "distance from the population (EMD)", "#e17c4a")
    _mark(axes[0], float(figures.num_examples.mean()), "mean {:.0f}")
    _mark(axes[1], float(figures.num_classes.mean()), "mean {:.0f}")
    _mark(axes[2], _mean_emd(figures), "weighted mean {:.2f}")
    axes[0].set_ylabel("clients")
    figure.suptitle(
        f"{population.name}:  {len(population.train):,} images of {population.num_classes:,} classes "
        f"with {len(population.client_ids):,} clients",
        fontweight="bold",
    )
    figure.savefig(path, dpi=150)


def _spread(values: NDArray[np.int64]) -> Spread:
    return Spread(int(values.min()), float(np.median(values)), float(values.mean()), int(values.max()))


def _mean_emd(figures: ClientFigures) -> float:
    return float(np.average(figures.emd, weights=figures.num_examples))


def _whole_bins(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Some 30 bins from 0 to the largest value, each of the same number of whole numbers."""
    width = -(-int(values.max()) // 30)
    return np.arange(0, values.max() + width + 1, width) - 0.5


def _histogram(
    axis: Axes,
    values: NDArray[np.int64] | NDArray[np.float64],
    bins: NDArray[np.float64],
    label: str,
    colour: str,
) -> None:
    axis.hist(values, bins=bins.tolist(), color=colour, edgecolor="white", linewidth=0.4)
    axis.set_xlim(bins[0], bins[-1])
    axis.set_xlabel(label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.25)
    axis.set_axisbelow(True)
    axis.margins(y=0.18)  # room for the mark's words


def _mark(axis: Axes, value: float, words: str) -> None:
    axis.axvline(value, color="#333333", linestyle="--", linewidth=1)
    left_half = value < sum(axis.get_xlim()) / 2
    axis.annotate(
        words.format(value),
        xy=(value, 0.97),
        xycoords=axis.get_xaxis_transform(),
        xytext=(5 if left_half else -5, 0),
        textcoords="offset points",
        ha="left" if left_half else "right",
        va="top",
    )
