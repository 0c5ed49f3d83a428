"""`fedss doctor`: what is installed, what is missing, and the line that gets it.

Looks at package metadata, programs and files and imports none of them, so that it answers where little is installed;
where even torch is missing, and with it the other verbs, `python -m fedss.commands.doctor` still runs.
"""

from __future__ import annotations

import importlib.util
import operator
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedss.console import ExitCode, Json, show_result
from fedss.locations import DEFAULT_CACHE, Cache

SIMULATE, EXPORT, EMULATOR, ADB = CAPABILITIES = ("simulate", "export", "emulator", "adb")
"""Federations on this machine; artifacts for phones; emulated phones; real ones.  The last two run what export makes."""

PYTHON = ">=3.11"
MISSING = "missing"

PIP_PACKAGES = {
    SIMULATE: {
        "torch": "==2.13.0",
        "numpy": ">=2.1,<3",
        "safetensors": ">=0.5",
        "pydantic": ">=2.9",
        "typer": ">=0.15",
        "rich": ">=13",
        "pillow": "==13.0.0",
        "matplotlib": "==3.11.2",
        "tensorboard": ">=2.18",
    },
    EXPORT: {
        "executorch": "==1.5.1",
        "onnx": "==1.23.2",
        "onnxruntime-training-cpu": "==1.19.2",
    },
}
"""What each capability adds to those before it, as in pyproject.toml; a test compares the two."""

DEBIAN_PACKAGES = {
    EXPORT: {"g++": "g++"},
    EMULATOR: {
        "qemu-user": "qemu-aarch64",
        "qemu-system-arm": "qemu-system-aarch64",
        "adb": "adb",
        "g++-aarch64-linux-gnu": "aarch64-linux-gnu-g++",
        "nlohmann-json3-dev": "/usr/include/nlohmann/json.hpp",
        "e2fsprogs": "mke2fs",
    },
    ADB: {
        "adb": "adb",
        "g++-aarch64-linux-gnu": "aarch64-linux-gnu-g++",
        "nlohmann-json3-dev": "/usr/include/nlohmann/json.hpp",
    },
}
"""A package, and the program or header that shows it is there: so any system that has it will do."""

TEXT_FACES = re.compile(r"(DejaVuSans|DejaVuSansMono|DejaVuSerif|STIXGeneral)(-?(Bol|Ital|Obl)\w*)?")
NUM_FACES = 16  # what server_sim.data.glyphs.alphabet draws the glyphs data sets with
MIN_FREE_DISK = 2 * 10**9  # the glyphs data sets take 400 MB together; the rest is for runs and bundles


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    found: str
    wanted: str
    ok: bool
    needed_for: Sequence[str]
    remedy: tuple[str, str]
    """A command and what to give it, so that the same command serves several gaps at once."""


def command(cache: Cache = DEFAULT_CACHE, as_json: Json = False) -> None:
    """What is installed, what is missing, and how to get it.  Exits with 0 when federations can be simulated, else 5."""
    findings = examine(cache)
    machine = describe_machine(cache)
    readiness = {capability: lacking_for(capability, findings) for capability in CAPABILITIES}
    payload = {
        "capabilities": {
            capability: {
                "ready": not lacking,
                "needs": [gap.name for gap in lacking],
                "remedies": remedies(lacking),
            }
            for capability, lacking in readiness.items()
        },
        "findings": [_as_json(finding) for finding in findings],
        "machine": machine,
    }
    show_result(as_json, payload, Group(*_tables(findings, readiness, machine)))
    if readiness[SIMULATE]:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def examine(cache: Path) -> list[Finding]:
    """Everything that some capability needs."""
    findings = [_examine_python()]
    for capability, packages in PIP_PACKAGES.items():
        needed_for = CAPABILITIES if capability == SIMULATE else (capability,)
        findings += [_examine_pip(package, wanted, needed_for) for package, wanted in packages.items()]
    findings += [_examine_stock_onnxruntime(), _examine_fonts(), _examine_cache(cache)]
    proofs = {package: proof for packages in DEBIAN_PACKAGES.values() for package, proof in packages.items()}
    findings += [_examine_debian(package, proof) for package, proof in proofs.items()]
    return findings


def lacking_for(capability: str, findings: Iterable[Finding]) -> list[Finding]:
    """What stands between this machine and a capability."""
    return [finding for finding in findings if capability in finding.needed_for and not finding.ok]


def remedies(lacking: Iterable[Finding]) -> list[str]:
    """The lines that close all these gaps, each command once."""
    arguments: dict[str, list[str]] = {}
    for finding in lacking:
        before, argument = finding.remedy
        arguments.setdefault(before, []).append(argument)
    return [" ".join([before, *own]) for before, own in arguments.items()]


def describe_machine(cache: Path) -> dict[str, str | int]:
    """The machine and its cache."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "free_disk_bytes": shutil.disk_usage(_existing_part(cache)).free,
        "cache": str(cache),
        "cache_bytes": sum(file.lstat().st_size for file in cache.rglob("*") if not file.is_dir()),
    }


def satisfies(found: str, wanted: str) -> bool:
    """Whether version `found` is within `wanted`, made of ==, >= and <.  A build's mark (+cpu) does not count."""
    compare = {"==": operator.eq, ">=": operator.ge, "<": operator.lt}
    conditions = re.findall(r"(==|>=|<)([\d.]+)", wanted)
    return all(compare[sign](_release(found), _release(bound)) for sign, bound in conditions)


