"""Emulated ARM64 phones: whole machines with a fixed amount of memory, reached by the real adb client.

A machine is a folder `cache_dir/emulators/NAME` (its disk, its console's log, `machine.json`) and one qemu process.
Two kinds of life:

* *standing* (`fedss emulator start`): runs until it is stopped, by whichever process; on the user's adb server.
* *tied* (tests, one-command runs): dies with the process that started it, however that ends, with its adb server;
  what it leaves on disk when there was no time to tidy up is swept away by the next start or status.

Memory is enforced for real: a client that needs more than the machine has is killed by the guest's kernel.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from android_harness.bundles.debian_packages import find_program
from android_harness.devices.adb import AdbDevice
from android_harness.devices.adb_server import AdbServer, free_port
from android_harness.devices.device import DeviceError, FailureReason
from android_harness.devices.qemu import option_path
from android_harness.emulator.guest_image import guest_image, make_disk
from android_harness.emulator.register import (
    Machine,
    emulator_status,
    enter_machine,
    machine_folder,
    update_machine,
)
from android_harness.processes.process_identity import ProcessIdentity
from android_harness.processes.tied_process import start_tied

# What must be installed for `start_emulator` to work.
EMULATOR_PROGRAMS = (
    "qemu-system-aarch64",
    "adb",
    "aarch64-linux-gnu-g++",
    "mke2fs",
    "apt-get",
    "dpkg-deb",
    "setpriv",
)
_MIN_MEMORY_MB = 80  # leaves 25 MB for the client; the kernel and what it sets apart have the rest
_BOOT_SECONDS = 120.0  # it takes 2 to 3 on an idle host
# Left out: self-tests of ciphers (a quarter of the work of booting), defences of the kernel against its users (a
# quarter of the cost of starting a program), and 64 MB set apart for devices that this machine does not have.
_KERNEL_ARGUMENTS = (
    "rdinit=/init console=ttyAMA0 quiet panic=-1 cryptomgr.notests nokaslr mitigations=off cma=0"
)


class Emulator:
    """A handle on one machine: to get its device, to cut its power and give it back, to end it."""

    def __init__(self, cache_dir: Path, machine: Machine, server: AdbServer) -> None:
        self._folder = machine_folder(cache_dir, machine.name)
        self._cache_dir = cache_dir
        self.server = server
        self._child: subprocess.Popen[bytes] | None = None  # when it is ours to reap
        self.machine = machine

    def device(
        self, folder: str | None = None, patience: float = 30.0, stop_on_close: bool = False
    ) -> AdbDevice:
        """The machine as a `Device`; closing it ends the machine too if so asked."""
        return AdbDevice(
            self.machine.serial,
            self.server,
            name=f"emulator:{self.machine.name}",
            folder=folder,
            patience=patience,
            has_power=lambda: self.machine.is_running,
            on_close=self.stop if stop_on_close else lambda: None,
        )

    def power_on(self) -> None:
        """Boots the machine from its disk as it is, and returns once adb reaches it."""
        for attempt in range(3):  # another process may take the port between our looking and qemu's binding
            try:
                self._boot()
                break
            except _PortTaken:
                if attempt == 2:
                    raise
                self.machine = replace(self.machine, adb_port=free_port())
        try:
            self.device().wait_until_reachable(_BOOT_SECONDS)
        except BaseException:  # Ctrl-C included: a machine that nobody was told of must not go on running
            self.power_off()
            raise

    def power_off(self) -> None:
        """Pulls the plug: nothing is told to the guest.  Its disk stays."""
        if self.machine.process is not None and self.machine.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.machine.process.pid, signal.SIGKILL)
            while self.machine.is_running:
                time.sleep(0.01)
        if self._child is not None:
            self._child.wait()
            self._child = None

    def stop(self) -> None:
        """Powers the machine off and deletes everything it had."""
        self.power_off()
        if self.server.is_running():
            with suppress(subprocess.TimeoutExpired):
                self.server.run(["disconnect", self.machine.serial], timeout=10.0)
        self.server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        if not self.machine.tied:
            _stop_shared_server_if_ours(self._cache_dir, self.server)

    def _boot(self) -> None:
        image = guest_image(self._cache_dir)
        machine = self.machine
        console = self._folder / "console.log"
        console.unlink(missing_ok=True)
        # fmt: off
        command = [
            find_program("qemu-system-aarch64"), "-nodefaults", "-display", "none", "-no-reboot",
            "-machine", "virt,gic-version=2", "-cpu", machine.cpu, "-smp", str(machine.cores),
            "-m", str(machine.memory_mb),
            "-kernel", str(image.kernel), "-initrd", str(image.initramfs), "-append", _KERNEL_ARGUMENTS,
            "-chardev", f"file,id=console,path={option_path(console)}", "-serial", "chardev:console",
            # Killing qemu is the phone's power failure, not the host's: the host's page cache may be trusted.
            "-drive", f"if=none,id=disk,file={option_path(self._folder / 'disk.img')},format=raw,cache=unsafe",
            "-device", "virtio-blk-device,drive=disk",
            # The guest's network is one port from here to adbd and nothing else, in either direction.
            "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{machine.adb_port}-10.0.2.15:5555",
            "-device", "virtio-net-device,netdev=net",
        ]
        # fmt: on
        with (self._folder / "qemu.log").open("wb") as log:
            if machine.tied:
                self._child = start_tied(command, stdout=log, stderr=log)
            else:
                self._child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        try:
            self.machine = replace(machine, process=ProcessIdentity.of(self._child.pid))
            update_machine(self._cache_dir, self.machine)
            self._wait_for_adbd(console)
        except BaseException:  # Ctrl-C included
            self._child.kill()
            self._child.wait()
            self._child = None
            raise

    def _wait_for_adbd(self, console: Path) -> None:
        assert self._child is not None
        deadline = time.monotonic() + _BOOT_SECONDS
        while not (console.exists() and b"adbd: ready" in console.read_bytes()):
            ended = self._child.poll() is not None
            if ended or time.monotonic() > deadline:
                said = (self._folder / "qemu.log").read_text(errors="replace").strip()
                if "Could not set up host forwarding rule" in said:
                    raise _PortTaken(FailureReason.FAILED, said)
                shown = console.read_text(errors="replace")[-1500:].strip() if console.exists() else ""
                raise DeviceError(
                    FailureReason.FAILED,
                    f"emulator {self.machine.name!r} ({self.machine.memory_mb} MB, {self.machine.cpu}) "
                    f"{'ended' if ended else 'is not up'} before adbd was ready; qemu: {said or '-'}; "
                    f"console: {shown or '-'}",
                )
            time.sleep(0.02)


class _PortTaken(DeviceError):
    """The port chosen for adb is in use; another will do."""


def start_emulator(
    cache_dir: Path,
    name: str,
    *,
    memory_mb: int = 512,
    cpu: str = "cortex-a76",
    cores: int = 1,
    disk_mb: int = 8192,
    tied: bool = False,
) -> Emulator:
    """Boots a new machine with an empty disk.  `cpu` is a name that `qemu-system-aarch64 -cpu help` lists."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ValueError(f"emulator name {name!r}: expected letters, digits, '.', '_' and '-', at most 64")
    if memory_mb < _MIN_MEMORY_MB:
        raise ValueError(
            f"emulator memory {memory_mb} MB: the guest's kernel needs at least {_MIN_MEMORY_MB} MB"
        )
    if cores < 1 or cores > 8:
        raise ValueError(f"emulator cores {cores}: expected 1 to 8")
    image = guest_image(cache_dir)
    machine = Machine(
        name, memory_mb, cpu, cores, disk_mb, free_port(), ProcessIdentity.of_this_process(), tied
    )
    folder = enter_machine(cache_dir, machine)
    server = AdbServer(home=folder if tied else None)
    if not tied and not server.is_running():
        _server_is_ours(cache_dir).touch()
    emulator = Emulator(cache_dir, machine, server)
    try:
        make_disk(image, folder / "disk.img", disk_mb)
        emulator.power_on()
    except BaseException:  # Ctrl-C included: a start that did not succeed leaves nothing
        emulator.stop()
        raise
    return emulator


