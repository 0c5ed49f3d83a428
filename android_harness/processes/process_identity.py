"""Which process is meant, when all that is left of it may be a number in a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessIdentity:
    """A process for certain: numbers are reused, a number with its start time is not."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """None if there is no such process, or only its exit status is left."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        state, start_ticks = fields[0], int(fields[19])
        return None if state in "ZX" else cls(pid, start_ticks)

    @classmethod
    def of_this_process(cls) -> ProcessIdentity:
        this = cls.of(os.getpid())
        assert this is not None
        return this

    def is_alive(self) -> bool:
        return ProcessIdentity.of(self.pid) == self
