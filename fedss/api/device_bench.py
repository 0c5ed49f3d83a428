"""Measurements of the clients that devices get: on any device, at several micro-batches, and up to where memory ends.

A program's micro-batch is fixed when it is exported, so that another one means another export, from the weights of the
artifact at hand; it is checked like any export, and gone when it has been measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from android_harness.bundles.bundle import Bundle
from android_harness.devices.device import Device, DeviceDescription, DeviceError, FailureReason
from android_harness.devices.listing import open_device
from android_harness.measuring.client_bench import BUNDLE_OF_RUNTIME, check_client, measure_client
from android_harness.measuring.client_profile import CallCosts, profile_client
from android_harness.measuring.measurement import BenchSize, ContendersDisagree, Measurement, check_losses
from android_harness.measuring.memory_limit import largest_survivor
from android_harness.rounds.installed_client import InstalledClient
from export.pipeline import export_artifact
from export.recipe import LARGEST_MICRO_BATCH, ExportRecipe
from fedss.api.callbacks import Note
from fedss.api.errors import CheckFailed
from fedss.device_rounds import bundle_for
from ondevice.backends.opening import Runtime
from ondevice.contract.artifact import INITIAL, MEGABYTE, Artifact
from ondevice.contract.artifacts.program_calls import OperatorCall

_STEPS_TO_SURVIVE = 2


@dataclass(frozen=True)
class BenchDevice:
    """An open device, its description, and where its clients come from."""

    device: Device
    description: DeviceDescription
    cache: Path
    timeout: float
    """Seconds that one program may run there."""
    note: Note

    def measure(
        self, artifact: Artifact, runtimes: Sequence[str], sizes: Sequence[BenchSize]
    ) -> Iterator[Measurement]:
        """A row per runtime and size, as they come; clients pass the golden step first, and at the end losses agree."""
        losses = []
        for runtime in runtimes:
            client = InstalledClient(self.device, self._bundle(runtime), artifact.directory, self.timeout)
            self._check(client, runtime)
            for size in sizes:
                self.note(f"{self.description.name}: {runtime}, batch {size.batch}, {size.width} classes")
                row, loss = measure_client(self.device, client, runtime, artifact.spec.image_shape[1], size)
                yield row
                losses.append((size, runtime, loss))
        for size in sizes:
            try:
                check_losses({runtime: loss for at, runtime, loss in losses if at == size})
            except ContendersDisagree as error:
                raise CheckFailed(str(error)) from error

    def profile(
        self, artifact: Artifact, runtime: str, size: BenchSize, calls: Sequence[OperatorCall]
    ) -> CallCosts:
        """What every call of the step costs; the client passes the golden step first."""
        client = InstalledClient(self.device, self._bundle(runtime), artifact.directory, self.timeout)
        self._check(client, runtime)
        self.note(f"{self.description.name}: profiling {runtime}, batch {size.batch}, {size.width} classes")
        return profile_client(self.device, client, runtime, size, calls)

    def _check(self, client: InstalledClient, runtime: str) -> None:
        self.note(f"{self.description.name}: golden step of {runtime}")
        try:
            check_client(client, runtime)
        except DeviceError as error:
            if error.reason is not FailureReason.WRONG:
                raise
            raise CheckFailed(f"{runtime} is not measured: {error}") from error

    def _bundle(self, runtime: str) -> Bundle:
        return bundle_for(self.cache, BUNDLE_OF_RUNTIME[runtime], self.description.abi)


@contextmanager
def opened_device(
    name: str, cache: Path, timeout: float, memory_mb: int, note: Note
) -> Iterator[BenchDevice]:
    """`memory_mb` is for a new `emulator`, which is gone afterwards; its name in rows is what the command line calls it."""
    with closing(open_device(name, cache, memory_mb=memory_mb)) as device:
        yield BenchDevice(device, replace(device.describe(), name=name), cache, timeout, note)


@contextmanager
def with_micro_batch(
    artifact: Artifact, micro_batch: int, runtimes: Sequence[str], note: Note
) -> Iterator[Artifact]:
    """The artifact itself if it has that micro-batch, otherwise one exported from its weights for the occasion."""
    if artifact.micro_batch == micro_batch:
        yield artifact
        return
    note(f"exporting for micro-batch {micro_batch}")
    recipe = ExportRecipe(
        spec=artifact.spec,
        runtimes=cast(tuple[Runtime, ...], tuple(runtimes)),
        micro_batch=micro_batch,
        max_width=artifact.max_width,
        weights=artifact.path(INITIAL),
        seed=artifact.manifest.provenance["seed"],
    )
    with tempfile.TemporaryDirectory(prefix="fedss-micro-batch-") as folder:
        yield export_artifact(recipe, Path(folder) / "artifact")


@dataclass(frozen=True)
class MemoryLimit:
    """How far a device came with one runtime."""

    runtime: str
    memory_mb: int
    largest: int
    killed_at: int | None
    """None: the largest micro-batch that is ever of use lived too."""
    survivors: tuple[tuple[Artifact, Measurement], ...]

    def words(self) -> str:
        end = "no more was tried" if self.killed_at is None else f"{self.killed_at} was killed for memory"
        return f"{self.runtime}: the largest micro-batch that lives in {self.memory_mb} MB is {self.largest}; {end}"


def find_memory_limit(
    phone: BenchDevice, artifact: Artifact, runtime: str, width: int, memory_mb: int
) -> MemoryLimit:
    """Tries micro-batches on the device until one lives and the next is killed."""
    survivors = []

    def attempt(micro_batch: int) -> int | None:
        size = BenchSize(micro_batch, micro_batch, width, threads=1, warm_up=0, steps=_STEPS_TO_SURVIVE)
        with with_micro_batch(artifact, micro_batch, [runtime], phone.note) as exported:
            try:
                (row,) = phone.measure(exported, [runtime], [size])
            except DeviceError as error:
                if error.reason is not FailureReason.KILLED_FOR_MEMORY:
                    raise
                phone.note(f"micro-batch {micro_batch} was killed for memory")
                return None
        assert row.peak_mb is not None
        phone.note(f"micro-batch {micro_batch} lived; peak {row.peak_mb} MB")
        survivors.append((exported, row))
        return int(row.peak_mb * MEGABYTE)

    available = phone.description.ram_mb * MEGABYTE
    largest, killed_at = largest_survivor(attempt, available, LARGEST_MICRO_BATCH)
    if not survivors:
        raise DeviceError(
            FailureReason.KILLED_FOR_MEMORY,
            f"{phone.description.name} with {phone.description.ram_mb} MB killed a step of one example; "
            "give it more memory, or export a smaller image size or width, or train the last two layers alone",
        )
    return MemoryLimit(runtime, memory_mb, largest, killed_at, tuple(survivors))
