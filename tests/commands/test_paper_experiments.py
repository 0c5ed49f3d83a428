"""Every experiment on images, those named after a paper's table or figure and all others: a run of it runs on tiny data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.data.published_formats import PUBLISHED
from helpers.federations.experiment_runs import TINY, runs_of

import fedss
from ondevice.contract.vocabulary import IntArray
from ondevice.tools.cache_folder import default_cache_folder
from server_sim.experiment import experiment_names
from server_sim.runs.records import read_run
from server_sim.runs.trained_model import TrainedModel, open_trained

PAPERS = ("fedss-", "fedvc-")
IMAGES = ("glyphs-", "icons-")
NAMED = [name for name in experiment_names() if name.startswith(PAPERS)]
SMALL = [name for name in NAMED if name.endswith("-small")]
SMALL += [name for name in experiment_names() if name.startswith(IMAGES)]
FULL = [name for name in NAMED if not name.endswith("-small")]
ELSEWHERE = ("hashing-", "chitchat-", "debian-xc-", "fedmlh-", "eurlex-", "wiki10-", "lf-")
"""On texts and on examples of several classes: `test_text_experiments` and `tests/claims/test_fedmlh` are about those."""
CIFAR = ("cifar-10", "cifar-100")


def test_there_is_one_for_every_table() -> None:
    tables = {f"fedss-table{number}" for number in (1, 2, 3, 4)}
    tables |= {f"fedvc-table{number}" for number in (2, 3, 4, 5)}
    assert {name for table in tables for name in (table, f"{table}-small")} <= set(NAMED)


def test_every_shipped_experiment_is_run_by_a_test() -> None:
    left = set(experiment_names()) - {*SMALL, *FULL}
    assert all(name.startswith(ELSEWHERE) for name in left), left


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Data set -> a folder with a tiny one in its published format, written once."""
    folder = tmp_path_factory.mktemp("published")

    def source(name: str) -> Path:
        if not (folder / name).exists():
            PUBLISHED[name](folder / name)
        return folder / name

    return source


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_the_first_run_on_published_files_runs_two_rounds(
    name: str, published: Callable[[str], Path], tmp_path: Path
) -> None:
    """The data set of the experiment, its network but for the size of the images, and two clients in a round."""
    experiment = runs_of(name)[0]
    data = experiment.data.population
    changes = {**TINY, "data.source": str(published(data))}
    if data not in CIFAR:
        changes["data.augmentation"] = {"name": "random_crop", "resized": 36, "size": 32}
    else:
        changes["data.partition.num_clients"] = 4
    run = fedss.simulate(experiment.overridden(changes), out=tmp_path / "run", cache=tmp_path / "cache")
    assert len(run.rounds) == 2
    assert [line.num_updates for line in run.rounds] == [2, 2]
    assert 0 <= run.curve[-1][1] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_the_first_run_of_a_small_one_runs_two_rounds(name: str, tmp_path: Path) -> None:
    experiment = runs_of(name)[0].overridden({**TINY, "data.population": "glyphs-tiny"})
    run = fedss.simulate(experiment, out=tmp_path / "run")
    assert len(run.rounds) == 2
    assert run.rounds[-1].num_updates == 2
    assert 0 <= run.curve[-1][1] <= 1


def test_the_accuracy_on_the_training_split_is_that_of_a_plain_loop(tmp_path: Path) -> None:
    experiment = runs_of("fedss-table4-small")[0].overridden({**TINY, "data.population": "glyphs-tiny"})
    run = fedss.simulate(experiment, out=tmp_path / "run")
    model = open_trained(read_run(run.path), default_cache_folder())
    train = model.population.train
    assert run.summary["train_top1"] == float(np.mean(nearest_columns(model) == train.labels))


def nearest_columns(model: TrainedModel) -> IntArray:
    """For every training example the class whose column has the largest cosine."""
    columns = model.columns(np.arange(model.population.num_classes))
    directions = [column / np.linalg.norm(column) for column in columns]
    embeddings = model.embeddings(model.population.train)
    return np.array([int(np.argmax([row @ direction for direction in directions])) for row in embeddings])