def _release(text: str) -> tuple[int, ...]:
    """2.13.0+cpu -> (2, 13): a build's mark and zeros at the end do not count."""
    numbers = text.partition("+")[0].removesuffix(".0").removesuffix(".0")
    return tuple(int(number) for number in re.findall(r"\d+", numbers))


def _examine_python() -> Finding:
    found = platform.python_version()
    return Finding(
        "python",
        found,
        PYTHON,
        satisfies(found, PYTHON),
        CAPABILITIES,
        ("apt-get install", "python3.11-venv"),
    )


def _examine_pip(package: str, wanted: str, needed_for: Sequence[str]) -> Finding:
    found = _installed_version(package)
    ok = found is not None and satisfies(found, wanted)
    return Finding(package, found or MISSING, wanted, ok, needed_for, ("pip install", f"'{package}{wanted}'"))


def _examine_stock_onnxruntime() -> Finding:
    """Stock onnxruntime and the training build unpack into the same folder: whichever came last breaks the other."""
    found = _installed_version("onnxruntime")
    wanted = f"onnxruntime-training-cpu{PIP_PACKAGES[EXPORT]['onnxruntime-training-cpu']}"
    remedy = ("pip uninstall -y onnxruntime && pip install --force-reinstall --no-deps", wanted)
    return Finding("stock onnxruntime", found or "absent", "absent", not found, (EXPORT,), remedy)


def _examine_fonts() -> Finding:
    """The glyphs data sets are drawn from matplotlib's own font files, which some distributions leave out."""
    spec = importlib.util.find_spec("matplotlib")
    folder = Path(spec.origin).parent / "mpl-data/fonts/ttf" if spec and spec.origin else Path(os.devnull)
    faces = sum(1 for path in folder.glob("*.ttf") if TEXT_FACES.fullmatch(path.stem))
    matplotlib = f"'matplotlib{PIP_PACKAGES[SIMULATE]['matplotlib']}'"
    return Finding(
        "matplotlib's fonts",
        f"{faces} text faces",
        f"{NUM_FACES} text faces",
        faces >= NUM_FACES,
        (SIMULATE,),
        ("pip install --force-reinstall --no-deps", matplotlib),
    )


def _examine_cache(cache: Path) -> Finding:
    """Rendered data, built programs and downloads go there."""
    place = _existing_part(cache)
    writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    free = shutil.disk_usage(place).free
    return Finding(
        "cache folder",
        f"{'writable' if writable else 'not writable'}, {_gigabytes(free)} free",
        f"writable, {_gigabytes(MIN_FREE_DISK)} free",
        writable and free >= MIN_FREE_DISK,
        CAPABILITIES,
        ("choose a folder with --cache, other than", str(cache)),
    )


def _examine_debian(package: str, proof: str) -> Finding:
    if proof.startswith("/"):
        found = proof if Path(proof).is_file() else None
    else:
        found = shutil.which(proof) or shutil.which(proof, path="/usr/sbin:/sbin")
    needed_for = [capability for capability, packages in DEBIAN_PACKAGES.items() if package in packages]
    return Finding(
        package, found or MISSING, proof, found is not None, needed_for, ("apt-get install", package)
    )


def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _existing_part(path: Path) -> Path:
    """The folder, or the nearest one above it that is there: where it would be made."""
    return next(part for part in (path.absolute(), *path.absolute().parents) if part.exists())


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _as_json(finding: Finding) -> dict[str, object]:
    remedy = None if finding.ok else " ".join(finding.remedy)
    return asdict(finding) | {"remedy": remedy}


def _tables(
    findings: Sequence[Finding], readiness: Mapping[str, Sequence[Finding]], machine: Mapping[str, str | int]
) -> list[Table]:
    looked_at = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header, no_wrap in (("", True), ("", True), ("found", False), ("wanted", False), ("for", True)):
        looked_at.add_column(header, no_wrap=no_wrap, overflow="fold")
    for finding in findings:
        mark = Text("✓", "green") if finding.ok else Text("✗", "red")
        needed_for = "all" if set(finding.needed_for) == set(CAPABILITIES) else ", ".join(finding.needed_for)
        looked_at.add_row(mark, finding.name, finding.found, finding.wanted, needed_for)
    about = Table("", "", box=SIMPLE_HEAD, show_header=False)
    about.add_row("machine", f"{machine['system']}, {machine['cores']} cores")
    about.add_row("memory", _gigabytes(int(machine["memory_bytes"])))
    about.add_row("cache", f"{machine['cache']}, holding {_gigabytes(int(machine['cache_bytes']))}")
    verdicts = Table("", "", box=SIMPLE_HEAD, show_header=False)
    for capability, lacking in readiness.items():
        gaps = "\n".join([", ".join(gap.name for gap in lacking), *remedies(lacking)])
        verdict = Text.assemble(("needs", "red"), " ", gaps) if lacking else Text("ready", "green")
        verdicts.add_row(Text(capability, "bold"), verdict)
    return [looked_at, about, verdicts]


if __name__ == "__main__":
    typer.run(command)
