"""Being told to stop: SIGTERM unwinds like Ctrl-C does, so that what was half made is removed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def unwinding_on_sigterm() -> Iterator[None]:
    """Inside the block SIGTERM raises SystemExit with the shell's code for it; outside, everything is as before."""
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature is Python's
    sys.exit(128 + number)
