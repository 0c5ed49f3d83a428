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
_MOST_DIGITS = 19
"""Of a number that a kernel may print; a longer one is nonsense, and costs time to read."""


class BadFrame(ValueError):
    """The two lines are there, and what stands in them cannot be."""


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
        if begun is None or len(begun[1]) > _MOST_DIGITS:
            return None
        return int(begun[1])

    def end(self, stderr: bytes) -> CommandEnd | None:
        """How the command ended; None if it is not known to have ended; `BadFrame` if no command ends like that."""
        kills = r"(?:oom_kill (\d+))?"
        whole = re.search(
            rf"{self.word} begin \d+ {kills}\n(.*)\n{self.word} end (\d+) {kills}\n".encode(),
            stderr,
            re.DOTALL,
        )
        if whole is None:
            return None
        kills_before, own, code, kills_after = whole.groups()
        for number in (code, kills_before, kills_after):
            if number is not None and len(number) > _MOST_DIGITS:
                raise BadFrame(f"a number of {len(number)} digits; expected at most {_MOST_DIGITS}")
        if int(code) > 255:
            raise BadFrame(f"the exit code {int(code)}; expected 0 to 255")
        # A count in one line alone says nothing, and counters do not run backwards.
        known = kills_before is not None and kills_after is not None and int(kills_after) >= int(kills_before)
        memory_kills = int(kills_after) - int(kills_before) if known else None
        return CommandEnd(int(code), memory_kills, own)

    def kill(self, process_group: int) -> str:
        """A script that kills the command and its children if it still runs; never anybody with a reused number."""
        return f"grep -qs {self.word} /proc/{process_group}/cmdline && kill -9 -{process_group}"
