"""Experiments: every field can be overridden, and a wrong one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from server_sim.experiment import ConfigurationError, Experiment, experiment_names, load_experiment
from server_sim.experiment_fields import fields_of, fields_table
from server_sim.runs.tables import table_cells, table_runs


@pytest.mark.parametrize("name", experiment_names())
def test_every_shipped_experiment_is_valid_and_survives_being_saved(name: str) -> None:
    experiment = load_experiment(name)
    assert type(experiment).model_validate(experiment.model_dump(mode="json")) == experiment


def test_any_field_can_be_overridden() -> None:
    experiment = load_experiment(
        "glyphs-tiny",
        ["client.learning_rate=0.5", "server.optimizer=fedadam", "data.population=glyphs-2028", "seed=7"],
    )
    assert experiment.client.learning_rate == 0.5
    assert experiment.server.optimizer == "fedadam"
    assert experiment.data.population == "glyphs-2028"
    assert experiment.seed == 7


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "client.lerning_rate=0.1",
            "client.lerning_rate: there is no such field; did you mean client.learning_rate?",
        ),
        ("client.batch_size=0", "client.batch_size: Input should be greater than or equal to 1 \\(got 0\\)"),
        (
            "client.method=fedprox",
            r"run:\n  client\.method is 'fedprox'; expected one of fedss, negatives_only, positives_only, "
            r"full_softmax, centralized$",
        ),
        ("model.logits=3", r"run:\n  model\.logits is 3; expected one of cosine, dot$"),
        (
            "client.foo=1",
            r"client\.foo: there is no such field; client has method, num_negatives, .*precision$",
        ),
        ("clients.method=fedss", r"clients: there is no such field; did you mean client\?$"),
        ("nonsense=1", r"nonsense: there is no such field; an experiment has title, seed, data, .*table$"),
        ("model.pretrained=3", r"run:\n  model\.pretrained: Input should be a valid string \(got 3\)$"),
        ("server.rounds=many", "server.rounds: .*\\(got 'many'\\)"),
        ("server.min_clients=99", "min_clients is 99, more than clients_per_round"),
        ("seed.x=1", "seed.x: seed is a value, not a section"),
        ("client.learning_rate", "expected FIELD=VALUE"),
    ],
)
def test_a_wrong_override_names_the_field(override: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_experiment("glyphs-tiny", ["seed=1", override])


def test_every_field_stands_in_the_documentation_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    assert fields_table(Experiment) in page, (
        "run python -m server_sim.experiment_fields and put its table there"
    )
    for name, field in fields_of(Experiment).items():
        assert field.description, name


def test_an_unknown_experiment_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"'glyphs-huge' is not known; .*glyphs-tiny"):
        load_experiment("glyphs-huge")


def test_a_table_has_a_run_for_every_method_width_and_seed_and_averages_over_seeds() -> None:
    rows = '[{label="FedSS", num_negatives=[2,4]}, {label="Full", override={"client.method"="full_softmax"}}]'
    experiment = load_experiment("glyphs-tiny", [f"table={{seeds=[0,1], rows={rows}}}"])
    runs = table_runs(experiment)
    assert [run.name for run in runs] == [
        *("fedss-2/seed-0", "fedss-4/seed-0", "full/seed-0"),
        *("fedss-2/seed-1", "fedss-4/seed-1", "full/seed-1"),
    ]
    assert runs[1].experiment.client.num_negatives == 4
    assert runs[2].experiment.client.method == "full_softmax"
    assert runs[5].experiment.seed == 1

    def summary(top1: float) -> dict[str, float]:
        return {
            "top1": top1,
            "mean_width": 30,
            "num_classes": 60,
            "bytes_down_per_client": 8,
            "bytes_up_per_client": 9,
        }

    cells = table_cells(zip(runs, map(summary, [0.1, 0.2, 0.3, 0.3, 0.4, 0.5]), strict=True))
    assert [round(cell.mean, 6) for cell in cells] == [0.2, 0.3, 0.4]
    assert cells[0].deviation == pytest.approx(0.2 / 2**0.5)
    assert cells[0].width_share == 0.5
