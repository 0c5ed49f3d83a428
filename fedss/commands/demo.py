"""`fedss demo`: the main job in small, narrated, with a report at the end."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from android_harness.bundles.debian_packages import missing_programs
from android_harness.devices.qemu import QEMU_PROGRAMS
from android_harness.emulator.machine import EMULATOR_PROGRAMS
from fedss.api.errors import UsageError
from fedss.console import Json, log, show_result
from fedss.locations import DEFAULT_CACHE, Cache

LEFT_BEHIND = ("glyphs", "fedss", "posonly", "mobilenet-96", "bench", "phone", "report")
"""How the names of what a demo makes begin."""


def command(
    out: Annotated[
        Path, typer.Option(help="Where everything goes; an earlier demo there is replaced.")
    ] = Path("runs/demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the federation.")] = 12,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
) -> None:
    """Watch a federation learn 2,028 classes while no client holds more than a few hundred, then look at the report.

    Every step is an ordinary command, shown before it runs: copy it and change it.
    """
    _make_room(out)
    kept = ["--cache", str(cache)]
    often = ["--rounds", str(rounds), "--set", "evaluation.every=3"]
    step("A federation of clients that each hold some characters of one typeface.")
    fedss("data", "glyphs-2028", "--contact-sheet", str(out / "glyphs.png"), *kept)
    fedss("simulate", "glyphs-fedss", *often, "--out", str(out / "fedss"), *kept)
    step(
        "The same, but every client gets its own classes only: it learns to tell those apart, and no others."
    )
    posonly = ["--set", "scheme.name=positives_only", "--set", "title=PosOnly on 2,028 characters"]
    fedss("simulate", "glyphs-fedss", *often, *posonly, "--out", str(out / "posonly"), *kept)
    step("The training step of MobileNetV3, exported for phones; it checks itself on every runtime.")
    artifact = str(out / "mobilenet-96")
    fedss("export", "--image-size", "96", "--runtimes", "executorch,onnxruntime", "--out", artifact)
    step("What a step costs on this machine, next to PyTorch.")
    fedss("bench", artifact, "--batch", "4", "--widths", "170", "--out", str(out / "bench"), *kept)
    missing = missing_programs(*EMULATOR_PROGRAMS, *QEMU_PROGRAMS)
    if missing:
        step(f"Left out: the emulated phone.  It needs: apt-get install {' '.join(missing)}")
    else:
        step("Clients on an emulated ARM64 phone, through the real adb, beside simulated ones.")
        phone = ["--device", "emulator", "--simulated", "2"]
        fedss("simulate", "glyphs-tiny", "--rounds", "3", *phone, "--out", str(out / "phone"), *kept)
        step("What a step costs there: memory inside the phone, instructions under emulation.")
        for device in ("emulator", "qemu"):
            sizes = ["--batch", "4", "--widths", "170", "--steps", "2", "--out", str(out / "bench")]
            fedss("bench", artifact, "--device", device, "--runtime", "executorch", *sizes, *kept)
    step("The report.")
    page = out / "report.html"
    runs = [
        str(path) for path in (out / "fedss", out / "posonly", out / "phone", out / "bench") if path.exists()
    ]
    fedss("report", *runs, "--out", str(page))
    show_result(as_json, {"out": str(out), "report": str(page)}, f"Open {page} in a browser.")


def _make_room(out: Path) -> None:
    """An earlier demo is replaced; a folder that holds anything else is left alone."""
    if not out.exists():
        return
    entries = sorted(entry.name for entry in out.iterdir()) if out.is_dir() else [out.name]
    others = [name for name in entries if not name.startswith(LEFT_BEHIND)]
    if others:
        raise UsageError(
            f"--out is {out}, where there is more than an earlier demo ({', '.join(others[:3])}); choose another folder"
        )
    shutil.rmtree(out)


def step(title: str) -> None:
    log.print(f"\n{title}", style="bold")


def fedss(*arguments: str) -> None:
    """Run a verb as its own process, as a person would; its result goes to stderr, for stdout is the demo's own."""
    log.print(f"$ fedss {shlex.join(arguments)}", style="dim", soft_wrap=True)
    done = subprocess.run([sys.executable, "-m", "fedss.command_line", *arguments], stdout=sys.stderr)
    if done.returncode:
        raise typer.Exit(done.returncode)
