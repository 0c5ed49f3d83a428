"""Which devices there are, and how the names on the command line become devices.

`host` · `qemu` · `emulator` (a phone started for this run alone) · `emulator:NAME` (a standing one) · `adb:SERIAL`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from android_harness.bundles.debian_packages import MissingPackage, missing_programs
from android_harness.devices.adb import AdbDevice
from android_harness.devices.adb_server import AdbServer
from android_harness.devices.device import Device, DeviceDescription, DeviceError
from android_harness.devices.host import HostDevice
from android_harness.devices.qemu import QEMU_PROGRAMS, QemuDevice
from android_harness.emulator.machine import EMULATOR_PROGRAMS, attach_emulator, start_emulator
from android_harness.emulator.register import emulator_status

_LISTING_PATIENCE = 5.0  # seconds a device may keep a mere listing waiting
_tied_numbers = itertools.count(1)


@dataclass(frozen=True)
class ListedDevice:
    """A line of `fedss devices`."""

    name: str
    state: str  # "ready"; otherwise why it is not
    advice: str = ""  # what to do about it
    description: DeviceDescription | None = None  # of a device that is ready


def open_device(name: str, cache_dir: Path, *, memory_mb: int = 512) -> Device:
    """The device called `name`, to be closed by the caller.  `memory_mb` is for a new `emulator`."""
    kind, _, detail = name.partition(":")
    if name == "host":
        return HostDevice()
    if name == "qemu":
        return QemuDevice(cache_dir)
    if name == "emulator":
        own_name = f"tied-{os.getpid()}-{next(_tied_numbers)}"
        emulator = start_emulator(cache_dir, own_name, memory_mb=memory_mb, tied=True)
        return emulator.device(stop_on_close=True)
    if kind == "emulator" and detail:
        return attach_emulator(cache_dir, detail).device()
    if kind == "adb" and detail:
        return AdbDevice(detail, AdbServer())
    raise ValueError(f"device {name!r}: expected host, qemu, emulator, emulator:NAME or adb:SERIAL")


def list_devices(cache_dir: Path) -> list[ListedDevice]:
    """Every device that could be used now or after the advice is followed.  Leaves nothing running."""
    listed = [_describe(HostDevice()), _list_qemu(cache_dir), _list_new_emulator()]
    standing = [machine for machine in emulator_status(cache_dir) if not machine.tied]
    try:
        server = AdbServer()
    except MissingPackage as missing:
        return [*listed, ListedDevice("adb", "not installed", advice=str(missing))]
    was_running = server.is_running()
    try:
        for machine in standing:
            if machine.is_running:
                listed.append(
                    _describe(attach_emulator(cache_dir, machine.name).device(patience=_LISTING_PATIENCE))
                )
            else:
                advice = f"run: fedss emulator start --name {machine.name}"
                listed.append(ListedDevice(f"emulator:{machine.name}", "powered off", advice))
        listed += _list_adb(server, known={machine.serial for machine in standing})
    finally:
        if not was_running and not any(machine.is_running for machine in standing):
            subprocess.run(server.command("kill-server"), capture_output=True)
    return listed


def _list_qemu(cache_dir: Path) -> ListedDevice:
    missing = missing_programs(*QEMU_PROGRAMS)
    if missing:
        return ListedDevice("qemu", "not installed", f"run: apt-get install {' '.join(missing)}")
    return _describe(QemuDevice(cache_dir))


def _list_new_emulator() -> ListedDevice:
    missing = missing_programs(*EMULATOR_PROGRAMS)
    if missing:
        return ListedDevice("emulator", "not installed", f"run: apt-get install {' '.join(missing)}")
    return ListedDevice("emulator", "can be started", "run: fedss emulator start --name NAME --memory MB")


def _list_adb(server: AdbServer, known: set[str]) -> list[ListedDevice]:
    listed = []
    answer = server.run(["devices"], timeout=30.0).stdout.decode(errors="replace")
    for serial, state in parse_adb_devices(answer):
        if serial in known:
            continue
        if state == "device":
            listed.append(_describe(AdbDevice(serial, server, patience=_LISTING_PATIENCE)))
        else:
            advice = {
                "unauthorized": "accept the debugging prompt on its screen",
                "offline": "unplug and plug it in again, or run: adb reconnect",
            }.get(state, "see `adb devices`")
            listed.append(ListedDevice(f"adb:{serial}", state, advice))
    return listed


def parse_adb_devices(answer: str) -> list[tuple[str, str]]:
    """(serial, state) for every line of `adb devices` after its heading."""
    rows = [line.partition("\t") for line in answer.splitlines() if "\t" in line]
    return [(serial.strip(), state.strip()) for serial, _, state in rows]


def _describe(device: Device) -> ListedDevice:
    with closing(device):
        try:
            return ListedDevice(device.name, "ready", description=device.describe())
        except DeviceError as error:
            return ListedDevice(device.name, str(error.reason), advice=str(error))