@contextmanager
def tied_emulator(
    cache_dir: Path,
    name: str,
    *,
    memory_mb: int = 512,
    cpu: str = "cortex-a76",
    cores: int = 1,
    disk_mb: int = 8192,
) -> Iterator[Emulator]:
    """A machine for the length of a `with`, or of this process, whichever ends first."""
    emulator = start_emulator(
        cache_dir, name, memory_mb=memory_mb, cpu=cpu, cores=cores, disk_mb=disk_mb, tied=True
    )
    try:
        yield emulator
    finally:
        emulator.stop()


def attach_emulator(cache_dir: Path, name: str) -> Emulator:
    """A handle on a standing machine that somebody started."""
    for machine in emulator_status(cache_dir):
        if machine.name == name and not machine.tied:
            return Emulator(cache_dir, machine, AdbServer())
    standing = [machine.name for machine in emulator_status(cache_dir) if not machine.tied]
    raise DeviceError(
        FailureReason.GONE,
        f"no emulator {name!r}; there are {standing}; run: fedss emulator start --name {name}",
    )


def stop_emulator(cache_dir: Path, name: str) -> None:
    """Powers a standing machine off and deletes it; it may have died already."""
    attach_emulator(cache_dir, name).stop()


def _server_is_ours(cache_dir: Path) -> Path:
    """Exists while the shared adb server runs because a standing machine needed it, and for no other reason."""
    return cache_dir / "emulators" / "adb_server_is_ours"


def _stop_shared_server_if_ours(cache_dir: Path, server: AdbServer) -> None:
    """Ends the shared adb server with the last standing machine, unless somebody else has come to use it."""
    if any(not machine.tied for machine in emulator_status(cache_dir)):
        return
    if _server_is_ours(cache_dir).exists() and server.is_running():
        devices = server.run(["devices"], timeout=10.0).stdout.decode(errors="replace")
        if "\t" not in devices:  # one line with a tab for every device
            server.run(["kill-server"], timeout=10.0)
    _server_is_ours(cache_dir).unlink(missing_ok=True)
