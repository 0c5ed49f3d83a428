"""Experiments: every field can be overridden, and a wrong one is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.federations.experiment_runs import runs_of

from ondevice.client.samplers import SAMPLERS
from ondevice.client.weightings import WEIGHTINGS
from ondevice.contract.choice import Choice, chosen
from ondevice.contract.vocabulary import COLUMNS
from server_sim.experiment import ConfigurationError, Experiment, experiment_names, load_experiment
from server_sim.experiment_fields import fields_of, fields_table
from server_sim.preparation import check_experiment
from server_sim.runs.tables import table_cells, table_runs
from server_sim.schemes import SCHEMES
from server_sim.schemes.full_softmax import FullSoftmax


@pytest.mark.parametrize("name", experiment_names())
def test_every_shipped_experiment_is_valid_and_survives_being_saved(name: str) -> None:
    experiment = load_experiment(name)
    assert type(experiment).model_validate(experiment.model_dump(mode="json")) == experiment


@pytest.mark.parametrize("name", experiment_names())
def test_every_run_of_a_shipped_experiment_is_valid(name: str) -> None:
    runs = runs_of(name)
    assert len({run.model_dump_json() for run in runs}) == len(runs), "two rows of it are the same run"
    for run in runs:
        check_experiment(run)


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
            "scheme.name=fedprox",
            r"run:\n  scheme\.name is 'fedprox'; expected one of fedss, fedss_words, [a-z_, ]*fedmlh, fedavg_labels, "
            r"centralized$",
        ),
        ("scheme.name=[1]", r"run:\n  scheme\.name is \[1\]; expected one of fedss"),
        ("scheme=3", r"run:\n  scheme: Input should be .* \(got 3\)$"),
        (
            "scheme.foo=1",
            r"run:\n  scheme\.foo: there is no such field; scheme has name, virtual_clients, importance, num_negatives$",
        ),
        (
            "scheme.num_negatives=-1",
            r"run:\n  scheme\.num_negatives: Input should be greater than or equal to 0 \(got -1\)$",
        ),
        ("scheme.num_negatives=many", r"run:\n  scheme\.num_negatives: .*\(got 'many'\)$"),
        (
            "scheme.num_negative=1",
            r"run:\n  scheme\.num_negative: there is no such field; did you mean scheme\.num_negatives\?$",
        ),
        (
            "client.transforms=[{name = 'blur'}]",
            r"client\.transforms: .*there is no transform 'blur' here, only precision, clip",
        ),
        (
            "client.transforms=[{name = 'clip', length = 1}]",
            r"client\.transforms: .*transform 'clip' has no setting 'length'; it has norm",
        ),
        (
            "server.slice_transforms=[{name = 'precision', format = 'fp8'}]",
            r"server\.slice_transforms: .*format is 'fp8'; expected one of fp32, fp16, bf16",
        ),
        (
            "client.transforms=[{name = 'precision', format = 'bf16'}, {name = 'clip', norm = 1.0}]",
            r"client\.transforms: .*narrowed before; expected clip to come before precision",
        ),
        ("model.logits=3", r"run:\n  model\.logits is 3; expected one of cosine, dot$"),
        (
            "client.foo=1",
            r"client\.foo: there is no such field; client has epochs, batch_size, .*transforms$",
        ),
        ("clients.epochs=2", r"clients: there is no such field; did you mean client\?$"),
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


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_says_what_its_clients_do_and_survives_being_saved(name: str) -> None:
    # More than the random ones among them, where a scheme draws some so.
    drawn = ["scheme.num_negatives=40"] if "num_negatives" in SCHEMES[name].model_fields else []
    experiment = load_experiment("glyphs-tiny", [f"scheme.name={name}", *drawn])
    assert type(experiment).model_validate(experiment.model_dump(mode="json")) == experiment
    if experiment.scheme.sampler() is None:
        with pytest.raises(ValueError, match="Centralized has no clients to plan a round for"):
            experiment.round_plan(0, {COLUMNS: 60})
        return
    plan = experiment.round_plan(3, {COLUMNS: 60})
    assert (plan.round_index, plan.table_sizes) == (3, {COLUMNS: 60})
    chosen(SAMPLERS, plan.sampler, "sampler")
    chosen(WEIGHTINGS, plan.weighting, "weighting")


def test_a_scheme_takes_over_the_settings_that_it_knows_and_no_more() -> None:
    settings = ["scheme.num_negatives=7"]
    same = load_experiment("glyphs-tiny", [*settings, "scheme.name=negatives_only"])
    assert same.scheme.sampler() == Choice(
        "uniform_negatives", {"num_negatives": 7, "exclude_positives": True}
    )
    before = load_experiment("glyphs-tiny", settings)
    assert before.overridden({"scheme.name": "full_softmax"}).scheme == FullSoftmax()


def test_every_field_stands_in_the_documentation_as_it_is() -> None:
    page = (Path(__file__).parents[3] / "docs" / "experiments.md").read_text()
    assert fields_table(Experiment) in page, (
        "run python -m server_sim.experiment_fields and put its table there"
    )
    for name, field in fields_of(Experiment).items():
        assert field.description, name


def test_an_unknown_experiment_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"'glyphs-huge' is not known; .*glyphs-tiny"):
        load_experiment("glyphs-huge")


def test_fields_of_a_grid_go_by_their_last_word_unless_two_end_alike() -> None:
    grid = {"server.tau": (1e-4,), "server.learning_rate": (0.1,), "client.learning_rate": (0.3, 0.01)}
    table = {"rows": [{"label": "FedSS", "vary": grid}], "seeds": [0]}
    runs = table_runs(load_experiment("glyphs-tiny").overridden({"table": table}))
    assert [run.label for run in runs] == [
        "FedSS, tau 0.0001, server.learning_rate 0.1, client.learning_rate 0.3",
        "FedSS, tau 0.0001, server.learning_rate 0.1, client.learning_rate 0.01",
    ]


def test_a_table_has_a_run_for_every_method_width_and_seed_and_averages_over_seeds() -> None:
    rows = '[{label="FedSS", num_negatives=[2,4]}, {label="Full", override={"scheme.name"="full_softmax"}}]'
    experiment = load_experiment("glyphs-tiny", [f"table={{seeds=[0,1], rows={rows}}}"])
    runs = table_runs(experiment)
    assert [run.name for run in runs] == [
        *("fedss-2/seed-0", "fedss-4/seed-0", "full/seed-0"),
        *("fedss-2/seed-1", "fedss-4/seed-1", "full/seed-1"),
    ]
    assert runs[1].experiment.scheme.sampler() == Choice("uniform_negatives", {"num_negatives": 4})
    assert runs[2].experiment.scheme.name == "full_softmax"
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


@pytest.mark.parametrize("labels", [("FedSS", "fedss"), ("a/b",), ("",), ("..",)])
def test_rows_of_a_table_whose_folders_could_not_be_told_apart_are_refused(labels: tuple[str, ...]) -> None:
    rows = [{"label": label} for label in labels]
    with pytest.raises(ConfigurationError, match="expected each once, without a slash"):
        load_experiment("glyphs-tiny").overridden({"table": {"rows": rows}})


def test_a_slice_is_not_clipped() -> None:
    with pytest.raises(ConfigurationError, match="another transform than precision"):
        load_experiment("glyphs-tiny", ['server.slice_transforms=[{name="clip", norm=1.0}]'])
