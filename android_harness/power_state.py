"""What a physical device tells about its power while it works: temperature, clock, and the charge left in its battery.

One shell script there, pure parsing here; what a device does not tell is None.  Emulated devices are not asked: what they
would answer is the host's, or made up.
"""

from __future__ import annotations

from dataclasses import dataclass

from android_harness.device import Device

# The Linux way first; Android hides it from the shell on many phones and tells the same through dumpsys.
_SCRIPT = """
for file in /sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq; do echo "khz=$(cat $file 2>/dev/null)"; done
echo "zone=$(cat /sys/class/thermal/thermal_zone0/temp 2>/dev/null)"
dumpsys battery 2>/dev/null | while IFS=: read -r key value; do echo "battery.$key=$value"; done
true
"""
_DISCHARGING = "3"  # Android's BatteryManager.BATTERY_STATUS_DISCHARGING
_TIMEOUT = 30.0


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
    pairs = [
        (key.strip(), value.strip())
        for key, _, value in (line.partition("=") for line in answer.splitlines())
    ]
    said = {key: int(value) for key, value in pairs if value.isdigit()}
    clocks = [int(value) for key, value in pairs if key == "khz" and value.isdigit()]
    battery, zone = said.get("battery.temperature"), said.get("zone")  # tenths and thousandths of a degree
    discharging = ("battery.status", _DISCHARGING) in pairs
    return PowerState(
        temperature_celsius=battery / 10
        if battery is not None
        else zone / 1000
        if zone is not None
        else None,
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
