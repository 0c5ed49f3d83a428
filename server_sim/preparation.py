"""From an experiment's words to the things it needs: the population, the first weights, the backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ondevice.backends import Backend
from ondevice.backends.eager import EagerBackend, check_parameters, initial_parameters
from ondevice.backends.opening import open_backend
from ondevice.client.client import Client
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import open_artifact
from ondevice.contract.safetensors_file import Bfloat16, SafetensorsError
from ondevice.contract.vocabulary import FloatArray, StepSpec
from ondevice.model.extractors import ARCHITECTURES
from ondevice.model.objectives import OBJECTIVES
from server_sim.data.glyphs import presets as glyphs
from server_sim.data.glyphs.dealing import ByClient
from server_sim.data.population import Population, Progress, open_population
from server_sim.engines.simulated_clients import SimulatedClients
from server_sim.experiment import ConfigurationError, DataSettings, Experiment


@dataclass(frozen=True)
class ExportedStep:
    """An artifact, and which of its runtimes the clients train on."""

    directory: Path
    runtime: str


@dataclass(frozen=True)
class ClientsRecipe:
    """How to make the clients in any process: it travels to the workers."""

    population_path: Path
    spec: StepSpec
    initial: dict[str, FloatArray]
    run_seed: int
    exported: ExportedStep | None

    def __call__(self) -> Callable[[int], Client]:
        population = open_population(self.population_path)
        return SimulatedClients(population, self._backend(), self.run_seed)

    def _backend(self) -> Backend:
        if self.exported is None:
            return EagerBackend(self.spec, self.initial)
        return open_backend(open_artifact(self.exported.directory), self.exported.runtime)


def check_experiment(experiment: Experiment) -> None:
    """Everything that can be told without rendering, training or exporting anything, which takes minutes."""
    preset = glyphs.PRESETS.get(experiment.data.population)
    if preset is not None and isinstance(preset.train, ByClient):
        experiment.check_clients(preset.name, preset.train.num_clients)
    if experiment.model.architecture not in ARCHITECTURES:
        raise ConfigurationError(
            f"model.architecture is {experiment.model.architecture!r}; expected one of {', '.join(ARCHITECTURES)}"
        )
    if experiment.model.objective not in OBJECTIVES:
        raise ConfigurationError(
            f"model.objective is {experiment.model.objective!r}; expected one of {', '.join(OBJECTIVES)}"
        )
    if experiment.model.pretrained is not None:
        _pretrained_path(experiment.model.pretrained)


def population_path(data: DataSettings, cache: Path, progress: Progress | None = None) -> Path:
    """The folder of an experiment's data; glyphs are rendered on first use."""
    name = data.population
    if name in glyphs.PRESETS:
        return glyphs.materialize(name, cache, progress)
    path = Path(name)
    if not path.is_dir():
        known = ", ".join(glyphs.PRESETS)
        raise ConfigurationError(f"data.population is {name!r}: neither a folder nor one of {known}")
    return path


def step_spec(experiment: Experiment, population: Population) -> StepSpec:
    """The training step that the experiment's model and data ask for."""
    model = experiment.model
    return StepSpec(
        architecture=model.architecture,
        embedding_dim=model.embedding_dim,
        image_shape=population.image_shape,
        objective=model.objective,
        logits=model.logits,
        train=model.train,
    )


def initial_weights(experiment: Experiment, spec: StepSpec) -> dict[str, FloatArray]:
    """The extractor at round 0: fresh from the seed, or pretrained."""
    try:
        weights = initial_parameters(spec, experiment.seed)
    except ValueError as error:
        raise ConfigurationError(f"model: {error}") from None
    if experiment.model.pretrained is None:
        return weights
    shapes = {name: value.shape for name, value in weights.items()}
    name = experiment.model.pretrained
    tensors, path = _read_pretrained(name)
    try:
        check_parameters(tensors, shapes, str(path))
    except ValueError as error:
        images = " x ".join(map(str, spec.image_shape))
        raise ConfigurationError(
            f"model.pretrained is {name!r}, which does not fit {spec.architecture} with d = {spec.embedding_dim} "
            f"on images of {images} ({error}); change the data (glyphs is for 1 x 32 x 32: `fedss data FOLDER "
            "--import TABLE.csv --grayscale`), or start from fresh weights: --set model.pretrained=none"
        ) from None
    return tensors


def pretrained_names() -> list[str]:
    """The pretrained extractors that come with the package."""
    folder = resources.files("server_sim") / "pretrained"
    return sorted(entry.name.removesuffix(".safetensors") for entry in folder.iterdir())


def _pretrained_path(name: str) -> Path:
    shipped = name in pretrained_names()
    path = (
        Path(str(resources.files("server_sim") / "pretrained" / f"{name}.safetensors"))
        if shipped
        else Path(name)
    )
    if not path.is_file():
        known = ", ".join(pretrained_names())
        raise ConfigurationError(f"model.pretrained is {name!r}: neither a file nor one of {known}")
    return path


def _read_pretrained(name: str) -> tuple[dict[str, FloatArray], Path]:
    path = _pretrained_path(name)
    try:
        tensors, _ = safetensors_file.read_file(path)
    except SafetensorsError as error:
        raise ConfigurationError(f"model.pretrained: {path} cannot be read: {error}") from None
    # A saved server state will do: what it holds beside the extractor is left alone.
    weights = {
        key.partition(".")[2]: tensor
        for key, tensor in tensors.items()
        if key.startswith(("extractor.", "dense.")) and not isinstance(tensor, Bfloat16)
    }
    return weights, path
