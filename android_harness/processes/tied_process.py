"""Child processes that cannot outlive this one, however it ends.

Linux sends a chosen signal to a child when the *thread* that started it dies.  `setpriv` asks for that without
code between fork and exec; one thread that lives as long as this process starts all of them, so that a worker
thread may start an emulator and end.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from android_harness.bundles.debian_packages import find_program

_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tied-process-starter")


def start_tied(
    argv: Sequence[str],
    *,
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts `argv` in a session of its own (Ctrl-C reaches us, and we decide), killed when we are gone."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [find_program("setpriv"), "--pdeathsig", "KILL", *argv],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )

    return _starter.submit(start).result()
