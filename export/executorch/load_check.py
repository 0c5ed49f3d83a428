"""Does the runtime have a kernel for everything that a program calls?  Asked of the runtime, which alone knows.

An operator without a kernel is found when the program is loaded and not before; on a phone that would be too late.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from export.unsupported_operator import UnsupportedOperator
from ondevice.contract.artifacts.program_calls import ProgramCalls
from ondevice.native.runtime.program import Program, ProgramError

_MISSING = re.compile(r"Missing operator: \[\d+\] ([\w:.]+)")
MOST_LAYERS = 3
"""That the message names for one operator."""


def check_loads(program: bytes, calls: ProgramCalls | None = None) -> None:
    """Raises UnsupportedOperator with the operators that have no kernel, and the layers that call them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.pte"
        path.write_bytes(program)
        try:
            Program(path).close()
        except ProgramError as error:
            missing = sorted(set(_MISSING.findall(str(error))))
            if not missing:
                raise
            described = ", ".join(f"{name}{_where(name, calls)}" for name in missing)
            raise UnsupportedOperator(
                f"executorch has no kernel for {described}; "
                "write the layer in other operators, or export for onnxruntime"
            ) from None


def _where(name: str, calls: ProgramCalls | None) -> str:
    layers = list(dict.fromkeys(call.layer for call in calls.calls if call.operator == name)) if calls else []
    if not layers:
        return ""
    more = f" and {len(layers) - MOST_LAYERS} more" if len(layers) > MOST_LAYERS else ""
    return f" (in {', '.join(layers[:MOST_LAYERS])}{more})"
