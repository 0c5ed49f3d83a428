"""`fedss bundle`: a client for devices in one self-contained folder."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from android_harness.bundles.bundle import (
    ARCHITECTURES,
    BUNDLE_RUNTIMES,
    build_bundle,
    copy_bundle,
)
from fedss.console import Json, UsageError, log, show_result
from fedss.locations import DEFAULT_CACHE, Cache
from ondevice.contract.artifact import MEGABYTE


def command(
    arch: Annotated[
        str | None, typer.Option(help=f"What runs on the device: {' or '.join(ARCHITECTURES)}.")
    ] = None,
    runtime: Annotated[str, typer.Option(help=f"{' or '.join(BUNDLE_RUNTIMES)}.")] = "executorch",
    out: Annotated[
        Path | None, typer.Option(help="Copy the folder there; it stays in the cache too.")
    ] = None,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
) -> None:
    """Build a client with its own loader and libraries, to push to a device and run there."""
    architecture = arch or platform.machine()
    if architecture not in ARCHITECTURES:
        raise UsageError(f"--arch is {architecture!r}; expected one of {', '.join(ARCHITECTURES)}")
    if runtime not in BUNDLE_RUNTIMES:
        raise UsageError(f"--runtime is {runtime!r}; expected one of {', '.join(BUNDLE_RUNTIMES)}")
    log.print(f"building the {runtime} client for {architecture}, unless the cache has it")
    bundle = build_bundle(cache, architecture, runtime)
    if out is not None:
        bundle = copy_bundle(bundle, out)
    size = sum((bundle.folder / name).stat().st_size for name in bundle.files)
    payload = {
        "bundle": str(bundle.folder),
        "sha256": bundle.sha256,
        "architecture": bundle.architecture,
        "runtime": bundle.runtime,
        "files": len(bundle.files),
        "bytes": size,
        "command": bundle.command("."),
        "sources": bundle.sources,
    }
    table = Table("", "", title=str(bundle.folder), show_header=False)
    table.add_row("client", f"{bundle.runtime} on {bundle.architecture}")
    table.add_row("size", f"{size / MEGABYTE:.1f} MB in {len(bundle.files)} files")
    table.add_row("SHA-256", bundle.sha256)
    table.add_row("start", f"in that folder: {' '.join(bundle.command('.'))} check --artifact DIR")
    for name, digest in bundle.sources.items():
        table.add_row("from", f"{name}  {digest[:16]}")
    show_result(as_json, payload, table)
