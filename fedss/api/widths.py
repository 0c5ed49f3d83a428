"""How many sampled classes a step is measured with: 170 if nobody says, and none where the step takes no rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from fedss.api.errors import WrongArgument
from ondevice.contract.artifact import Artifact

DEFAULT_WIDTH = 170


def widths_of(artifact: Artifact, wanted: Sequence[int] | None, argument: str = "widths") -> list[int]:
    """What was asked for, if the artifact takes it."""
    if not artifact.signature.table_dims:
        if wanted is not None:
            raise WrongArgument(
                argument,
                f"is given; the step of {artifact.directory} takes no sampled classes: leave it out",
            )
        return [0]
    chosen = [DEFAULT_WIDTH] if wanted is None else list(wanted)
    if max(chosen) > artifact.max_width:
        is_list = argument == "widths"
        raise WrongArgument(
            argument,
            f"{'has' if is_list else 'is'} {max(chosen)}; "
            f"{artifact.directory} takes at most {artifact.max_width} classes",
        )
    return chosen
