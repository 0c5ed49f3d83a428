"""Freed memory stays with the process: steps that ask for the same megabytes again fault for them once."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, sys
import numpy as np
from ondevice.model.kept_memory import keep_freed_memory

def step():
    held = [np.ones(1 << 18, np.float32) for _ in range(8)]  # a megabyte each

if sys.argv[1] == "kept":
    keep_freed_memory()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(memory: str) -> int:
    command = [sys.executable, "-c", PROGRAM, memory]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_steps_fault_for_their_memory_once() -> None:
    assert faults("kept") * 10 < faults("given back")
