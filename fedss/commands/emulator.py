"""`fedss emulator start|stop|status`: emulated ARM64 phones that stand until they are stopped."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from android_harness.emulator.machine import start_emulator, stop_emulator
from android_harness.emulator.register import Machine, emulator_status
from fedss.console import Json, UsageError, log, show_result
from fedss.locations import DEFAULT_CACHE, Cache
from fedss.termination import unwinding_on_sigterm

Name = Annotated[str, typer.Option("--name", help="What to call it: --device emulator:NAME.")]

app = typer.Typer(
    help="Emulated ARM64 phones with a fixed amount of memory, reached by adb.", no_args_is_help=True
)


@app.command("start")
def start(
    name: Name = "phone1",
    memory: Annotated[int, typer.Option(help="RAM in MB; a client that needs more is killed.")] = 512,
    cpu: Annotated[str, typer.Option(help="As `qemu-system-aarch64 -cpu help` lists them.")] = "cortex-a76",
    cores: Annotated[int, typer.Option(help="1 to 8.")] = 1,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
) -> None:
    """Boot a phone with an empty disk; it runs until it is stopped."""
    log.print(f"booting {name}: {cpu}, {cores} cores, {memory} MB")
    with unwinding_on_sigterm():
        try:
            emulator = start_emulator(cache, name, memory_mb=memory, cpu=cpu, cores=cores)
        except ValueError as error:
            raise UsageError(str(error)) from error
    payload = _payload(emulator.machine)
    hint = f"emulator:{name} is up; a shell: adb -s {emulator.machine.serial} shell"
    show_result(as_json, payload, hint)


@app.command("stop")
def stop(name: Name = "phone1", cache: Cache = DEFAULT_CACHE, as_json: Json = False) -> None:
    """Switch a phone off and delete its disk."""
    stop_emulator(cache, name)
    show_result(as_json, {"stopped": name}, f"emulator:{name} is gone")


@app.command("status")
def status(cache: Cache = DEFAULT_CACHE, as_json: Json = False) -> None:
    """List the phones there are."""
    machines = [machine for machine in emulator_status(cache) if not machine.tied]
    table = Table("phone", "state", "CPU", "cores", "RAM", "adb serial", box=SIMPLE_HEAD)
    for machine in machines:
        state = _state(machine)
        serial = machine.serial if machine.is_running else ""
        table.add_row(machine.name, state, machine.cpu, str(machine.cores), f"{machine.memory_mb} MB", serial)
    nothing = "no phones; start one with: fedss emulator start --name phone1 --memory 512"
    payload = {"emulators": [_payload(machine) for machine in machines]}
    show_result(as_json, payload, table if machines else nothing)


def _payload(machine: Machine) -> dict[str, Any]:
    return {
        **asdict(machine),
        "device": f"emulator:{machine.name}",
        "serial": machine.serial,
        "state": _state(machine),
    }


def _state(machine: Machine) -> str:
    if machine.is_running:
        return "running"
    return "starting" if machine.is_starting else "powered off"
