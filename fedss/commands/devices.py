"""`fedss devices`: where clients could train now, and what the others still need."""

from __future__ import annotations

from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from android_harness.devices.device import DeviceDescription
from android_harness.devices.listing import ListedDevice, list_devices
from fedss.console import Json, show_result
from fedss.locations import DEFAULT_CACHE, Cache


def command(cache: Cache = DEFAULT_CACHE, as_json: Json = False) -> None:
    """List the devices: this machine, emulated phones, and whatever adb reaches.

    Their names are what --device takes in other commands.
    """
    listed = list_devices(cache)
    show_result(as_json, {"devices": [asdict(device) for device in listed]}, devices_table(listed))


def devices_table(listed: list[ListedDevice]) -> Group:
    """One line per device; below, what each is, and what to do about those that are not ready."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    for title in ("device", "state", "ABI", "cores", "RAM MB", "free MB", "battery"):
        numeric = title not in ("device", "state", "ABI")
        table.add_column(title, justify="right" if numeric else "left", no_wrap=True)
    for device in listed:
        table.add_row(
            Text(device.name),
            Text(device.state),
            *(map(Text, _figures(device.description)) if device.description else ()),
        )
    remarks = [
        Text(f"{device.name}: {device.advice or _system(device.description)}")
        for device in listed
        if device.advice or device.description
    ]
    return Group(table, *remarks)


def _figures(about: DeviceDescription) -> list[str]:
    battery = [
        *([f"{about.battery_percent} %"] if about.battery_percent is not None else []),
        *([f"{about.temperature_celsius:g} °C"] if about.temperature_celsius is not None else []),
    ]
    return [about.abi, str(about.cores), str(about.ram_mb), str(about.free_mb), ", ".join(battery)]


def _system(about: DeviceDescription | None) -> str:
    if about is None:
        return ""
    android = f", Android {about.android_version}" if about.android_version else ""
    return f"{about.model}{android}, Linux {about.kernel}"
