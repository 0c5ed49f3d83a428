"""An experiment: what is trained, on what, how.  TOML files under `experiments/`, every field overridable, all checked.

Defaults are the FedSS paper's values (section 4 and A.2) where it gives one.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from ondevice.client.transforms import TRANSFORMS, transformed
from ondevice.contract.choice import Choice, chosen
from ondevice.contract.vocabulary import LocalTraining, RoundPlan
from server_sim.data_settings import DataSettings
from server_sim.experiment_fields import explain
from server_sim.metrics import METRICS
from server_sim.model_settings import ModelSettings
from server_sim.schemes import SCHEMES, Scheme, scheme_from
from server_sim.schemes.fedss import FedSS
from server_sim.server.aggregation import Denominator
from server_sim.server.client_selection import Selection
from server_sim.server.optimizers import FedAdam, FedAvg, FedAvgM, OptimizerName, ServerOptimizer
from server_sim.server.stores import STORES
from server_sim.table_settings import TableSettings


class ConfigurationError(ValueError):
    """An experiment that cannot be run as written; names the field."""


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TransformSettings(BaseModel):
    """A transform by name, with its own settings beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @model_validator(mode="after")
    def _known(self) -> TransformSettings:
        chosen(TRANSFORMS, self.choice, "transform")
        return self

    @property
    def choice(self) -> Choice:
        return Choice(self.name, self.model_extra or {})


def _in_order(transforms: tuple[TransformSettings, ...]) -> tuple[TransformSettings, ...]:
    """Refuses an order that every message would fail on: tried on a message of one number."""
    if {"clip", "top_k"} <= {transform.name for transform in transforms}:
        raise ValueError(
            "holds clip and top_k: what top_k adds from before is beyond clip's norm; expected one"
        )
    transformed({"dense.one": np.zeros(1, np.float32)}, [transform.choice for transform in transforms])
    return transforms


Transforms = Annotated[tuple[TransformSettings, ...], AfterValidator(_in_order)]


class ClientSettings(_Settings):
    epochs: int = Field(1, ge=1, description="Passes over a client's examples in one round.")
    batch_size: int = Field(32, ge=1, description="Examples of one local step.")
    learning_rate: float = Field(0.01, ge=0, description="Of local SGD.")
    weight_decay: float = Field(0.0, ge=0, description="Of local SGD.")
    momentum: float = Field(0.0, ge=0, lt=1, description="Of local SGD; gone at the end of a round.")
    transforms: Transforms = Field(
        (),
        description="What is done to an update before it is encoded, in this order, as in "
        '[{name = "clip", norm = 1.0}, {name = "precision", format = "bf16"}].',
    )

    @property
    def local_training(self) -> LocalTraining:
        return LocalTraining(
            self.epochs, self.batch_size, self.learning_rate, self.weight_decay, self.momentum
        )


class ServerSettings(_Settings):
    rounds: int = Field(100, ge=1, description="Rounds of the whole run.")
    clients_per_round: int = Field(64, ge=1, description="Clients that are chosen for a round.")
    selection: Literal["scheme"] | Selection = Field(
        "scheme", description="How: as the scheme says (virtual clients by size), alike, or by size."
    )
    denominator: Denominator = Field(
        "selected", description="What a row's mean is over: all chosen clients, or those that hold it."
    )
    optimizer: OptimizerName = Field(
        "fedavgm",
        description="How the server applies the mean of the updates.  The centralized reference has no updates: it trains "
        "the weights themselves by the client's SGD, and none of this section's optimizer settings say anything about it.",
    )
    learning_rate: float = Field(1.0, gt=0, description="Of the server.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Of fedavgm and fedadam.")
    second_momentum: float = Field(0.99, ge=0, lt=1, description="Of fedadam.")
    tau: float = Field(1e-3, gt=0, description="Of fedadam: what keeps its denominator from zero.")
    min_clients: int = Field(
        1, ge=1, description="With fewer updates than this a round is abandoned and tried again."
    )
    max_attempts: int = Field(
        3, ge=1, description="How often a round is tried before the run ends with an error."
    )
    slice_transforms: Transforms = Field(
        (), description="What is done to a slice before it is encoded; precision, as for updates."
    )
    store: str = Field(
        "memory",
        description=f"Where tables lie: {' or '.join(STORES)}.  Mapped ones are files in the run's folder: they may be "
        "larger than memory, and only rows that somebody touched take room.",
    )
    save_every: int = Field(
        1,
        ge=1,
        description="Rounds between two saved states of tables in memory; with mapped ones every round is kept.",
    )
    max_examples: int | None = Field(
        None,
        ge=1,
        le=10**9,
        description="The most examples that a client may claim, and so its largest weight in the mean; a client that claims "
        "more is dropped.  If not given: what the largest client of the population holds.",
    )
    max_change: float = Field(
        1e4,
        gt=0,
        le=1e15,
        description="The most that a client may change one weight in a round; a client that sends more has diverged, or "
        "lies, and is dropped.",
    )
    client_timeout: float = Field(
        600.0,
        gt=0,
        description="Seconds that a client may take in a worker process, which is then killed and replaced; the client is "
        "dropped.  A client that is trained in this process (--workers 1) cannot be interrupted.  Devices have "
        "--device-timeout.",
    )

    @field_validator("slice_transforms")
    @classmethod
    def _of_models(cls, transforms: tuple[TransformSettings, ...]) -> tuple[TransformSettings, ...]:
        """A slice is a model, and no difference that could be clipped."""
        if any(transform.name != "precision" for transform in transforms):
            raise ValueError("holds another transform than precision, which alone leaves a model what it is")
        return transforms

    @field_validator("store")
    @classmethod
    def _known_store(cls, name: str) -> str:
        if name not in STORES:
            raise ValueError(f"is {name!r}; expected one of {', '.join(STORES)}")
        return name

    @model_validator(mode="after")
    def _enough_clients(self) -> ServerSettings:
        if self.min_clients > self.clients_per_round:
            raise ValueError(
                f"min_clients is {self.min_clients}, more than clients_per_round ({self.clients_per_round})"
            )
        return self


