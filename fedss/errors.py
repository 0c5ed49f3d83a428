"""Which exit code an error earns."""

from __future__ import annotations

from fedss.console import CheckFailed, ExitCode, UsageError


def exit_code_for(error: Exception) -> ExitCode:
    """Errors that a user can act on have a code and one line; anything else is a bug."""
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return ExitCode.BUG


_CODES: tuple[tuple[tuple[type[Exception], ...], ExitCode], ...] = (
    ((UsageError,), ExitCode.USAGE),
    ((CheckFailed,), ExitCode.CHECK_FAILED),
    ((FileNotFoundError,), ExitCode.BAD_DATA),
)
