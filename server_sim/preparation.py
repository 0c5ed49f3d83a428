"""From an experiment's words to the things it needs: the population, the first weights, the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path

from ondevice.backends import Backend
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.backends.opening import open_backend
from ondevice.client.client import Client
from ondevice.contract.artifact import ArtifactError, open_artifact
from ondevice.contract.vocabulary import IMAGES, FloatArray, StepSpec
from ondevice.model.extractors import check_architecture
from ondevice.model.extractors.defaults import completed
from ondevice.model.objectives import check_objective
from ondevice.model.pretrained_weights import load_weights
from server_sim.data.data_sets import DATA_SETS, DataSet, DataSetError, materialize
from server_sim.data.population import Population, Progress, open_population
from server_sim.data.reaugment import materialize_augmentation
from server_sim.data.repartition import materialize_partition
from server_sim.data_settings import DataSettings
from server_sim.engines.client_memories import ClientMemories
from server_sim.engines.simulated_clients import SimulatedClients
from server_sim.engines.travelling_folder import TravellingFolder
from server_sim.experiment import ConfigurationError, Experiment


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
    memories: ClientMemories | None = None
    """Where clients keep what they remember between rounds; without it, nothing that needs it can be asked of them."""

    def __call__(self) -> Callable[[int], Client]:
        population = open_population(self.population_path)
        return SimulatedClients(population, self._backend(), self.run_seed, self.memories)

    def folders(self) -> dict[str, TravellingFolder]:
        """What another machine needs to make these clients."""
        data_set = DATA_SETS.get(open_population(self.population_path).name)
        render = partial(_render, data_set) if isinstance(data_set, DataSet) else None
        found = {"population": TravellingFolder.of(self.population_path, render)}
        if self.exported is not None:
            found["artifact"] = TravellingFolder.of(self.exported.directory)
        return found

    def at(self, places: Mapping[str, Path]) -> ClientsRecipe:
        """The same clients, with their folders in these places."""
        exported = self.exported and replace(self.exported, directory=places["artifact"])
        return replace(self, population_path=places["population"], exported=exported)

    def _backend(self) -> Backend:
        if self.exported is None:
            return EagerBackend(self.spec, self.initial)
        return open_backend(open_artifact(self.exported.directory), self.exported.runtime)


def _render(data_set: DataSet, cache: Path) -> Path:
    return data_set.materialize(cache, None)


def check_experiment(experiment: Experiment) -> None:
    """Everything that can be told without rendering, training or exporting anything, which takes minutes."""
    data = experiment.data
    known = DATA_SETS.get(data.population)
    if known is not None and known.num_clients is not None and data.partition is None:
        experiment.check_clients(data.population, known.num_clients)
    try:
        experiment.scheme.check_installed()
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    try:
        check_architecture(experiment.model.architecture)
    except ValueError as error:
        raise ConfigurationError(f"model.{error}") from None
    try:
        check_objective(experiment.model.objective)
    except ValueError as error:
        raise ConfigurationError(f"model.{error}") from None
    if experiment.model.pretrained is not None:
        _pretrained_path(experiment.model.pretrained)


def population_path(data: DataSettings, cache: Path, progress: Progress | None = None) -> Path:
    """The folder of an experiment's data; data sets and partitions are made on first use."""
    path = _undivided_path(data, cache, progress)
    if data.partition is not None:
        population, partition = open_population(path), data.partition
        try:
            path = materialize_partition(population, partition.choice, partition.seed, cache, progress)
        except ValueError as error:
            raise ConfigurationError(f"data.partition: {error}") from None
    if data.augmentation is not None:
        try:
            path = materialize_augmentation(open_population(path), data.augmentation.choice, cache)
        except ValueError as error:
            raise ConfigurationError(f"data.augmentation: {error}") from None
    return path


def _undivided_path(data: DataSettings, cache: Path, progress: Progress | None) -> Path:
    name = data.population
    if name in DATA_SETS:
        try:
            return materialize(name, None if data.source is None else Path(data.source), cache, progress)
        except DataSetError as error:
            raise ConfigurationError(str(error)) from None
    path = Path(name)
    if not path.is_dir():
        known = ", ".join(DATA_SETS)
        raise ConfigurationError(f"data.population is {name!r}: neither a folder nor one of {known}")
    return path


def step_spec(experiment: Experiment, population: Population) -> StepSpec:
    """The training step that the experiment's model and data ask for."""
    model = experiment.model
    spec = StepSpec(
        architecture=model.architecture,
        embedding_dim=model.embedding_dim,
        objective=model.objective,
        logits=model.logits,
        train=model.train,
        randomness=model.randomness,
        architecture_arguments=model.architecture_arguments,
        image_shape=population.image_shape if IMAGES in population.train.features else StepSpec.image_shape,
    )
    asked = None if model.batch_norm == "auto" else model.batch_norm
    return experiment.scheme.shaped(completed(spec, model.pretrained is not None, asked), population)


def initial_weights(experiment: Experiment, spec: StepSpec) -> dict[str, FloatArray]:
    """The extractor at round 0: fresh from the seed, or pretrained."""
    try:
        weights = initial_parameters(spec, experiment.seed)
    except ValueError as error:
        raise ConfigurationError(f"model: {error}") from None
    if experiment.model.pretrained is None:
        return weights
    name = experiment.model.pretrained
    try:
        return load_weights(_pretrained_path(name), weights)
    except ArtifactError as error:
        images = " x ".join(map(str, spec.image_shape))
        advice = (
            "it was trained with GroupNorm in place of BatchNorm: --set model.batch_norm=group"
            if "running_mean" in str(error)
            else "change the data (glyphs is for 1 x 32 x 32: `fedss data FOLDER --import TABLE.csv --grayscale`)"
        )
        raise ConfigurationError(
            f"model.pretrained is {name!r}, which does not fit {spec.architecture} with d = {spec.embedding_dim} "
            f"on images of {images} ({error}); {advice}, or start from fresh weights: --set model.pretrained=none"
        ) from None


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
