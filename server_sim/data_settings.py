"""The `[data]` of an experiment: which population, and how it is split among clients."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ondevice.contract.choice import Choice, chosen
from server_sim.data.augmentations import AUGMENTATIONS
from server_sim.data.partitioners import PARTITIONERS


class PartitionSettings(BaseModel):
    """A partitioner by name, with its own settings beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(
        description="Who gets which examples: `iid`, `dirichlet`, `pathological`, `natural_id`, `geo`, `few_classes` or "
        "`frequent_classes`, with settings beside it."
    )
    seed: int = Field(0, ge=0, description="Chance of the split, which runs of several seeds share.")

    @model_validator(mode="after")
    def _known(self) -> PartitionSettings:
        chosen(PARTITIONERS, self.choice, "partitioner")
        return self

    @property
    def choice(self) -> Choice:
        return Choice(self.name, self.model_extra or {})


class AugmentationSettings(BaseModel):
    """An augmentation by name, with its own settings beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(
        description="How image files are cut to the size that the network takes: `random_crop`, `scale_and_aspect` or "
        "`center_crop`, with settings beside it, such as `size`."
    )

    @model_validator(mode="after")
    def _known(self) -> AugmentationSettings:
        chosen(AUGMENTATIONS, self.choice, "augmentation")
        return self

    @property
    def choice(self) -> Choice:
        return Choice(self.name, self.model_extra or {})


class DataSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    population: str = Field(
        "glyphs-2028",
        description="A data set by name (`fedss data --help` has them), or the folder of a population.",
    )
    source: str | None = Field(
        None,
        description="The folder with the files of a published data set, for those that are read from them.",
    )
    partition: PartitionSettings | None = Field(
        None, description="How its training examples are split; without it, as the population has them."
    )
    augmentation: AugmentationSettings | None = Field(
        None,
        description="How image files are cut, anew in every round; without it, as the data set's paper has it.",
    )
