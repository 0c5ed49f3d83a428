"""The emulated phones there are: one folder and one `machine.json` each under `cache_dir/emulators`.

The register is what lets any process see, use and stop a machine that another has started, and tidy up after one
that was killed.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from android_harness.processes.process_identity import ProcessIdentity
from ondevice.tools.cache_lock import cache_lock


@dataclass(frozen=True)
class Machine:
    """What `machine.json` says about an emulated phone."""

    name: str
    memory_mb: int
    cpu: str
    cores: int
    disk_mb: int
    adb_port: int  # on 127.0.0.1; the serial number for adb is 127.0.0.1:PORT
    started_by: ProcessIdentity
    tied: bool  # to the life of the process that started it
    process: ProcessIdentity | None = None  # None: not yet booted

    @property
    def serial(self) -> str:
        return f"127.0.0.1:{self.adb_port}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive()

    @property
    def is_starting(self) -> bool:
        return self.process is None and self.started_by.is_alive()


def machine_folder(cache_dir: Path, name: str) -> Path:
    """Absolute, because qemu and the adb server are started elsewhere."""
    return cache_dir.resolve() / "emulators" / name


def enter_machine(cache_dir: Path, machine: Machine) -> Path:
    """Makes the folder of a new machine; ValueError if one of that name is there and alive."""
    with cache_lock(cache_dir, "emulators"):
        for other in emulator_status(cache_dir):
            if other.name == machine.name and (other.is_running or other.is_starting):
                raise ValueError(
                    f"emulator {other.name!r} is running already; stop it, or choose another name"
                )
        folder = machine_folder(cache_dir, machine.name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        update_machine(cache_dir, machine)
        return folder


def update_machine(cache_dir: Path, machine: Machine) -> None:
    """Writes what has become known of a machine that was entered."""
    folder = machine_folder(cache_dir, machine.name)
    scratch = folder / f"machine.json.{os.getpid()}.part"
    scratch.write_text(json.dumps(asdict(machine), indent=1))
    os.replace(scratch, folder / "machine.json")


def emulator_status(cache_dir: Path) -> list[Machine]:
    """Every machine there is, running or not; what killed processes have left of theirs is swept away first."""
    machines = []
    for file in sorted((cache_dir / "emulators").glob("*/machine.json")):
        machine = _read_machine(file)
        if machine is None:
            continue
        if machine.tied and not machine.started_by.is_alive() and not machine.is_running:
            shutil.rmtree(file.parent, ignore_errors=True)
        else:
            machines.append(machine)
    return machines


def _read_machine(file: Path) -> Machine | None:
    """None: stopped, and its folder deleted, while we were looking."""
    try:
        fields = json.loads(file.read_text())
        fields["started_by"] = ProcessIdentity(**fields["started_by"])
        fields["process"] = ProcessIdentity(**fields["process"]) if fields["process"] else None
        return Machine(**fields)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} was not written by this version ({error!r}); end its qemu-system-aarch64 if it runs, "
            f"then delete the folder {file.parent}"
        ) from error
