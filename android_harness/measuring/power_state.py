"""What a physical device tells about its power while it works: temperature, clock, and the charge left in its battery.

One shell script there, pure parsing here; what a device does not tell is None.  Emulated devices are not asked: what they
would answer is the host's, or made up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from android_harness.devices.device import Device

# The Linux way first; Android hides it from the shell on many phones and tells the same through dumpsys.
_SCRIPT = r"""
for file in /sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq; do echo "khz=$(cat $file 2>/dev/null)"; done
echo "zone=$(cat /sys/class/thermal/thermal_zone0/temp 2>/dev/null)"
dumpsys battery 2>/dev/null | sed -n 's/^ *\([^:]*\): */battery.\1=/p'
true
"""
_DISCHARGING = 3  # Android's BatteryManager.BATTERY_STATUS_DISCHARGING
_TIMEOUT = 30.0
_NUMBER = re.compile(r"[0-9]{1,15}")  # what else a device may print is not one


@dataclass(frozen=True)
class PowerState:
    """One look at a device."""

    temperature_celsius: float | None = None
    frequency_mhz: float | None = None
    """Of the fastest core at that moment."""
    charge_microamperehours: int | None = None
    """What is left in the battery; None while it is being charged, for then it says nothing about the work done."""
    millivolts: int | None = None


def read_power_state(device: Device) -> PowerState:
    return parse_power_state(device.run(["sh", "-c", _SCRIPT], _TIMEOUT).stdout)


def parse_power_state(answer: str) -> PowerState:
    """What the script printed."""
    lines = (line.partition("=") for line in answer.splitlines())
    pairs = [(key, int(value)) for key, _, value in lines if _NUMBER.fullmatch(value.strip())]
    said = dict(pairs)
    clocks = [value for key, value in pairs if key == "khz"]
    temperature = None
    if "battery.temperature" in said:
        temperature = said["battery.temperature"] / 10
    elif "zone" in said:
        temperature = said["zone"] / 1000
    discharging = said.get("battery.status") == _DISCHARGING
    return PowerState(
        temperature_celsius=temperature,
        frequency_mhz=max(clocks) / 1000 if clocks else None,
        charge_microamperehours=said.get("battery.Charge counter") if discharging else None,
        millivolts=said.get("battery.voltage"),
    )


def energy_millijoules(before: PowerState, after: PowerState) -> float | None:
    """Drawn from the battery between two looks; None where the device does not tell, or its counter did not move."""
    if (
        before.charge_microamperehours is None
        or after.charge_microamperehours is None
        or after.millivolts is None
    ):
        return None
    used = before.charge_microamperehours - after.charge_microamperehours
    return used * 3.6 * after.millivolts / 1000 if used > 0 else None  # 1 µAh is 3.6 mC
