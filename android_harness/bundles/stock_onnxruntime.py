"""The stock ONNX Runtime for a process of this host: what a phone has, beside the training build that is installed here.

Both unpack into `onnxruntime/`, so that one environment cannot have both.  Instead, the wheels that bundles are made of are
put before the installed packages of one process (`PYTHONPATH`).
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from android_harness.bundles.bundle import ONNXRUNTIME_WHEELS
from android_harness.bundles.wheels import PYTHON, WheelError, unpack_wheel


def stock_onnxruntime_folders(cache_dir: Path) -> list[Path]:
    """Folders to import the stock runtime from, fetched into the cache at the first time."""
    running = ".".join(map(str, sys.version_info[:2]))
    if running != PYTHON:
        raise WheelError(
            f"the stock ONNX Runtime is fetched for Python {PYTHON}, and this is {running}; "
            f"run under Python {PYTHON}, or measure the bundle: fedss bench --runtime onnxruntime"
        )
    return [unpack_wheel(cache_dir, wheel, platform.machine()).root for wheel in ONNXRUNTIME_WHEELS]


def stock_onnxruntime_versions() -> dict[str, str]:
    """What those folders hold."""
    return dict(wheel.split("==") for wheel in ONNXRUNTIME_WHEELS)
