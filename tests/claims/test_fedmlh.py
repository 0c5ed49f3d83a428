"""FedMLH as a whole: targets are unions, sub-models share nothing, precision counts what it says, and runs go through."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from helpers.data.tiny_labels import (
    BUCKETS,
    FEDAVG,
    FEDMLH,
    NUM_CLASSES,
    TABLES,
    tiny_labels,
    write_debian_index,
    write_repository_files,
)
from helpers.federations.experiment_runs import TINY, runs_of
from helpers.federations.tiny_federation import tiny_plan

import fedss
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.client.client import Client
from ondevice.client.local_training import micro_batches
from ondevice.client.samplers.class_outputs import ClassOutputs
from ondevice.client.targets import targets_of
from ondevice.contract.hashing.label_hashes import LabelHashes
from ondevice.contract.step_signature import gradient_of
from ondevice.contract.vocabulary import CLASSES, NO_CLASS, TARGETS, RowSample
from server_sim.data.fetched import debian_index
from server_sim.data.published.extreme_classification import PUBLISHED
from server_sim.experiment import load_experiment
from server_sim.metrics.metric import EvaluationView
from server_sim.metrics.precision import PRECISION, frequent_classes
from server_sim.schemes.fedavg_labels import FedAvgLabels
from server_sim.schemes.fedmlh import FedMLH

HASHES = LabelHashes(TABLES, BUCKETS, seed=2)


def test_a_bucket_s_label_is_the_union_of_its_classes() -> None:
    examples = tiny_labels(20, seed=0)
    spec = EagerBackend(FEDMLH, initial_parameters(FEDMLH, 0)).signature[TARGETS]
    found = targets_of(spec, examples.features[CLASSES], HASHES.outputs)
    for row, classes in zip(found, examples.features[CLASSES], strict=True):
        held = set(HASHES.outputs(classes[classes != NO_CLASS]).reshape(-1).tolist())
        assert set(np.flatnonzero(row).tolist()) == held
    assert set(found.reshape(-1).tolist()) == {0, 1}


def test_sub_models_share_nothing() -> None:
    """Another target for the buckets of one table changes the gradients of that table's sub-model alone."""
    weights = initial_parameters(FEDMLH, 0)
    backend = EagerBackend(FEDMLH, weights)
    dense = {name: weights[name] for name in backend.signature.dense_shapes}
    sample = RowSample({}, {}, HASHES.outputs)
    weight = np.full(4, np.float32(0.25))
    (batch,) = micro_batches(backend.signature, tiny_labels(4, seed=1), np.arange(4), weight, sample, None)
    before = backend.step({**dense, **batch})
    targets = batch[TARGETS].copy()
    targets[:, BUCKETS : 2 * BUCKETS] ^= 1
    after = backend.step({**dense, **batch, TARGETS: targets})
    for name in dense:
        same = np.array_equal(before[gradient_of(name)], after[gradient_of(name)])
        assert same != name.startswith("sub_models.1."), name


class _View(EvaluationView):
    """Logits that are given, instead of a network's."""

    logits: np.ndarray

    def embedding_blocks(self) -> Any:
        for start in range(0, len(self.logits), 7):
            yield slice(start, start + 7), self.logits[start : start + 7]


def _view(scheme: FedMLH | FedAvgLabels, logits: np.ndarray) -> _View:
    train, test = tiny_labels(200, seed=5), tiny_labels(len(logits), seed=6)
    population = SimpleNamespace(num_classes=NUM_CLASSES, train=train, test=test)
    nothing = cast(Any, None)
    view = _View(
        cast(Any, SimpleNamespace(scheme=scheme)), cast(Any, population), nothing, {}, nothing, nothing
    )
    object.__setattr__(view, "logits", logits)
    return view


