"""Where a step spends its time, by operator and layer: on this host, on a phone, or in ARM64 instructions under qemu.

profile = fedss.profile("artifacts/mobilenet", device="qemu")
profile.by_layer(depth=3)[0]
"""

from __future__ import annotations

from pathlib import Path

from android_harness.measuring.client_profile import CallCosts
from android_harness.measuring.measurement import BenchSize, append_rows
from android_harness.measuring.step_profile import PROFILES, ProfileRow, StepProfile, as_document
from export.cost.work import elements, multiply_adds
from fedss.api.artifacts import program_calls
from fedss.api.callbacks import Note, unheard
from fedss.api.device_bench import opened_device, with_micro_batch
from fedss.api.errors import WrongArgument
from fedss.api.widths import widths_of
from fedss.device_rounds import check_device_name
from ondevice.contract.artifact import Artifact, open_artifact
from ondevice.contract.artifacts.program_calls import ProgramCalls
from ondevice.contract.step_signature import rows_of
from ondevice.tools.cache_folder import default_cache_folder
from ondevice.tools.installed_versions import installed_versions

__all__ = ["RUNTIME", "ProfileRow", "StepProfile", "profile"]

RUNTIME = "executorch"
"""The one runtime that is profiled: its programs have a table of calls, and its client is ours."""


def profile(
    artifact: str | Path | Artifact,
    *,
    device: str = "host",
    batch: int = 4,
    micro_batch: int | None = None,
    width: int | None = None,
    threads: int = 1,
    warm_up: int = 2,
    steps: int = 10,
    timeout: float = 1800.0,
    out: str | Path | None = None,
    cache: str | Path | None = None,
    on_note: Note = unheard,
) -> StepProfile:
    """The client that devices get, its step traced call by call; arguments are those of `bench`.

    On qemu, costs are instructions; elsewhere nanoseconds of processor time, the median over the steps.
    """
    opened = artifact if isinstance(artifact, Artifact) else open_artifact(Path(artifact))
    check_device_name(device)
    if RUNTIME not in opened.manifest.runtimes:
        made_for = ", ".join(opened.manifest.runtimes) or "no runtime"
        raise WrongArgument(
            "profile", f"is for {RUNTIME}; {opened.directory} was exported for {made_for}: export it again"
        )
    (sampled,) = widths_of(opened, None if width is None else [width])
    if device == "qemu" and threads != 1:
        raise WrongArgument("threads", f"is {threads}; instructions are counted exactly with 1 thread only")
    if device.startswith("emulator"):
        raise WrongArgument(
            "device",
            f"is {device!r}; an emulator's time says nothing about a phone: profile on qemu, host or adb:SERIAL",
        )
    folder = default_cache_folder() if cache is None else Path(cache)
    size = micro_batch or opened.micro_batch
    with (
        opened_device(device, folder, timeout, 0, on_note) as there,
        with_micro_batch(opened, size, [RUNTIME], on_note) as exported,
    ):
        table = program_calls(exported)
        stepped = BenchSize(batch, exported.micro_batch, sampled, threads, warm_up, steps)
        costs = there.profile(exported, RUNTIME, stepped, table.calls)
        found = StepProfile(
            runtime=RUNTIME,
            batch=batch,
            micro_batch=exported.micro_batch,
            image_size=exported.spec.image_shape[1],
            width=sampled,
            threads=threads,
            unit=costs.unit,
            peak=costs.peak,
            outside=costs.outside,
            rows=_rows(exported, table, costs, stepped),
            device=there.description.name,
            emulated=there.description.emulated,
            artifact_sha256=exported.sha256,
        )
    if out is not None:
        append_rows(Path(out) / PROFILES, [{**as_document(found), "versions": installed_versions()}])
    return found


def _rows(
    artifact: Artifact, table: ProgramCalls, costs: CallCosts, size: BenchSize
) -> tuple[ProfileRow, ...]:
    """One per layer, operator and direction, in the order in which the step comes to them."""
    values = {**artifact.bounds, **{rows_of(name): size.width for name in artifact.signature.table_dims}}
    micro_batches = -(-size.batch // size.micro_batch)
    rows: dict[tuple[str, str, bool], list[tuple[float, int, int]]] = {}
    for call, cost in zip(table.calls, costs.calls, strict=True):
        work = (cost, multiply_adds(call, values), elements(call, values))
        rows.setdefault((call.layer, call.operator, call.backward), []).append(work)
    return tuple(
        ProfileRow(
            *names,
            len(own) * micro_batches,
            sum(work[0] for work in own),
            micro_batches * sum(work[1] for work in own),
            micro_batches * sum(work[2] for work in own),
        )
        for names, own in rows.items()
    )
