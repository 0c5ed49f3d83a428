"""The `[model]` of an experiment: which network, what learns, and where it starts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ondevice.contract.artifacts.lengths import check_sizes
from ondevice.contract.vocabulary import LogitKind, Randomness, scope_items


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _readable(scope: str) -> str:
    scope_items(scope)
    return scope


def _rising(lengths: tuple[int, ...]) -> tuple[int, ...]:
    if lengths:
        check_sizes(lengths)
    return lengths


TrainScope = Annotated[str, AfterValidator(_readable)]
LengthsOfTexts = Annotated[tuple[int, ...], AfterValidator(_rising)]


class ModelSettings(_Settings):
    architecture: str = Field(
        "mobilenet_v3_large",
        description="The extractor, as `fedss export --help` lists them, or anybody's: `timm:NAME`, `file.py:function`.",
    )
    architecture_arguments: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the architecture: what it takes, its sizes."
    )
    batch_norm: Literal["auto", "frozen", "group"] = Field(
        "auto",
        description="What becomes of a network's BatchNorm; auto: frozen with trained weights, else group.",
    )
    randomness: Randomness = Field(
        "off", description="Dropout and its like: off, or decided by noise that every client draws (input)."
    )
    embedding_dim: int = Field(64, ge=1, description="Entries of an embedding, and of a class's column.")
    objective: str = Field(
        "sampled_softmax",
        description="The loss, a file each in ondevice/model/objectives; or anybody's: `file.py:Class`.",
    )
    lengths: LengthsOfTexts = Field(
        (),
        description="Of texts, ascending, the network's own last: an exported step has a program for each.",
    )
    logits: LogitKind = Field("cosine", description="Scaled cosine, or the dot product with a bias.")
    train: TrainScope = Field(
        "all", description="What learns: presets and patterns, as `fedss export --help` lists them."
    )
    pretrained: str | None = Field(
        None,
        description="Where the extractor starts: a name under pretrained/, a saved state, or what `fedss export` takes.",
    )
    column_norm: float = Field(
        0.1,
        gt=0,
        description="Length of a new row, such as a column of W, which under cosine logits turns at a speed of 1/length^2.",
    )
