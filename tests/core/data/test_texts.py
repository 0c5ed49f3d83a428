"""Texts, one JSON object per user: what becomes of them, what is refused, and a federation that learns the next word."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedss.api.exported_step import widest_slice
from ondevice.contract.tokens import BEGIN, PADDING, TOKENS, UNKNOWN
from ondevice.contract.vocabulary import COLUMNS
from server_sim.data.population import open_population
from server_sim.data.population_files import PopulationError
from server_sim.data.texts import import_texts
from server_sim.engines.in_process import InProcessLink
from server_sim.experiment import load_experiment
from server_sim.preparation import ClientsRecipe, initial_weights, step_spec
from server_sim.simulation import Simulation

LINES: list[dict[str, object]] = [
    {"user": "ben", "texts": ["a b a b c", "B"]},
    {"user": "ann", "texts": ["a d", ""]},
    {"user": "tess", "split": "test", "texts": ["b a", "a never"]},
]


def write_lines(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_texts_become_tokens_and_the_word_that_follows(tmp_path: Path) -> None:
    table = write_lines(tmp_path / "texts.jsonl", LINES)
    import_texts(table, tmp_path / "chats", name="chats", vocabulary=7, length=3)
    population = open_population(tmp_path / "chats")
    assert population.class_names[4:] == ("a", "b", "c")
    assert population.table_sizes == {COLUMNS: 7}
    assert population.client_names == ("ann", "ben")
    a, b, c = 4, 5, 6
    ann, ben = population.client_examples(0), population.client_examples(1)
    np.testing.assert_array_equal(ann.features[TOKENS], [[BEGIN, a, PADDING]])
    assert ann.labels.tolist() == [UNKNOWN]
    np.testing.assert_array_equal(
        ben.features[TOKENS], [[BEGIN, a, b], [a, b, PADDING], [BEGIN, PADDING, PADDING]]
    )
    assert ben.labels.tolist() == [a, c, b]
    # Every word is a question, but for one that nobody can predict.
    np.testing.assert_array_equal(
        population.test.features[TOKENS],
        [[BEGIN, PADDING, PADDING], [BEGIN, b, PADDING], [BEGIN, PADDING, PADDING]],
    )
    assert population.test.labels.tolist() == [b, a, a]
    with pytest.raises(PopulationError, match="holds tokens and no images"):
        _ = population.image_shape


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1 is .1.; expected an object of user, texts"),
        ('{"user": "ann"}', "expected an object of user, texts"),
        ('{"user": "ann", "texts": [], "age": 3}', "expected an object of user, texts"),
        ('{"user": "ann", "texts": "hello"}', "line 1: expected text for the user, and a list of text"),
        ('{"user": 3, "texts": []}', "line 1: expected text for the user"),
        ('{"user": "ann", "texts": [], "split": "dev"}', "split is 'dev'; expected"),
        ('{"user": "ann", "texts": ["a b"]}', 'has no text of the split "test"'),
    ],
)
def test_what_is_no_such_file_is_refused_and_leaves_nothing(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text(text)
    with pytest.raises(PopulationError, match=message):
        import_texts(tmp_path / "texts.jsonl", tmp_path / "chats", name="chats", vocabulary=9, length=3)
    assert [path.name for path in tmp_path.iterdir()] == ["texts.jsonl"]


def test_a_federation_with_a_tied_table_learns_the_next_word(tmp_path: Path) -> None:
    """Words come in a fixed order, of which every user knows a part."""
    words = [f"w{number:02d}" for number in range(20)]
    random = np.random.default_rng(0)
    lines: list[dict[str, object]] = []
    for user in range(6):
        starts = random.integers(0, 14, 12)
        texts = [" ".join(words[start : start + random.integers(3, 7)]) for start in starts]
        lines.append({"user": f"user {user}", "split": "test" if user == 5 else "train", "texts": texts})
    table = write_lines(tmp_path / "texts.jsonl", lines)
    import_texts(table, tmp_path / "chats", name="chats", vocabulary=24, length=5)
    population = open_population(tmp_path / "chats")
    settings = [
        "model.architecture=tied_transformer",
        "model.architecture_arguments={length=5, layers=1, heads=2, hidden=32}",
        "model.objective=next_word",
        "model.embedding_dim=16",
        "model.column_norm=1",
        "model.pretrained=none",
        "scheme.name=fedss_words",
        "client.learning_rate=0.3",
        "client.batch_size=8",
        "server.optimizer=fedavg",
        "server.clients_per_round=5",
        "server.rounds=30",
        "evaluation.every=30",
    ]
    experiment = load_experiment("glyphs-tiny", settings)
    assert widest_slice(experiment, population) == population.num_classes
    spec = step_spec(experiment, population)
    initial = initial_weights(experiment, spec)
    recipe = ClientsRecipe(tmp_path / "chats", spec, initial, experiment.seed, None)
    backend = recipe._backend()
    simulation = Simulation(
        experiment, population, backend, initial, InProcessLink(recipe()), tmp_path / "run"
    )
    summary = simulation.run(resume=False, on_round=lines.append)
    assert summary["dropped_clients"] == 0
    assert summary["top1"] > 0.6, summary
