"""Errors that the functions of the API raise by themselves; those of the packages below pass through."""

from __future__ import annotations


class UsageError(ValueError):
    """What is asked for cannot be."""


class WrongArgument(UsageError):
    """One argument cannot be what it is.  The command line calls it by its option's name."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument} {problem}")
        self.argument = argument
        self.problem = problem


class CheckFailed(RuntimeError):
    """A check that was asked for did not hold."""
