"""Every experiment on texts: a run of every scheme in it runs on tiny texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.data.stack_overflow_files import write_stack_overflow
from helpers.data.tiny_texts import import_tiny_chats
from helpers.federations.experiment_runs import TINY, runs_of

import fedss
from ondevice.contract.tokens import NUM_SPECIAL
from server_sim.experiment import Experiment, experiment_names, load_experiment
from server_sim.schemes.nearest import Nearest

NAMED = [name for name in experiment_names() if name.startswith(("hashing-", "chitchat-"))]
SMALL = [name for name in NAMED if load_experiment(name).data.population in ("chitchat", "rfc")]
PUBLISHED = [name for name in NAMED if name not in SMALL]


def one_of_each(name: str) -> list[Experiment]:
    """Of the runs that differ in numbers alone, the first."""
    found: dict[tuple[object, ...], Experiment] = {}
    for run in runs_of(name):
        kind = (run.data.population, run.scheme.name, getattr(run.scheme, "search", None))
        found.setdefault(kind, run)
    return list(found.values())


def check_two_rounds(experiment: Experiment, folder: Path, cache: Path | None = None) -> None:
    run = fedss.simulate(experiment, out=folder, cache=cache)
    assert [line.num_updates for line in run.rounds] == [2, 2], run.summary
    assert np.isfinite(run.summary["mean_loss"])
    assert 0 <= run.curve[-1][1] <= 1


def test_every_one_of_the_papers_has_a_small_variant_or_is_one() -> None:
    assert {"hashing-figure1a", "hashing-figure1b", "hashing-table2", "hashing-grid"} == set(PUBLISHED)
    assert {"hashing-figure1-small", "hashing-figure1-80k-small", "hashing-grid-small"} < set(SMALL)
    assert {"hashing-table2-small", "hashing-table2-80k-small"} < set(SMALL)
    assert {"chitchat-simhash", "chitchat-uniform"} < set(SMALL)


def test_hashing_and_uniform_sampling_differ_in_nothing_but_how_words_are_found() -> None:
    simhash, uniform = (
        load_experiment(f"chitchat-{name}").model_dump(mode="json") for name in ("simhash", "uniform")
    )
    assert simhash["scheme"]["num_negatives"] == uniform["scheme"]["num_negatives"]
    assert {key for key in simhash if simhash[key] != uniform[key]} == {"title", "scheme"}


@pytest.mark.parametrize("name", ["figure1a", "figure1b", "table2", "grid"])
def test_the_papers_sizes_have_the_loss_and_the_sampler_that_were_measured_in_small(name: str) -> None:
    def settings(experiment: str) -> set[tuple[object, ...]]:
        return {
            (
                run.model.logits,
                run.model.objective,
                scheme.name,
                scheme.search,
                scheme.num_random,
                scheme.norm_bound,
            )
            for run in runs_of(experiment)
            if isinstance(scheme := run.scheme, Nearest)
        }

    assert settings(f"hashing-{name}") == settings(f"hashing-{name.rstrip('ab')}-small")


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return import_tiny_chats(tmp_path_factory.mktemp("chats"))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Data set -> its files, with as many words as the published ones are cut to."""
    folder = tmp_path_factory.mktemp("published")

    def source(name: str) -> Path:
        num_tokens = {"stack-overflow-10k": 10_000, "stack-overflow-80k": 80_000}[name]
        if not (folder / name).exists():
            write_stack_overflow(num_tokens - NUM_SPECIAL, folder / name)
        return folder / name

    return source


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_scheme_of_it_runs_two_rounds_on_tiny_chats(name: str, chats: Path, tmp_path: Path) -> None:
    for number, experiment in enumerate(one_of_each(name)):
        changes = {**TINY, "data.population": str(chats)}
        check_two_rounds(experiment.overridden(changes), tmp_path / f"run-{number}")


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_first_run_on_published_files_runs_two_rounds(
    name: str, published: Callable[[str], Path], tmp_path: Path
) -> None:
    experiment = runs_of(name)[0]
    changes = {**TINY, "data.source": str(published(experiment.data.population))}
    check_two_rounds(experiment.overridden(changes), tmp_path / "run", tmp_path / "cache")


@pytest.mark.slow
def test_a_federation_learns_the_same_with_several_lengths(chats: Path, tmp_path: Path) -> None:
    losses = []
    for name, lengths in (("one", []), ("several", [4, 8, 20])):
        changes = {**TINY, "data.population": str(chats), "model.lengths": lengths}
        experiment = load_experiment("chitchat-uniform").overridden(changes)
        run = fedss.simulate(experiment, out=tmp_path / name, runtime="onnxruntime")
        losses.append([line.mean_loss for line in run.rounds])
    artifact = fedss.open_artifact(tmp_path / "several" / "artifact")
    assert artifact.manifest.lengths is not None
    assert artifact.manifest.lengths.sizes == (4, 8, 20)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