class EvaluationSettings(_Settings):
    metric: str = Field("top1", description=f"What is measured: {' or '.join(METRICS)}.")
    every: int = Field(
        10, ge=1, description="Rounds between two evaluations; the last round is always evaluated."
    )

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, name: str) -> str:
        if name not in METRICS:
            raise ValueError(f"is {name!r}; expected one of {', '.join(METRICS)}")
        return name


class Experiment(_Settings):
    title: str = Field(description="For people.")
    seed: int = Field(
        0, ge=0, description="Chance of the run: first weights, chosen clients, drawn negatives."
    )
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    scheme: Annotated[SerializeAsAny[Scheme], BeforeValidator(scheme_from)] = Field(
        FedSS(), description="What the federation does: `name`, and the scheme's own settings beside it."
    )
    client: ClientSettings = ClientSettings()
    server: ServerSettings = ServerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    table: TableSettings | None = None

    def server_optimizer(self) -> ServerOptimizer:
        """How the server applies what the clients send.  A scheme without clients sends nothing: it gets the rule that keeps
        no moments, whatever `server.optimizer` says, and `ServerState.adopt` takes its weights as they are."""
        server = self.server
        if server.optimizer == "fedavg" or self.scheme.sampler() is None:
            return FedAvg(server.learning_rate)
        if server.optimizer == "fedavgm":
            return FedAvgM(server.learning_rate, server.momentum)
        return FedAdam(server.learning_rate, server.momentum, server.second_momentum, server.tau)

    def check_clients(self, population_name: str, num_clients: int) -> None:
        """Refuses a population with too few clients for a round."""
        if self.server.clients_per_round > num_clients:
            raise ConfigurationError(
                f"server.clients_per_round is {self.server.clients_per_round}, "
                f"but {population_name} has {num_clients} clients"
            )

    def round_plan(
        self, round_index: int, table_sizes: Mapping[str, int], sides: Mapping[str, str] | None = None
    ) -> RoundPlan:
        """What the clients of a round are told."""
        sampler = self.scheme.sampler()
        if sampler is None:
            raise ValueError(f"{self.scheme.label} has no clients to plan a round for")
        return RoundPlan(
            round_index=round_index,
            table_sizes=table_sizes,
            sampler=sampler,
            weighting=self.scheme.weighting(),
            transforms=tuple(transform.choice for transform in self.client.transforms),
            local_training=self.client.local_training,
            sides=sides or {},
        )

    def overridden(self, changes: Mapping[str, Any]) -> Experiment:
        """A copy with some dotted fields changed, checked anew."""
        return _validated(_with_overrides(self.model_dump(mode="json"), changes))


def load_experiment(name_or_path: str, overrides: Iterable[str] = ()) -> Experiment:
    """An experiment by name or file, with `field=value` overrides from the command line."""
    return _validated(_with_overrides(_read_toml(name_or_path), parsed_overrides(overrides)))


def parsed_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Dotted field -> value, from `field=value`."""
    changes: dict[str, Any] = {}
    for text in overrides:
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigurationError(f"--set {text!r}: expected FIELD=VALUE, as in client.learning_rate=0.05")
        changes[name.strip()] = _parsed_value(value.strip())
    return changes


def experiment_names() -> list[str]:
    """The experiments that come with the package."""
    folder = resources.files("server_sim") / "experiments"
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def _read_toml(name_or_path: str) -> dict[str, Any]:
    if name_or_path in experiment_names():
        text = (resources.files("server_sim") / "experiments" / f"{name_or_path}.toml").read_text()
    elif name_or_path.endswith(".toml"):
        path = Path(name_or_path)
        if not path.is_file():
            raise ConfigurationError(f"there is no experiment file {path}")
        text = path.read_text()
    else:
        raise ConfigurationError(
            f"experiment {name_or_path!r} is not known; expected a .toml file or one of {', '.join(experiment_names())}"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{name_or_path} is not TOML: {error}") from None


def _parsed_value(text: str) -> Any:
    """A TOML value, or none, which TOML lacks; anything else is taken as a string, so that names need no quotes."""
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _with_overrides(settings: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    settings = json.loads(json.dumps(settings))  # a deep copy: the caller's stays as it is
    scheme = changes.get("scheme.name")
    if isinstance(scheme, str) and scheme in SCHEMES:
        # Another scheme takes over what it knows of the settings of the one before, and no more.
        known = SCHEMES[scheme].model_fields
        settings["scheme"] = {key: value for key, value in settings.get("scheme", {}).items() if key in known}
    for dotted, value in changes.items():
        section = settings
        *sections, name = dotted.split(".")
        for part in sections:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise ConfigurationError(f"{dotted}: {part} is a value, not a section")
        section[name] = value
    return settings


def _validated(settings: dict[str, Any]) -> Experiment:
    try:
        return Experiment.model_validate(settings)
    except ValidationError as errors:
        lines = dict.fromkeys(
            explain(error, Experiment) for error in errors.errors()
        )  # a union fails once for every part
        raise ConfigurationError("the experiment cannot be run:\n  " + "\n  ".join(lines)) from None
