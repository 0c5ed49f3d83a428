"""How a device behind adb describes itself: one shell script there, pure parsing here.

The script uses only what Android's toybox, busybox and coreutils have in common, and lets what is absent be empty.
"""

from __future__ import annotations

from android_harness.devices.device import DeviceDescription, DeviceError, FailureReason

DESCRIBE_SCRIPT = """
echo "machine=$(uname -m)"
echo "kernel=$(uname -r)"
echo "cores=$(nproc)"
echo "ram=$(grep MemTotal /proc/meminfo)"
echo "free=$(stat -f -c '%a %S' /data/local/tmp)"
for key in ro.product.manufacturer ro.product.model ro.build.version.release ro.kernel.qemu ro.boot.qemu; do
  echo "$key=$(getprop $key 2>/dev/null)"
done
echo "zone=$(cat /sys/class/thermal/thermal_zone0/temp 2>/dev/null)"
dumpsys battery 2>/dev/null | while read -r key value; do echo "battery.$key=$value"; done
true
"""

_MOST_DIGITS = 19
"""Of a number that a device may print."""
_LONGEST_TEXT = 200


def parse_description(name: str, answer: str) -> DeviceDescription:
    """What `DESCRIBE_SCRIPT` printed on the device called `name`."""
    said = {key: _printable(value) for key, _, value in (line.partition("=") for line in answer.splitlines())}
    try:
        free_blocks, block_size = said["free"].split()
        return DeviceDescription(
            name=name,
            model=" ".join(filter(None, [said["ro.product.manufacturer"], said["ro.product.model"]]))
            or "unknown",
            abi=said["machine"],
            cores=_number(said["cores"]),
            ram_mb=_number(said["ram"].split()[1]) // 1024,  # "MemTotal:  497764 kB"
            kernel=said["kernel"],
            free_mb=_number(free_blocks) * _number(block_size) // 2**20,
            emulated="1" in (said["ro.kernel.qemu"], said["ro.boot.qemu"]),
            android_version=said["ro.build.version.release"] or None,
            battery_percent=_optional_int(said.get("battery.level:")),
            temperature_celsius=_temperature(said),
        )
    except (KeyError, ValueError, IndexError) as error:
        raise DeviceError(
            FailureReason.FAILED,
            f"{name} described itself in a way that is not understood ({error!r}): {answer[:1000]!r}",
        ) from error


def _temperature(said: dict[str, str]) -> float | None:
    """Of the battery, in tenths of a degree, as Android has it; else of the first thermal zone, in thousandths."""
    battery, zone = _optional_int(said.get("battery.temperature:")), _optional_int(said.get("zone"))
    if battery is not None:
        return battery / 10
    return zone / 1000 if zone is not None else None


def _optional_int(text: str | None) -> int | None:
    return _number(text) if text else None


def _printable(text: str) -> str:
    """It will be shown on a terminal and written beside measurements."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST_TEXT])


def _number(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits; expected at most {_MOST_DIGITS}")
    return int(text)
