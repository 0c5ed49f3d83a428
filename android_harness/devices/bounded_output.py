"""What a program prints, up to a limit: a device that prints without end fills no memory here.

`subprocess.communicate` takes whatever comes.  Here two threads read, each up to `MAX_OUTPUT_BYTES`, and a program that
prints more is killed.  What was read until a time-out or Ctrl-C can be looked at afterwards.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
import time
from typing import IO

MAX_OUTPUT_BYTES = 16 << 20
"""On each of the two streams; no program of ours prints a tenth of it."""
_CHUNK_BYTES = 1 << 16
_LAST_WORDS_SECONDS = 1.0


class OutputTooLong(ValueError):
    """A program printed more than `MAX_OUTPUT_BYTES`, and was killed."""


class BoundedOutput:
    """A process that was started with three pipes, fed and listened to."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdout, self._stderr = bytearray(), bytearray()
        self._ended: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=_feed, args=(process.stdin, stdin), daemon=True),
            threading.Thread(target=self._read, args=("stdout", process.stdout, self._stdout), daemon=True),
            threading.Thread(target=self._read, args=("stderr", process.stderr, self._stderr), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def stdout(self) -> bytes:
        """What has come so far."""
        return bytes(self._stdout)

    @property
    def stderr(self) -> bytes:
        """What has come so far."""
        return bytes(self._stderr)

    def wait(self, timeout: float) -> int:
        """The exit code, once both streams are at their end.

        `subprocess.TimeoutExpired` and `OutputTooLong` leave the process to the caller, who may have more to kill.
        """
        deadline = time.monotonic() + timeout
        for _ in range(2):
            try:
                too_long = self._ended.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                raise subprocess.TimeoutExpired(self._process.args, timeout) from None
            if too_long is not None:
                raise OutputTooLong(
                    f"it printed more than {MAX_OUTPUT_BYTES >> 20} MB on {too_long}, which no program of ours does"
                )
        return self._process.wait(timeout=max(deadline - time.monotonic(), 0.0))

    def kill(self) -> None:
        """Ends the process and takes in its last words."""
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join(_LAST_WORDS_SECONDS)

    def _read(self, name: str, stream: IO[bytes], into: bytearray) -> None:
        too_long = None
        with stream, contextlib.suppress(OSError):  # of a pipe that was closed under us
            while chunk := stream.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]  # IO[bytes] does not declare it
                into += chunk
                if len(into) > MAX_OUTPUT_BYTES:
                    too_long = name
                    break
        self._ended.put(too_long)


def _feed(stream: IO[bytes], data: bytes) -> None:
    # A program may end without having read everything.
    with contextlib.suppress(OSError), stream:
        stream.write(data)
