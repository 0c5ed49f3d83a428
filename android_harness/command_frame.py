"""A shell command on a device, framed so that what became of it cannot be mistaken.

Two lines on stderr, with a random word in them, go around the command.  The first proves that it was started and has
its process group; the second has its exit code.  So a lost connection is never taken for an exit code (and devices
whose adb sends none have one too).  Both have the kernel's count of processes killed for memory, where it is readable.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field

_COUNT_KILLS = "$(grep -s '^oom_kill ' /proc/vmstat)"


@dataclass(frozen=True)
class CommandEnd:
    """How a framed command ended."""

    exit_code: int
    memory_kills: int | None  # by the kernel while the command ran; None: the device does not say
    stderr: bytes  # the command's own


@dataclass(frozen=True)
class CommandFrame:
    """The frame of one command."""

    word: str = field(default_factory=lambda: secrets.token_hex(8))

    def around(self, script: str) -> str:
        """What to give to the device's shell instead of `script`."""
        return (
            f'echo "{self.word} begin $$ {_COUNT_KILLS}" >&2\n'
            f"{script}\n"
            f'code=$?\nprintf "\\n{self.word} end $code {_COUNT_KILLS}\\n" >&2\nexit $code'
        )

    def process_group(self, stderr: bytes) -> int | None:
        """The group that the command runs in; None if it was never started."""
        begun = re.search(rf"{self.word} begin (\d+)".encode(), stderr)
        return int(begun[1]) if begun else None

    def end(self, stderr: bytes) -> CommandEnd | None:
        """How the command ended; None if it is not known to have ended."""
        kills = r"(?:oom_kill (\d+))?"
        whole = re.search(
            rf"{self.word} begin \d+ {kills}\n(.*)\n{self.word} end (\d+) {kills}\n".encode(),
            stderr,
            re.DOTALL,
        )
        if whole is None:
            return None
        kills_before, own, code, kills_after = whole.groups()
        memory_kills = None if kills_after is None else int(kills_after) - int(kills_before)
        return CommandEnd(int(code), memory_kills, own)

    def kill(self, process_group: int) -> str:
        """A script that kills the command and its children if it still runs; never anybody with a reused number."""
        return f"grep -qs {self.word} /proc/{process_group}/cmdline && kill -9 -{process_group}"
