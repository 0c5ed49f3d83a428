"""When which process has to be done: one thread kills those that are not.

That ends everything the server may be waiting for: a message that does not come, one that comes by half, and one that the
process does not take.
"""

from __future__ import annotations

import threading
import time
from multiprocessing.process import BaseProcess


class Deadlines:
    """Of the processes of an engine.  To set or lift one takes no thread of its own, and mostly wakes none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ends: dict[BaseProcess, float] = {}
        self._killed: set[BaseProcess] = set()
        self._wakes_at = float("inf")
        self._closed = False
        threading.Thread(target=self._watch, name="deadlines", daemon=True).start()

    def set(self, process: BaseProcess, seconds: float) -> None:
        """From now on; what was set before is lifted."""
        with self._changed:
            end = time.monotonic() + seconds
            self._ends[process] = end
            if end < self._wakes_at:
                self._changed.notify()

    def lift(self, process: BaseProcess) -> bool:
        """True if the process was killed."""
        with self._changed:
            self._ends.pop(process, None)
            killed = process in self._killed
            self._killed.discard(process)
            return killed

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                for process in [process for process, end in self._ends.items() if end <= now]:
                    del self._ends[process]
                    self._killed.add(process)
                    process.kill()
                self._wakes_at = min(self._ends.values(), default=float("inf"))
                self._changed.wait(None if self._wakes_at == float("inf") else self._wakes_at - now)
