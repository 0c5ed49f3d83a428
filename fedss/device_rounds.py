"""Federated rounds on devices: what `--device` and its companions mean, and the devices as the server's link.

The harness knows devices and the server knows rounds; this is where the one is given to the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from android_harness.bundles.bundle import ARCHITECTURES, BUNDLE_RUNTIMES, Bundle, build_bundle
from android_harness.bundles.debian_packages import MissingPackage
from android_harness.devices.device import Device, DeviceError, FailureReason
from android_harness.devices.listing import open_device
from android_harness.rounds.device_link import DeviceLink, NoDeviceLeft
from android_harness.rounds.training_device import ClientData, TrainingDevice, TrainingKit
from fedss.api.callbacks import Note
from fedss.api.errors import WrongArgument
from ondevice.contract.link import Answer, ClientFailure, Link
from ondevice.contract.vocabulary import IMAGES, RoundPlan
from ondevice.native.build import KernelBuildError
from server_sim.data.image_files import ImageFiles
from server_sim.data.population import open_population
from server_sim.engines.mixture import MixedLink
from server_sim.engines.simulated_clients import private_seed_in_run
from server_sim.experiment import ConfigurationError
from server_sim.preparation import ClientsRecipe
from server_sim.simulation import Interrupted


class DevicesExhausted(Interrupted):
    """The run was stopped because no device is left; its state is saved, as after Ctrl-C."""


@dataclass(frozen=True)
class DeviceChoice:
    """Where the clients of a run train, when not all of them are simulated."""

    names: tuple[str, ...]
    """As `fedss devices` lists them: host, qemu, emulator, emulator:NAME or adb:SERIAL."""
    simulated: int = 0
    """How many of a round's clients are simulated all the same."""
    timeout: float = 600.0
    """Seconds that one client's program may run on a device."""
    retries: int = 1
    """How often a client is tried again when its device was lost."""
    patience: float = 60.0
    """Seconds to wait for a device to come back when none is left."""

    def check(self, clients_per_round: int, runtime: str) -> None:
        """`WrongArgument` for what cannot be, before anything is made or booted."""
        for name in self.names:
            check_device_name(name)
        if runtime not in BUNDLE_RUNTIMES:
            raise WrongArgument(
                "runtime", f"is {runtime!r}; devices have a client for {' and '.join(BUNDLE_RUNTIMES)}"
            )
        if self.simulated >= clients_per_round:
            raise WrongArgument(
                "simulated",
                f"is {self.simulated} of {clients_per_round} clients per round; expected fewer, or name no device",
            )
        twice = [name for name, count in Counter(self.names).items() if count > 1 and ":" in name]
        if twice:
            raise WrongArgument(
                "device", f"names {', '.join(twice)} twice; a device trains one client at a time"
            )


def check_device_name(name: str) -> None:
    """`WrongArgument` unless there could be a device of that name."""
    kind, _, detail = name.partition(":")
    if name not in ("host", "qemu", "emulator") and not (kind in ("emulator", "adb") and detail):
        raise WrongArgument(
            "device",
            f"is {name!r}; expected host, qemu, emulator, emulator:NAME or adb:SERIAL, "
            "as `fedss devices` lists them",
        )


@contextmanager
def open_device_link(
    choice: DeviceChoice,
    recipe: ClientsRecipe,
    cache: Path,
    open_simulated: Callable[[], AbstractContextManager[Link]],
    note: Note,
) -> Iterator[Link]:
    """The devices, with another engine beside them where some clients are simulated."""
    assert recipe.exported is not None
    kit = TrainingKit(
        artifact=recipe.exported.directory,
        bundle_for=partial(bundle_for, cache, recipe.exported.runtime),
        client_data=_client_data(recipe),
        timeout=choice.timeout,
    )
    with ExitStack() as stack:
        devices = []
        for name in choice.names:
            devices.append(TrainingDevice(name, partial(_open, name, cache), kit))
            stack.callback(devices[-1].close)
        link = DeviceLink(devices, retries=choice.retries, patience=choice.patience, tell=note)
        stack.callback(_sum_up, link, note)
        on_devices = _ServersLink(link)
        if not choice.simulated:
            yield on_devices
            return
        yield MixedLink(on_devices, stack.enter_context(open_simulated()), choice.simulated)


class _ServersLink:
    """The devices, whose end the server takes for an interruption."""

    def __init__(self, devices: DeviceLink) -> None:
        self._devices = devices

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        try:
            yield from self._devices.exchange(plan, client_ids, answer)
        except NoDeviceLeft as error:
            raise DevicesExhausted(str(error)) from error


def _open(name: str, cache: Path) -> Device:
    try:
        return open_device(name, cache)
    except MissingPackage as error:
        raise DeviceError(FailureReason.FAILED, str(error)) from error


def bundle_for(cache: Path, runtime: str, abi: str) -> Bundle:
    """The client for a device that calls its processor `abi`, or a `DeviceError` that says why there is none."""
    architecture = next((known for known in ARCHITECTURES if known == abi), None)
    bundled = next((known for known in BUNDLE_RUNTIMES if known == runtime), None)
    if architecture is None or bundled is None:
        raise DeviceError(
            FailureReason.FAILED,
            f"no {runtime} client for ABI {abi!r}; there are bundles for {' and '.join(ARCHITECTURES)}",
        )
    try:
        return build_bundle(cache, architecture, bundled)
    except (MissingPackage, KernelBuildError) as error:
        raise DeviceError(
            FailureReason.FAILED, f"no {runtime} client for ABI {abi!r} can be built: {error}"
        ) from error


def _client_data(recipe: ClientsRecipe) -> Callable[[int], ClientData]:
    """The same examples and private seed that `SimulatedClients` gives a client, so that both train alike."""
    population = open_population(recipe.population_path)
    images = population.train.features.get(IMAGES)
    if isinstance(images, ImageFiles) and images.augmentation.is_random:
        raise ConfigurationError(
            "data.augmentation draws other parts of the images in every round, which clients on devices do not do; "
            "choose what stays the same: --set data.augmentation.name=center_crop"
        )

    def client_data(client_id: int) -> ClientData:
        private_seed = private_seed_in_run(population, client_id, recipe.run_seed)
        return ClientData(population.client_examples(client_id), private_seed)

    return client_data


def _sum_up(link: DeviceLink, note: Note) -> None:
    for tally in link.tallies():
        failures = f", {tally.failed} failed (the last: {tally.last_failure})" if tally.failed else ""
        note(f"{tally.name}: {tally.trained} clients trained{failures}")