@pytest.mark.parametrize("scheme", [FedMLH(num_tables=TABLES, num_buckets=BUCKETS), FedAvgLabels()])
def test_precision_counts_the_best_classes_that_an_example_has(scheme: FedMLH | FedAvgLabels) -> None:
    outputs = TABLES * BUCKETS if isinstance(scheme, FedMLH) else NUM_CLASSES
    logits = np.random.default_rng(3).standard_normal((30, outputs)).astype(np.float32)
    view = _view(scheme, logits)
    found = PRECISION.measure(view)
    assert list(found) == list(PRECISION.titles)
    frequent = frequent_classes(view.population.train.features[CLASSES], NUM_CLASSES)
    counts = np.bincount(view.population.train.features[CLASSES].clip(-1).reshape(-1) + 1)[1:]
    assert counts[frequent].sum() >= counts.sum() / 2 > np.sort(counts[frequent])[1:].sum()
    assert counts[frequent].min() >= counts[~frequent].max()
    places = scheme.hashes.outputs if isinstance(scheme, FedMLH) else ClassOutputs().outputs
    for k in (1, 3, 5):
        right, of_frequent = 0, 0
        for row, classes in zip(logits, view.test.features[CLASSES], strict=True):
            scores = [-np.log1p(np.exp(-row[places(np.array([c]))[0]])).mean() for c in range(NUM_CLASSES)]
            hits = [c for c in np.argsort(-np.array(scores))[:k].tolist() if c in classes.tolist()]
            right += len(hits)
            of_frequent += sum(bool(frequent[c]) for c in hits)
        assert found[f"p{k}"] == pytest.approx(right / (30 * k))
        assert found[f"p{k}_frequent"] == pytest.approx(of_frequent / (30 * k))
        assert found[f"p{k}_frequent"] + found[f"p{k}_infrequent"] == pytest.approx(found[f"p{k}"])
    assert found["precision"] == pytest.approx((found["p1"] + found["p3"] + found["p5"]) / 3)


def test_a_step_for_targets_refuses_a_plan_that_says_nothing_of_them() -> None:
    client = Client(0, tiny_labels(5, seed=0), 1, lambda: EagerBackend(FEDAVG, initial_parameters(FEDAVG, 0)))
    with pytest.raises(ValueError, match="gives classes no outputs; choose the scheme fedmlh"):
        client.converse(tiny_plan(), lambda _: b"")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([[NUM_CLASSES, NO_CLASS]], f"stand for outputs up to {NUM_CLASSES}; the step has {NUM_CLASSES}"),
        ([[0, -2]], "classes hold -2; expected classes from 0, and -1 behind them"),
    ],
)
def test_classes_out_of_range_are_refused(classes: list[list[int]], message: str) -> None:
    spec = EagerBackend(FEDAVG, initial_parameters(FEDAVG, 0)).signature[TARGETS]
    with pytest.raises(ValueError, match=message):
        targets_of(spec, np.array(classes), ClassOutputs().outputs)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["fedmlh", "fedavg_labels"])
@pytest.mark.parametrize("published", PUBLISHED, ids=lambda published: published.name)
def test_the_papers_sizes_run_two_rounds_on_files_in_the_real_format(
    published: Any, scheme: str, tmp_path: Path
) -> None:
    source = write_repository_files(
        tmp_path / "files", num_features=published.num_features, num_classes=published.num_classes
    )
    name = f"{published.name}-fedmlh"
    assert load_experiment(name).server.rounds == 70
    run = fedss.simulate(
        name,
        out=tmp_path / "run",
        cache=tmp_path / "cache",
        rounds=2,
        # The sizes of the paper, and as little work as they allow.
        overrides={
            "data.source": str(source),
            "scheme.name": scheme,
            "client.epochs": 1,
            "client.learning_rate": 0.1,
            "server.clients_per_round": 1,
        },
    )
    summary = run.summary
    assert summary["rounds"] == 2
    assert summary["dropped_clients"] == 0
    assert 0 <= float(summary["p5"]) <= 1


@pytest.mark.parametrize("name", ["debian-xc-fedmlh", "debian-xc-fedavg", "fedmlh-table3-small"])
def test_every_scheme_on_debian_s_index_runs_two_rounds_on_a_small_one(name: str, tmp_path: Path) -> None:
    documents = debian_index.read_documents(*write_debian_index(tmp_path))
    examples, class_names = debian_index.examples_of(documents, debian_index.HASHING)
    examples.write(tmp_path / "small", class_names, name="small", recipe={})
    by_scheme = {experiment.scheme.name: experiment for experiment in runs_of(name)}
    for scheme, experiment in by_scheme.items():
        changes = {**TINY, "data.population": str(tmp_path / "small"), "data.partition.num_clients": 4}
        run = fedss.simulate(
            experiment.overridden(changes), out=tmp_path / scheme, cache=tmp_path / "cache", workers=1
        )
        assert [line.num_updates for line in run.rounds] == [2, 2]
        assert run.summary["dropped_clients"] == 0
        assert run.rounds[1].mean_loss < run.rounds[0].mean_loss
        assert 0 <= float(run.summary["p5"]) <= 1
