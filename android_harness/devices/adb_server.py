"""The adb server: the daemon on this host that every `adb` command talks to.

Two kinds.  The *shared* one on adb's usual port is the user's: real phones and long-lived emulators are on it, so
that `adb` in a terminal sees them too; the client starts it when it is needed.  A *private* one lives and dies
with this process and serves the emulators that do the same; a run then leaves no daemon behind and disturbs none.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from android_harness.bundles.debian_packages import find_program
from android_harness.devices.bounded_output import BoundedOutput, OutputTooLong
from android_harness.devices.device import DeviceError, FailureReason
from android_harness.processes.tied_process import start_tied

SHARED_PORT = 5037
_START_SECONDS = 20.0  # that a private server may take


class AdbServer:
    """A server to send `adb` commands to: shared, or private if given a `home` folder for its keys and log."""

    def __init__(self, home: Path | None = None) -> None:
        self._adb = find_program("adb")
        self._home = home
        self.process: subprocess.Popen[bytes] | None = None
        self.port = SHARED_PORT if home is None else free_port()

    def command(self, *arguments: str) -> list[str]:
        """The command line of one adb command to this server."""
        # Given a host, the client never starts a daemon of its own: that is for `ensure_running` to do.
        address = ["-P", str(self.port)] if self._home is None else ["-H", "127.0.0.1", "-P", str(self.port)]
        return [self._adb, *address, *arguments]

    def is_running(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def ensure_running(self) -> None:
        """Starts the server if it is not there, or not there any more."""
        if self.is_running():
            return
        if self._home is None:
            started = subprocess.run(self.command("start-server"), capture_output=True, text=True)
            if started.returncode != 0:
                raise DeviceError(FailureReason.FAILED, f"adb start-server failed: {started.stderr.strip()}")
            return
        self.stop()
        with (self._home / "adb_server.log").open("ab") as log:
            self.process = start_tied(
                [self._adb, "-L", f"tcp:{self.port}", "server", "nodaemon"],
                stdout=log,
                stderr=log,
                env={**os.environ, "HOME": str(self._home)},  # else it would write keys into the user's home
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self.is_running():
            if self.process.poll() is not None or time.monotonic() > deadline:
                last_words = (self._home / "adb_server.log").read_text(errors="replace")[-1000:]
                self.stop()
                raise DeviceError(
                    FailureReason.FAILED, f"the adb server on port {self.port} did not start: {last_words}"
                )
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends a private server; the shared one is the user's, and stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def run(
        self, arguments: Sequence[str], timeout: float, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """One adb command, with the server there to take it.

        `subprocess.TimeoutExpired` after `timeout` seconds; `DeviceError` if a device has it print without end.
        """
        client, output = self.start(arguments, stdin)
        try:
            code = output.wait(timeout)
        except OutputTooLong as error:
            raise DeviceError(FailureReason.CORRUPT, f"adb {arguments[-1]}: {error}") from None
        finally:
            output.kill()
        return subprocess.CompletedProcess(client.args, code, output.stdout, output.stderr)

    def start(
        self, arguments: Sequence[str], stdin: bytes = b""
    ) -> tuple[subprocess.Popen[bytes], BoundedOutput]:
        """One adb command under way, with the server there to take it."""
        self.ensure_running()
        pipe = subprocess.PIPE
        client = subprocess.Popen(self.command(*arguments), stdin=pipe, stdout=pipe, stderr=pipe)
        return client, BoundedOutput(client, stdin)


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
